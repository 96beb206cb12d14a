"""Control of what waits and what has ended: batches are moved in the queue, and played again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from ulid import ULID

from runner.batch.spec import BatchSpec
from runner.batch.workspace import Workspace
from runner.events.live import QueueChanged
from runner.node import batch_queue, handlers
from runner.node.batch_queue import BatchQueue, QueuedBatch, derived_batch_id
from runner.node.handlers import ControlHandler
from runner.types import Outcome
from runner.util.clock import Clock
from tests.support.episodes import RecordedEpisode
from tests.unit.node.conftest import Send


def start(send: Send, **args: object) -> str:
    batch_id = str(ULID())
    (state,) = send("start", batch_id=batch_id, envs=["Maze"], agent="oracle", **args)["result"]
    assert state["status"] == "queued"
    return batch_id


def waiting_ids(handler: ControlHandler) -> list[str]:
    return [batch.batch_id for batch in handler.queue.with_status("queued")]


@pytest.mark.parametrize(("to", "order"), [(0, "cabd"), (1, "acbd"), (2, "abcd"), (3, "abdc"), (1_000_000, "abdc")])
def test_a_waiting_batch_moves_to_a_place_and_a_repeated_request_has_no_effect(
    handler: ControlHandler, send: Send, to: int, order: str
) -> None:
    ids = {name: start(send) for name in "abcd"}
    for _ in range(2):
        assert send("move", batch_id=ids["c"], to=to)["ok"]
        assert waiting_ids(handler) == [ids[name] for name in order]


def test_only_waiting_batches_move(handler: ControlHandler, send: Send) -> None:
    ids = [start(send) for _ in range(3)]
    handler.queue.set_status(ids[0], "running")
    assert send("move", batch_id=ids[2], to=0)["ok"]
    assert [batch.batch_id for batch in handler.queue.listed(n_waiting=5, n_others=5)] == [ids[1], ids[2], ids[0]]
    assert send("move", batch_id=ids[0], to=0)["error"]["code"] == "not_queued"
    assert send("move", batch_id=str(ULID()), to=0)["error"]["code"] == "not_found"
    assert send("move", batch_id=ids[1], to=-1)["error"]["code"] == "bad_request"


def test_the_order_survives_a_restart(tmp_path: Path) -> None:
    queue = BatchQueue(tmp_path)
    ids = [str(ULID()) for _ in range(4)]
    battery = str(ULID())
    for number, batch_id in enumerate(ids):
        spec = BatchSpec(env="Maze", agent="oracle")
        queue.add(QueuedBatch(batch_id=batch_id, battery_id=battery if number % 2 else None, spec=spec))
    assert queue.move({ids[1], ids[3]}, 1)
    moved = [ids[0], ids[1], ids[3], ids[2]]
    assert [batch.batch_id for batch in queue.with_status("queued")] == moved
    reopened = BatchQueue(tmp_path)
    assert reopened.notice is None
    assert [batch.batch_id for batch in reopened.with_status("interrupted")] == moved


def test_paused_batches_wait_on_after_a_restart_and_leave_the_node_idle(tmp_path: Path) -> None:
    queue = BatchQueue(tmp_path)
    held, other, ended, played = (str(ULID()) for _ in range(4))
    for batch_id in (held, other, ended, played):
        queue.add(QueuedBatch(batch_id=batch_id, battery_id=None, spec=BatchSpec(env="Maze", agent="oracle")))
    assert all(map(queue.hold, (held, ended, played)))
    queue.set_status(ended, "cancelled")
    queue.set_status(played, "running")
    for _ in range(2):
        reopened = BatchQueue(tmp_path)
        assert [batch.batch_id for batch in reopened.with_status("queued")] == [held]
        assert [batch.batch_id for batch in reopened.with_status("interrupted")] == [other, played]
        assert reopened.ready() == []
    released = BatchQueue(tmp_path)
    assert [released.hold(held, held=False) for _ in range(2)] == [True, False]
    assert [batch.batch_id for batch in released.ready()] == [held]


def test_all_episodes_of_a_batch_are_played_again_in_a_new_one(handler: ControlHandler, send: Send) -> None:
    old, new = start(send, repeat=3, attempts=2, seed=5, budget={"tokens": 7}), str(ULID())
    handler.queue.set_status(old, "completed")
    for _ in range(2):
        (state,) = send("replay", batch_id=old, new_batch_id=new)["result"]
        assert (state["batch_id"], state["status"], state["n_planned"]) == (new, "queued", 6)
    first, again = handler.queue.get(old), handler.queue.get(new)
    assert first is not None
    assert again is not None
    assert first.spec == again.spec
    (chosen,) = send("replay", batch_id=old, only="all")["result"]
    assert chosen["batch_id"] not in (old, new)


def test_only_what_ended_with_an_error_is_played_again(
    workspace: Workspace, handler: ControlHandler, send: Send
) -> None:
    old = start(send, repeat=3, attempts=2, seed=5)
    outcomes = {(0, 1): Outcome.ERROR, (1, 0): Outcome.SUCCESS, (2, 0): Outcome.ERROR, (2, 1): Outcome.INTERRUPTED}
    for (task_index, attempt), outcome in outcomes.items():
        fields: dict[str, Any] = {"batch_id": old, "task_index": task_index, "attempt": attempt}
        recording = RecordedEpisode(workspace.store, workspace.index, **fields)
        recording.start()
        recording.end(outcome=outcome)
    (state,) = send("replay", batch_id=old, only="errors")["result"]
    queued = handler.queue.get(state["batch_id"])
    assert queued is not None
    assert state["n_planned"] == 2
    assert [(each.task_index, each.attempt, each.seed) for each in queued.spec.plan()] == [(0, 1, 6), (2, 0, 5)]


def test_a_replay_is_refused_with_its_reason(handler: ControlHandler, send: Send) -> None:
    old = start(send)
    codes = {
        "nothing_left": {"batch_id": old, "only": "errors"},
        "not_found": {"batch_id": str(ULID())},
        "bad_request": {"batch_id": old, "new_batch_id": "7"},
    }
    for code, args in codes.items():
        assert send("replay", **args)["error"]["code"] == code
    assert waiting_ids(handler) == [old]


def test_a_battery_is_played_again_as_a_battery(handler: ControlHandler, send: Send) -> None:
    battery, new = str(ULID()), str(ULID())
    for env in ("Maze", "Wordle"):
        spec = BatchSpec(env=env, agent="oracle")
        handler.queue.add(QueuedBatch(batch_id=derived_batch_id(battery, env), battery_id=battery, spec=spec))
    states = send("replay", batch_id=battery, new_batch_id=new)["result"]
    assert [(state["env"], state["battery_id"]) for state in states] == [("Maze", new), ("Wordle", new)]
    assert send("replay", batch_id=battery, new_batch_id=new)["result"] == states


def test_each_change_of_the_queue_is_reported(
    handler: ControlHandler, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    items: list[QueueChanged] = []
    monkeypatch.setattr(batch_queue, "MAX_WAITING", 2)
    handler.queue.report_to(items.append, Clock())
    ids = [start(send, repeat=number) for number in (1, 2, 3)]
    send("move", batch_id=ids[2], to=0)
    send("cancel", batch_id=ids[0])
    described = [([waiting.batch_id for waiting in item.batches], item.n_waiting) for item in items]
    assert described == [
        (ids[:1], 1), (ids[:2], 2), (ids[:2], 3), ([ids[2], ids[0]], 3), ([ids[2], ids[1]], 2)
    ]  # fmt: skip
    first = items[-1].batches[0]
    assert (first.env, first.agent, first.n_planned) == ("Maze", "oracle", 3)
    assert msgspec.json.decode(msgspec.json.encode(items[-1]), type=QueueChanged) == items[-1]


def test_resume_queues_an_interrupted_batch_again(handler: ControlHandler, send: Send) -> None:
    batch_id = start(send, repeat=2)
    assert send("resume", batch_id=batch_id)["error"]["code"] == "not_running"
    handler.queue.set_status(batch_id, "interrupted")
    assert send("resume", batch_id=batch_id)["ok"]
    assert waiting_ids(handler) == [batch_id]


def test_a_waiting_batch_is_paused_and_resumed(
    handler: ControlHandler, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    items: list[QueueChanged] = []
    handler.queue.report_to(items.append, Clock())
    ids = [start(send) for _ in range(2)]
    for _ in range(2):
        assert send("pause", batch_id=ids[0])["ok"]
        assert [batch.batch_id for batch in handler.queue.ready()] == ids[1:]
        assert [(each["status"], each["paused"]) for each in send("list")["result"]["batches"]] == [
            ("queued", False),
            ("queued", True),
        ]
    assert [waiting.paused for waiting in items[-1].batches] == [True, False]
    assert send("move", batch_id=ids[0], to=1)["ok"]
    assert send("resume", batch_id=ids[0])["ok"]
    assert [batch.batch_id for batch in handler.queue.ready()] == ids[::-1]
    assert [waiting.paused for waiting in items[-1].batches] == [False, False]
    assert send("resume", batch_id=ids[0])["error"]["code"] == "not_running"
    for ended in ("completed", "cancelled"):
        handler.queue.set_status(ids[0], ended)
        for op in ("pause", "resume", "step"):
            assert send(op, batch_id=ids[0])["error"]["code"] == "not_running", (ended, op)
    assert [batch.batch_id for batch in handler.queue.ready()] == ids[1:]


def test_a_long_queue_is_listed_from_its_front(
    handler: ControlHandler, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "MAX_LISTED_WAITING", 3)
    monkeypatch.setattr(handlers, "MAX_LISTED_OTHERS", 2)
    ids = [start(send) for _ in range(9)]
    handler.queue.set_status(ids[0], "completed")
    handler.queue.set_status(ids[1], "running")
    for ended in ids[2:4]:
        handler.queue.set_status(ended, "completed")
    assert send("move", batch_id=ids[8], to=0)["ok"]
    result = send("list")["result"]
    assert [batch["batch_id"] for batch in result["batches"]] == [ids[5], ids[4], ids[8], ids[3], ids[1]]
    assert result["n_waiting"] == 5


def test_a_command_for_everything_reaches_all_that_waits(handler: ControlHandler, send: Send) -> None:
    ids = [start(send) for _ in range(3)]
    assert send("pause", everything=True)["ok"]
    assert handler.queue.ready() == []
    assert send("pause", everything=True)["error"]["code"] == "not_running"
    assert send("resume", everything=True)["ok"]
    assert [batch.batch_id for batch in handler.queue.ready()] == ids
    assert send("cancel", everything=True)["ok"]
    assert handler.queue.with_status("queued") == []
    assert send("cancel", everything=True)["error"]["code"] == "not_running"


@pytest.mark.parametrize("args", [{}, {"everything": True, "batch_id": str(ULID())}])
def test_a_command_has_exactly_one_target(send: Send, args: dict[str, object]) -> None:
    assert send("pause", **args)["error"]["code"] == "bad_request"


def test_a_changed_tag_is_reported_so_that_other_consoles_read_it(
    handler: ControlHandler, send: Send, workspace: Workspace
) -> None:
    recording = RecordedEpisode(workspace.store, workspace.index)
    recording.record_episode()
    reports: list[str] = []
    handler.queue.on_change = lambda: reports.append("queue")
    assert send("annotate", episode_id=recording.header.episode_id, add=["todo"])["ok"]
    assert reports == ["queue"]
