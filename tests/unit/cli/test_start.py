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


@pytest.mark.parametrize("arguments", UNUSED)
def test_modules_that_an_invocation_does_not_need_are_not_loaded(arguments: tuple[str, ...], tmp_path: Path) -> None:
    code = (
        "import atexit, sys; from runner.cli import main; "
        "atexit.register(lambda: print('loaded', *sys.modules, file=sys.stderr)); sys.exit(main())"
    )
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stderr.rpartition("loaded")[2].split())
    assert "runner.cli.arguments" in loaded
    assert not UNUSED[arguments] & loaded


@pytest.mark.parametrize("level", get_args(SpanLevel))
def test_tracing_takes_every_level(level: SpanLevel) -> None:
    assert parse_options([*RUN, "--tracing", level]).tracing == level
