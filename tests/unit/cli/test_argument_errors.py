"""Arguments of the commands: errors show unsafe characters, `--workers`, and the modules that a start loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from agentgym_tui.cli import main as main_console
from runner.batch import spec as batch_spec
from runner.cli import main as main_runner
from runner.cli.arguments import Options, parse_options
from runner.cli.run_session import RunSession
from runner.config import EpisodeSettings, Profile
from runner.types import SpanLevel, Workers

HOSTILE = "--\x1b]52;c;QQ==\x07a" + "\u0301" * 5 + "\ue000"
SHOWN = "␛]52;c;QQ==␇a\u0301\u0301(+3 marks)\\u{e000}"


RUNNER = ("--results", "node", "watch", "outbox", "preflight", "nats-info", "serve", "serve-model")


def test_an_unknown_argument_is_shown_safely(capsys: pytest.CaptureFixture[str]) -> None:
    console = ("config", "open x", "watch")
    for main, commands in ((main_runner, RUNNER), (main_console, console)):
        for command in commands:
            with pytest.raises(SystemExit):
                main([*command.split(), HOSTILE])
            error = capsys.readouterr().err
            assert SHOWN in error and "\x1b" not in error, command


def test_a_wrong_subcommand_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_runner(["wath", "--json"]) == 2
    assert "there is no subcommand 'wath'; did you mean 'watch'?" in capsys.readouterr().err
    assert main_runner(["BabyAI"]) == 2
    assert capsys.readouterr().err == (
        "agentgym-runner: there is no subcommand 'BabyAI'; --help lists all, and runs start with --run\n"
    )


def session(options: Options, **episode: Any) -> RunSession:  # noqa: ANN401
    profile = Profile(id="p", episode=EpisodeSettings(**episode))
    return RunSession(options=options, profile=profile, data_dir=Path("data"), node="n")


@pytest.mark.parametrize(("text", "workers"), [("0", 0), ("2", 2), ("256", 256), ("ray", "ray")])
def test_the_option_takes_a_number_or_ray_and_precedes_the_profile(text: str, workers: Workers) -> None:
    here = session(parse_options([*RUN, "--workers", text]), workers=7)
    assert [batch.spec.workers for batch in here.batches()] == [workers]


@pytest.mark.parametrize("text", ["-1", "257", "2.0", "Ray", "", " 2", "٣", "1" * 5000, "\x1b[2J"])
def test_another_value_is_rejected_in_words(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_options([*RUN, f"--workers={text}"])
    error = capsys.readouterr().err
    assert "is neither a number from 0 to 256 nor ray" in error
    assert "\x1b" not in error


def test_the_option_is_valid_only_for_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_options(["--results", "--workers", "2"])
    assert "--workers cannot be combined with --results" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "episode", "workers"),
    [
        ({}, {}, 0),
        ({"concurrency": 8}, {}, 0),  # one episode
        ({"concurrency": 8, "repeat": 2}, {}, 2),
        ({"repeat": 100}, {"concurrent": 64}, 3),
        ({"concurrency": 8, "repeat": 100}, {"workers": 0}, 0),
        ({"workers": 2}, {"workers": "ray"}, 2),
        ({}, {"workers": "ray"}, "ray"),
    ],
)
def test_the_default_is_one_process_per_cpu_for_several_episodes_at_a_time(
    options: dict[str, Any], episode: dict[str, Any], workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_spec, "usable_cpus", lambda: 3)
    (batch,) = session(Options(run="Maze", agent="oracle", **options), **episode).batches()
    assert batch.spec.chosen_workers == workers


RUN = ("--run", "Maze", "--agent", "oracle")
HEAVY = {"hydra", "ulid", "nats", "google.protobuf", "prometheus_client", "shtab", "textual", "minigrid", "numpy"}
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
