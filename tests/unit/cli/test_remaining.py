"""The lines of a run while it plays, and at the end of an interrupted one what is left and the commands for it."""

from __future__ import annotations

import shlex
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.batch.observers import EpisodeStored
from runner.batch.result import BatchResult, BatchStats, EpisodeSummary
from runner.batch.spec import BatchSpec
from runner.cli.arguments import parse_options
from runner.cli.run import MAX_COMMANDS, batch_progress, commands_for, remaining_episodes, report_remaining
from runner.episode.live_items import ended_item
from runner.store import EpisodeRecord
from runner.types import UNFINISHED, Action, BatchProgress, ErrorInfo, Outcome, WorkerCounts, WorkerInfo
from tests.support.episodes import END, episode_header, finished_record, make_step, make_trajectory

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


def stored(record: EpisodeRecord) -> EpisodeStored:
    return EpisodeStored(record, ended_item(1, record))


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"n_done": 4, "n_rated": 2, "n_success": 1, "mean_reward": 0.5}, "success 50% of 2, mean reward 0.500\n"),
        (
            {"n_done": 4, "n_rated": 2, "n_success": 2, "mean_reward": 1.0, "errors": 2},
            "success 100% of 2, mean reward 1.000, 2 errors\n",
        ),
        (
            {"n_done": 4, "n_rated": 0, "n_success": 0, "mean_reward": None, "errors": 1},
            "success -, mean reward -, 1 error\n",
        ),
    ],
)
def test_the_live_rate_covers_the_rated_episodes(
    counts: dict[str, Any], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with batch_progress(BatchSpec(env="Maze", agent="oracle", repeat=4)) as progress:
        progress.observe(BatchProgress(at=END, batch_id="b", seq=0, n_planned=4, eta_s=0.0, **counts))
    assert capsys.readouterr().err == f"Maze · oracle: 4/4 episodes, {expected}"


def test_a_lost_worker_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    playing = BatchProgress(
        at=END, batch_id="b", seq=0, n_done=1, n_planned=4, n_success=1, mean_reward=0.5, eta_s=0.0, n_rated=1
    )
    numbers = [None, (0, 2, 0), (2, 0, 0), (1, 1, 1), (2, 0, 1), (0, 0, 3)]
    with batch_progress(BatchSpec(env="Maze", agent="oracle", repeat=4)) as progress:
        for each in numbers:
            counts = None if each is None else WorkerCounts(n=each[0], starting=each[1], lost=each[2])
            progress.observe(msgspec.structs.replace(playing, workers=counts))
    assert capsys.readouterr().err.splitlines() == [
        "Maze · oracle: a worker process was lost: 1 worker, 1 starting, 1 lost",
        "Maze · oracle: a worker process was lost: 0 workers, 3 lost",
    ]


def test_a_wait_for_the_server_is_printed_with_the_seconds_left(capsys: pytest.CaptureFixture[str]) -> None:
    playing = BatchProgress(
        at=END, batch_id="b", seq=0, n_done=1, n_planned=4, n_success=1, mean_reward=0.5, eta_s=0.0, n_rated=1
    )
    with batch_progress(BatchSpec(env="Maze", agent="oracle", repeat=4)) as progress:
        progress.observe(playing)
        for left_s in range(60, 38, -1):
            progress.observe(
                msgspec.structs.replace(playing, waiting_for="http://h:1: \x1b[2Jrefused", waiting_s=float(left_s))
            )
        progress.observe(playing)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        *(
            f"Maze · oracle: waiting for the server, {left_s} s left (http://h:1: ␛[2Jrefused)"
            for left_s in (60, 50, 40)
        ),
        "Maze · oracle: the server replies again",
    ]


@pytest.mark.parametrize(
    ("worker", "expected"),
    [
        (WorkerInfo(host="h", id="slot 0", kind="local"), ""),
        (WorkerInfo(host="h", id="worker 1", kind="process"), ", worker 1"),
        (WorkerInfo(host="n\x1b2", id="0123456789abcdef", kind="ray"), ", Ray worker 01234567 on n␛2"),
        (None, ""),
    ],
)
def test_the_line_of_an_episode_names_the_process_that_played_it(
    worker: WorkerInfo | None, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    header = episode_header(worker=worker, task_index=7)
    record = finished_record(header, make_trajectory(header, [make_step(0)]))
    with batch_progress(BatchSpec(env="Maze", agent="oracle", repeat=4)) as progress:
        progress.observe(stored(record))
    line = "Maze · oracle: task 7 success in 1 round, reward 0.25, 1.50 s"
    assert capsys.readouterr().err == f"{line}{expected}\n"


@pytest.mark.parametrize(
    ("step", "fields", "expected"),
    [
        ({}, {"outcome": Outcome.TRUNCATED}, "stopped at the limit of 1 round"),
        ({"done": True}, {"outcome": Outcome.TRUNCATED}, "stopped by the environment after 1 round"),
        (
            {"action": Action(text="hm", valid=False)},
            {"outcome": Outcome.FAILURE},
            "failure after too many invalid actions in 1 round",
        ),
        ({"done": True}, {"outcome": Outcome.FAILURE}, "failure in 1 round"),
        ({}, {"outcome": Outcome.ERROR, "error_info": ErrorInfo("B\x1b", "m", "")}, "error B␛ in 1 round"),
        ({"done": True}, {"outcome": Outcome.SUCCESS}, "success in 1 round"),
    ],
)
def test_the_line_of_an_episode_says_why_it_ended(
    step: dict[str, Any], fields: dict[str, Any], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    header = episode_header(task_index=3)
    record = finished_record(header, make_trajectory(header, [make_step(0, **step)], **fields))
    with batch_progress(BatchSpec(env="Maze", agent="oracle", repeat=4)) as progress:
        progress.observe(stored(record))
    assert capsys.readouterr().err.startswith(f"Maze · oracle: task 3 {expected}, reward ")
