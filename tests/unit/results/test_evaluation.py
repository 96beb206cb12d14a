"""AgentGym's score and success beside ours, in files, events, results and gates, and the evaluation report."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.cli import main
from runner.config import NatsSettings
from runner.events.subjects import DurableNames
from runner.publish.outbox import episode_event
from runner.results.evaluation import AGENTEVAL, evaluate, latex, markdown
from runner.results.summary import summarize_results
from runner.store import EpisodeIndex, EpisodeStore, open_index
from runner.types import AgentGymScore, Outcome
from tests.support.episodes import RecordedEpisode, make_step, newest_rows


def record(index: EpisodeIndex, env: str, *rewards: float, success: bool, **fields: Any) -> RecordedEpisode:  # noqa: ANN401
    recording = RecordedEpisode(index._store, index, env=env, **fields)
    recording.start()
    recording.reset()
    for number, reward in enumerate(rewards):
        recording.play(make_step(number, reward=reward))
    recording.end(success=success, outcome=Outcome.SUCCESS if success else Outcome.FAILURE)
    return recording


@pytest.mark.parametrize(
    ("env", "rewards", "expected"),
    [
        ("BabyAI", (0.0, 0.85), AgentGymScore(0.85, success=False)),
        ("TextCraft", (0.0, 0.0, 1.0), AgentGymScore(1.0, success=True)),
        ("Wordle", (-1.0, -1.0), AgentGymScore(-1.0, success=False)),
        ("SciWorld", (60.0, 40.0), AgentGymScore(100.0, success=True)),
        ("SciWorld", (1.0,), AgentGymScore(1.0, success=False)),
        ("Weather", (0.5, 0.5), AgentGymScore(1.0, success=True)),
    ],
)
def test_the_last_reward_is_the_score_and_only_the_full_one_a_success(
    index: EpisodeIndex, env: str, rewards: tuple[float, ...], expected: AgentGymScore
) -> None:
    recording = record(index, env, *rewards, success=True)
    assert json.loads(recording.file.read_bytes())["agentgym"] == msgspec.to_builtins(expected)
    (row,) = newest_rows(index)
    assert row.agentgym == expected
    payload = json.loads(episode_event(row, DurableNames.of(NatsSettings())).payload)
    assert payload["agentgym"] == msgspec.to_builtins(expected)
    assert payload["success"] is True
    assert index._store.load(recording.file).agentgym == expected


def test_files_of_earlier_versions_get_their_score_from_their_rewards(index: EpisodeIndex) -> None:
    recording = record(index, "BabyAI", 0.0, 0.9, success=True)
    content = json.loads(recording.file.read_bytes())
    del content["agentgym"]
    recording.file.write_text(json.dumps(content))
    index.reconcile()
    assert newest_rows(index)[0].agentgym_score == 0.9


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Three episodes of BabyAI, of which AgentGym counts one as a success, and one of an environment without any."""
    with closing(open_index(EpisodeStore(tmp_path))) as index:
        for task, rewards in enumerate([(0.0, 0.85), (1.0,), (0.0,)]):
            record(index, "BabyAI", *rewards, success=rewards[-1] > 0, task_index=task, agent="react", model="q|_*")
    return tmp_path


def test_results_count_by_the_chosen_score(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(open_index(EpisodeStore(data_dir))) as index:
        ours, theirs = (summarize_results(index, score=score)[0] for score in ("reward", "agentgym"))
    assert ours.success_rate == pytest.approx(2 / 3)
    assert ours.score == pytest.approx(1.85 / 3)
    assert theirs.success_rate == pytest.approx(1 / 3)
    assert ours.agentgym == theirs.agentgym
    assert ours.agentgym is not None
    assert ours.agentgym.score == pytest.approx(1.85 / 3)
    assert ours.agentgym.success_rate == pytest.approx(1 / 3)
    folder = ["--results", "--data-dir", str(data_dir), "--fail-below", "0.5", "--matrix", "--json"]
    assert main(folder) == 0
    assert main([*folder, "--score", "agentgym"]) == 3
    ours_json, theirs_json = (json.loads(f"{{{part}") for part in capsys.readouterr().out[1:].split("\n{"))
    for document, successes in ((ours_json, [True, True, False]), (theirs_json, [False, True, False])):
        attempts = [task["attempts"][0] for task in document["matrices"][0]["tasks"]]
        assert [attempt["success"] for attempt in attempts] == successes
        assert [attempt["agentgym_score"] for attempt in attempts] == [0.85, 1.0, 0.0]


def test_the_report_has_agentgyms_numbers_and_why_they_are_not_comparable(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ["eval-report", "--data-dir", str(data_dir)]
    assert main([*folder, "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["n"], row["success_rate"]) == (3, pytest.approx(1 / 3))
    assert row["differences"] == [
        "prompt and parsing are those of the agent react, not AgentGym's",
        "strict rules, not AgentGym's",
        "15 rounds instead of 20",
        "3 tasks instead of 90",
    ]
    assert row["versions"]
    assert main(folder) == 0
    table = capsys.readouterr().out
    assert r"| BabyAI | react q\|\_\* | 3 | 0.617 | 33.3% |" in table
    assert "not comparable with AgentEval because: prompt and parsing" in table
    assert main([*folder, "--format", "latex"]) == 0
    assert r"BabyAI & react q|\_* & 3 & 0.617 & 33.3\% &" in capsys.readouterr().out
    assert main([*folder, "--env", "Maze"]) == 2


def test_only_agentgyms_own_setting_is_comparable(index: EpisodeIndex) -> None:
    for task in range(AGENTEVAL["maze"].n_tasks):
        fields = {"task_index": task, "agent": "agentgym", "model": "q", "mode": "compat"}
        record(index, "Maze", 1.0, success=True, **fields)
    record(index, "FrozenLake", 1.0, success=True, agent="agentgym", mode="compat")
    frozen, maze = evaluate(index)
    assert (maze.differences, frozen.differences) == ((), ("AgentEval has no such environment",))
    for lines in (markdown([maze]), latex([maze])):
        assert any("AgentEval's setting" in line for line in lines)
