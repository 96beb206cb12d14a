"""The end of a wait for an environment server: time-out, commands, and servers that do not count as gone."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from runner.batch.running_episode import MAX_PUT_BACKS, CommandName
from runner.batch.stopping import Waiting
from runner.batch.workspace import Workspace
from runner.store import EpisodeRecord
from tests.support.env_server_process import EnvServerProcess
from tests.support.hooked_agent import HookedAgent
from tests.support.manual_clock import ManualClock
from tests.support.rude_env_server import ReceivedRequest, http_response, run_rude_server
from tests.support.waiting_batch import MazeBatch, check_stored, played_tasks, wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(180), pytest.mark.usefixtures("hooked_agent")]


def test_a_batch_is_interrupted_and_resumed_when_its_server_stays_away(
    maze_server: EnvServerProcess, workspace: Workspace, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    def kill_after_eight(record: EpisodeRecord) -> None:
        if record.task_index == 7:
            maze_server.kill()

    batch = MazeBatch(workspace, maze_server.port, on_record=kill_after_eight)
    batch.wait_until_waiting()
    clock.now += 61.0
    first = batch.result()
    assert first.status == "interrupted"
    assert first.interruption == (
        f"its server did not reply for 60 s (http://127.0.0.1:{maze_server.port}: nothing listens there)"
    )
    assert first.outcomes == {"truncated": 8, "interrupted": 1}
    assert first.episodes[-1].error is None
    assert batch.progress[-1].interrupted
    assert "interrupted with 12 of 20 episodes left" in caplog.text
    check_stored(workspace, first)
    maze_server.start()
    earlier = [workspace.store.load(episode.episode_id) for episode in first.episodes]
    resumed = MazeBatch(workspace, maze_server.port, batch_id=first.batch_id, earlier_episodes=earlier).result()
    assert (resumed.status, resumed.outcomes) == ("completed", {"truncated": 20})
    assert played_tasks(resumed) == Counter(range(20))


@pytest.mark.parametrize(
    ("command", "status", "outcome"),
    [
        ("cancel", "cancelled", "cancelled"),
        ("abort", "cancelled", "cancelled"),
        ("interrupt", "interrupted", "interrupted"),
    ],
)
def test_a_waiting_batch_ends_at_once(
    maze_server: EnvServerProcess, workspace: Workspace, command: CommandName, status: str, outcome: str
) -> None:
    batch = MazeBatch(workspace, maze_server.port, on_record=lambda record: maze_server.kill())
    batch.wait_until_waiting()
    batch.batch.command(command)
    result = batch.result(timeout_s=5.0)
    assert (result.status, result.interruption) == (status, None)
    assert result.outcomes == {"truncated": 1, outcome: 1}  # task 1 was already announced
    check_stored(workspace, result)


def test_an_episode_that_was_put_back_accepts_only_ending_commands_and_can_be_cancelled(
    maze_server: EnvServerProcess, workspace: Workspace
) -> None:
    def kill_after_first(record: EpisodeRecord) -> None:
        if record.task_index == 0:
            maze_server.kill()

    batch = MazeBatch(workspace, maze_server.port, repeat=3, on_record=kill_after_first)
    batch.wait_until_waiting()
    (episode_id,) = batch.batch.episode_ids
    commands: list[CommandName] = ["pause", "step", "resume", "cancel"]
    assert [batch.batch.accepts(name, episode_id) for name in commands] == [False, False, False, True]
    batch.batch.command("cancel", episode_id)
    wait_until(lambda: not batch.batch.episode_ids)
    maze_server.start()
    result = batch.result()
    assert (result.status, result.outcomes) == ("completed", {"truncated": 2, "cancelled": 1})


def test_a_pause_stops_the_time_of_the_wait(
    maze_server: EnvServerProcess, workspace: Workspace, clock: ManualClock, kill_at: Callable[..., threading.Event]
) -> None:
    kill_at(maze_server, task=1, step=0)
    batch = MazeBatch(workspace, maze_server.port, repeat=3)
    batch.wait_until_waiting()
    clock.now += 10.0
    batch.batch.command("pause")
    wait_until(lambda: batch.batch.paused)
    clock.now += 1000.0
    batch.batch.command("resume")
    wait_until(lambda: not batch.batch.paused)
    assert batch.batch.waiting is not None
    clock.now += 5.0
    wait_until(lambda: batch.progress[-1].waiting_s == 45)
    maze_server.start()
    assert batch.result().outcomes == {"truncated": 2, "error": 1}


@pytest.mark.parametrize(("wait_s", "n_errors"), [(0.0, 3), (60.0, 1)], ids=["without a wait", "the last episode"])
def test_a_batch_goes_on_at_once_if_nothing_waits(
    maze_server: EnvServerProcess,
    workspace: Workspace,
    kill_at: Callable[..., threading.Event],
    wait_s: float,
    n_errors: int,
) -> None:
    kill_at(maze_server, task=1, step=0)
    result = MazeBatch(workspace, maze_server.port, repeat=1 + n_errors, wait_s=wait_s).result()
    assert (result.status, result.outcomes) == ("completed", {"truncated": 1, "error": n_errors})


@pytest.mark.parametrize("limits", [{"timeout_sec": 5.0}, {"max_duration_s": 3.0}], ids=["request", "episode"])
def test_a_server_that_hangs_is_awaited(
    limits: dict[str, Any], maze_server: EnvServerProcess, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def before_act(task_index: int, step_index: int) -> None:
        if (task_index, step_index) == (1, 1):
            maze_server.suspend()

    monkeypatch.setattr(HookedAgent, "before_act", staticmethod(before_act))
    batch = MazeBatch(workspace, maze_server.port, repeat=4, **limits)
    batch.wait_until_waiting()
    maze_server.resume()
    result = batch.result()
    assert (result.status, result.outcomes) == ("completed", {"truncated": 3, "error": 1})


def test_an_interrupt_during_the_cleanup_leaves_the_task_to_resume(
    maze_server: EnvServerProcess, workspace: Workspace
) -> None:
    def suspend_after_first(record: EpisodeRecord) -> None:
        if record.task_index == 0:
            maze_server.suspend()

    batch = MazeBatch(workspace, maze_server.port, repeat=2, timeout_sec=1, on_record=suspend_after_first)
    wait_until(lambda: bool(batch.progress))
    batch.batch.command("interrupt")
    result = batch.result()
    maze_server.resume()
    assert (result.status, result.outcomes) == ("interrupted", {"truncated": 1, "interrupted": 1})


def test_a_server_with_other_rules_does_not_end_the_wait(
    maze_server: EnvServerProcess, workspace: Workspace, clock: ManualClock, kill_at: Callable[..., threading.Event]
) -> None:
    kill_at(maze_server, task=1, step=0)
    batch = MazeBatch(workspace, maze_server.port, repeat=3)
    batch.wait_until_waiting()
    with EnvServerProcess("Maze", maze_server.port, "--compat"):
        wait_until(lambda: "another server replies there: " in (batch.batch.waiting or Waiting("", 0)).server)
        clock.now += 61.0
        result = batch.result()
    assert "compat rules" in (result.interruption or "")
    assert result.outcomes == {"truncated": 1, "error": 1}


GREETING = http_response('"This is environment lmrl-gym."')


@pytest.mark.parametrize("reply", [http_response("no", 500, "text/plain"), b"SSH-2.0-OpenSSH\r\n"])
def test_a_server_that_replies_with_errors_is_not_gone(workspace: Workspace, reply: bytes) -> None:
    async def answer(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        is_first = len(rude.requests) == 1
        writer.write(GREETING if is_first else reply)
        if not is_first:
            writer.close()

    with run_rude_server() as rude:
        rude.reset(answer)
        batch = MazeBatch(workspace, int(rude.url.rpartition(":")[2]), repeat=3)
        result = batch.result()
    assert (result.status, result.outcomes) == ("completed", {"error": 3})
    assert [request.path for request in rude.requests].count("/maze/create") == 3
    assert all(item.waiting_s is None for item in batch.progress)


def test_a_task_whose_reset_ends_its_server_each_time_is_an_error(workspace: Workspace) -> None:
    async def answer(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if request.path == "/":
            writer.write(GREETING)
        else:
            writer.close()

    with run_rude_server() as rude:
        rude.reset(answer)
        result = MazeBatch(workspace, int(rude.url.rpartition(":")[2]), repeat=2).result()
    assert (result.status, result.outcomes) == ("completed", {"error": 2})
    creates = [request.path for request in rude.requests].count("/maze/create")
    assert creates == 2 * (1 + MAX_PUT_BACKS)
    check_stored(workspace, result)
