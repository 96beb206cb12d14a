"""Environment servers killed and started again in a batch: no episode is lost or burnt."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from runner.batch.stopping import Waiting
from runner.batch.workspace import Workspace
from runner.events.live import EpisodeEnded, EpisodeStarted
from runner.store import EpisodeRecord
from runner.types import Outcome
from runner.types.episode_events import EpisodeItemBase
from tests.support.batch_items import live_items
from tests.support.env_server_process import EnvServerProcess
from tests.support.hooked_agent import HookedAgent
from tests.support.manual_clock import ManualClock
from tests.support.waiting_batch import MazeBatch, check_stored, played_tasks, wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(180), pytest.mark.usefixtures("hooked_agent")]


def test_a_server_killed_in_a_step_costs_that_episode_only(
    served_maze: tuple[EnvServerProcess, int], workspace: Workspace, kill_at: Callable[..., threading.Event]
) -> None:
    server, port = served_maze
    killed = kill_at(server, task=8, step=1)
    batch = MazeBatch(workspace, port)
    batch.wait_until_waiting()
    assert killed.is_set()
    server.start()
    result = batch.result()
    assert played_tasks(result) == Counter(range(20))
    assert result.outcomes == {"truncated": 19, "error": 1}
    (failed,) = [episode for episode in result.episodes if episode.outcome is Outcome.ERROR]
    assert (failed.task_index, failed.rounds) == (8, 1)
    assert (failed.error or "").startswith("environment_fault: Maze: POST ")
    assert (result.status, result.interruption) == ("completed", None)
    check_stored(workspace, result)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_server_killed_between_two_episodes_costs_no_episode(
    served_maze: tuple[EnvServerProcess, int], workspace: Workspace, workers: int
) -> None:
    server, port = served_maze

    def kill_after_eight(record: EpisodeRecord) -> None:
        if record.task_index == 7:
            server.kill()

    batch = MazeBatch(workspace, port, on_record=kill_after_eight, workers=workers)
    batch.wait_until_waiting()
    server.start()
    result = batch.result()
    assert played_tasks(result) == Counter(range(20))
    lost = [episode.task_index for episode in result.episodes if episode.outcome is Outcome.ERROR]
    # a worker starts its next episode while the last one is stored, so the kill may come in its first step
    assert lost in ([[], [8]] if workers else [[]]) and result.outcomes["truncated"] == 20 - len(lost)
    check_stored(workspace, result)
    items = [live for item in batch.items for live in live_items(item)]
    started = {item.task_index: item.episode_id for item in items if isinstance(item, EpisodeStarted)}
    ended = [item.episode_id for item in items if isinstance(item, EpisodeEnded)]
    ids = [episode.episode_id for episode in result.episodes]
    n_starts = sum(isinstance(item, EpisodeStarted) for item in items)
    assert n_starts == len(started) and sorted(started.values()) == sorted(ended) == sorted(ids)  # once, also task 8
    assert list(started) == list(range(20))
    if not workers:  # a worker starts its next episode while the last one is stored, so two wait for the server
        assert list(started.values()) == ended == ids
    numbers = [item.seq for item in items if isinstance(item, EpisodeItemBase) and item.episode_id == started[8]]
    assert numbers[0] == 0 and numbers == sorted(set(numbers))


def test_parallel_episodes_are_each_played_once(
    served_maze: tuple[EnvServerProcess, int], workspace: Workspace, kill_at: Callable[..., threading.Event]
) -> None:
    server, port = served_maze
    killed = kill_at(server, task=8, step=1)
    batch = MazeBatch(workspace, port, concurrency=4)
    batch.wait_until_waiting()
    assert killed.is_set()
    server.start()
    result = batch.result()
    assert played_tasks(result) == Counter(range(20))
    assert 1 <= result.outcomes["error"] <= 4
    failed = [
        workspace.store.load(episode.episode_id) for episode in result.episodes if episode.outcome is Outcome.ERROR
    ]
    assert all(record.reset_observation for record in failed)  # else they would have been put back
    check_stored(workspace, result)


def test_a_server_that_dies_again_and_again_costs_one_episode_each_time(
    maze_server: EnvServerProcess, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaths = {3: 2, 4: 1, 9: 1, 18: 0}

    def before_act(task_index: int, step_index: int) -> None:
        if deaths.get(task_index) == step_index:
            maze_server.kill()
            threading.Thread(target=maze_server.start, daemon=True).start()

    monkeypatch.setattr(HookedAgent, "before_act", staticmethod(before_act))
    result = MazeBatch(workspace, maze_server.port).result()
    assert played_tasks(result) == Counter(range(20))
    assert {episode.task_index for episode in result.episodes if episode.error} == deaths.keys()
    assert maze_server.n_starts == 5


def test_the_screen_and_the_log_show_the_seconds_left(
    maze_server: EnvServerProcess,
    workspace: Workspace,
    clock: ManualClock,
    kill_at: Callable[..., threading.Event],
    caplog: pytest.LogCaptureFixture,
) -> None:
    kill_at(maze_server, task=1, step=0)
    batch = MazeBatch(workspace, maze_server.port, repeat=3)
    batch.wait_until_waiting()

    def shows(seconds: float) -> bool:
        return batch.progress[-1].waiting_s == seconds

    problem = f"http://127.0.0.1:{maze_server.port}: nothing listens there"
    for left_s in (60, 50, 7):
        clock.now = 160.0 - left_s
        wait_until(partial(shows, left_s))
        assert batch.progress[-1].waiting_for == problem
        assert batch.batch.waiting == Waiting(problem, left_s)
    maze_server.start()
    assert batch.result().outcomes == {"truncated": 2, "error": 1}
    assert (batch.progress[-1].waiting_s, batch.progress[-1].waiting_for) == (None, None)
    messages = [record.getMessage().partition(": ")[2] for record in caplog.records]
    assert [message for message in messages if "server of Maze" in message] == [
        f"the server of Maze is gone ({problem}); waiting 60 s for it",
        f"the server of Maze is still gone ({problem}); 50 s left",
        "the server of Maze replies again; the batch continues",
    ]
