"""The end of an interrupted run: the episodes that are left, and the commands that play them."""

from __future__ import annotations

import shlex

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.batch.result import BatchResult, BatchStats, EpisodeSummary
from runner.batch.spec import BatchSpec
from runner.cli.arguments import parse_options
from runner.cli.run import MAX_COMMANDS, commands_for, remaining_episodes, report_remaining
from runner.types import UNFINISHED, Outcome

ARGV = ["--battery=all", "--agent", "random", "--repeat", "9", "--task-index=3", "--config", "my profile.yaml"]


def make_result(spec: BatchSpec, outcomes: dict[int, Outcome]) -> BatchResult:
    """Return the result of a batch with one attempt per task, from its outcomes by task."""
    result = BatchStats().result(
        spec, batch_id="b", battery_id=None, status="interrupted", data_label="", duration_s=1.0
    )
    episodes = [
        EpisodeSummary(
            episode_id=f"e{task}",
            task_index=task,
            attempt=0,
            outcome=outcome,
            success=False,
            reward=0.0,
            rounds=1,
            duration_s=1.0,
            error=None,
        )
        for task, outcome in outcomes.items()
    ]
    return msgspec.structs.replace(result, episodes=episodes, interruption="its server did not reply for 60 s (x)")


def played_by(command: str) -> range:
    program, *argv = shlex.split(command)
    assert program == "agentgym-runner"
    options = parse_options(argv)
    assert (options.run, options.battery, options.agent, options.config) == ("Maze", None, "random", "my profile.yaml")
    return range(options.task_index, options.task_index + options.repeat)


@given(st.dictionaries(st.integers(3, 14), st.sampled_from(Outcome)))
def test_the_commands_play_exactly_the_tasks_that_are_left(outcomes: dict[int, Outcome]) -> None:
    spec = BatchSpec(env="Maze", agent="random", task_index=3, repeat=12)
    left = remaining_episodes(spec, make_result(spec, outcomes))
    expected = [task for task in range(3, 15) if outcomes.get(task) in (None, *UNFINISHED)]
    assert [planned.task_index for planned in left] == expected
    assert [task for command in commands_for(spec, left, ARGV) for task in played_by(command)] == expected


def test_a_task_with_attempts_left_is_played_with_all_of_them() -> None:
    spec = BatchSpec(env="Maze", agent="random", task_index=3, repeat=2, attempts=2)
    result = make_result(spec, {3: Outcome.FAILURE})
    left = remaining_episodes(spec, result)
    assert [(planned.task_index, planned.attempt) for planned in left] == [(3, 1), (4, 0), (4, 1)]
    assert [played_by(command) for command in commands_for(spec, left, ARGV)] == [range(3, 5)]


def test_the_report_has_the_cause_the_number_and_few_commands(capsys: pytest.CaptureFixture[str]) -> None:
    spec = BatchSpec(env="Maze", agent="random", repeat=12)
    report_remaining(spec, make_result(spec, dict.fromkeys(range(0, 12, 2), Outcome.ERROR)), ["--run", "maze"])
    cause, number, *commands, more = capsys.readouterr().err.splitlines()
    assert cause == "Maze: interrupted: its server did not reply for 60 s (x)"
    assert number == "Maze: 6 of 12 episodes are left. Start the server again, then run:"
    assert commands == [f"  agentgym-runner --run Maze --task-index {n} --repeat 1" for n in (1, 3, 5)]
    assert len(commands) == MAX_COMMANDS
    assert more == "  and 3 more; the episode files show which tasks were played"
