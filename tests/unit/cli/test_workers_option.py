"""The option ``--workers`` and the profile key ``episode.workers``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runner.batch import spec as batch_spec
from runner.cli.arguments import Options, parse_options
from runner.cli.run_session import RunSession
from runner.config import EpisodeSettings, Profile
from runner.types import Workers

RUN = ["--run", "Maze", "--agent", "oracle"]


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
