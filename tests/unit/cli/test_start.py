"""The command loads only the modules that an invocation needs, because they are most of its start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from runner.cli.arguments import parse_options
from runner.types import SpanLevel

RUN = ("--run", "Maze", "--agent", "oracle")
HEAVY = {"hydra", "ulid", "nats", "google.protobuf", "prometheus_client", "shtab"}
PROBES = {"asyncio", "httpx", "aiohttp", "ssl", "dataclasses", "hashlib", "logging"}
"""Modules that the probe of an environment's server needs, too."""
UNUSED: dict[tuple[str, ...], set[str]] = {
    ("--help",): {*HEAVY, *PROBES, "rich", "yaml"},
    ("--list-envs",): {*HEAVY, "platformdirs", "runner.batch", "runner.pool", "runner.episode", "sqlite3"},
    RUN: {*HEAVY, "platformdirs", "runner.inference.manager"},
}


LOADED = """
import contextlib, sys
from runner.cli import main
with contextlib.suppress(SystemExit):
    main(sys.argv[1].split())
print("loaded", *sys.modules, file=sys.stderr)
sys.argv.pop(1)
"""


def test_modules_that_an_invocation_does_not_need_are_not_loaded(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOADED * len(UNUSED), *map(" ".join, UNUSED)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    after_each = [{*line.split()} for line in done.stderr.splitlines() if line.startswith("loaded ")]
    for unused, loaded in zip(UNUSED.values(), after_each, strict=True):
        assert "runner.cli.arguments" in loaded
        assert not unused & loaded


@pytest.mark.parametrize("level", get_args(SpanLevel))
def test_tracing_takes_every_level(level: SpanLevel) -> None:
    assert parse_options([*RUN, "--tracing", level]).tracing == level
