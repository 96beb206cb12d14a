"""Control requests, the batch queue, episode files in chunks, and control of what waits and what has ended."""

from __future__ import annotations

import base64
import hashlib
import inspect
import json
import logging
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ulid import ULID

from runner.batch import spec as batch_spec
from runner.batch.spec import BatchSpec
from runner.batch.workspace import Workspace
from runner.events.control import ERRORS
from runner.events.live import QueueChanged
from runner.node import batch_queue, handlers
from runner.node.batch_queue import BatchQueue, QueuedBatch, derived_batch_id
from runner.node.file_chunks import CHUNK_BYTES
from runner.node.handlers import ControlHandler
from runner.store.pruning import archive_episodes
from runner.types import Budget, Outcome
from runner.util.clock import Clock, is_ulid
from runner.util.files import read_file
from tests.support.episodes import RecordedEpisode, make_step
from tests.unit.node.conftest import HOSTILE, Send

LIMIT = 200


def test_every_error_code_is_documented() -> None:
    source = inspect.getsource(handlers)
    sent = set(re.findall(r'(?:RequestRejected\(\s*|code=)"([a-z_]+)"', source))
    assert sent == set(ERRORS)


@given(env=st.text(), stamp=st.integers(0, 2**48 - 1))
def test_a_derived_batch_id_is_a_deterministic_ulid_of_the_same_time(env: str, stamp: int) -> None:
    battery_id = str(ULID.from_bytes(stamp.to_bytes(6, "big") + bytes(10)))
    derived = derived_batch_id(battery_id, env)
    assert is_ulid(derived)
    assert derived[:10] == battery_id[:10]
    assert derived == derived_batch_id(battery_id, env)
    assert derived != derived_batch_id(battery_id, env + "x")


def test_a_reopened_queue_has_its_batches_as_interrupted(tmp_path: Path) -> None:
    queue = BatchQueue(tmp_path)
    batches = [
        QueuedBatch(batch_id=str(ULID()), battery_id=None, spec=BatchSpec(env="Maze", agent="oracle", repeat=n))
        for n in (1, 2)
    ]
    assert [queue.add(batch) for batch in (*batches, batches[0])] == [True, True, False]
    assert queue.set_status(batches[0].batch_id, "running", only=("queued",))
    assert not queue.set_status(batches[0].batch_id, "cancelled", only=("queued", "interrupted"))
    reopened = BatchQueue(tmp_path)
    assert reopened.with_status("queued") == []
    assert [batch.status for batch in reopened.listed(n_waiting=10, n_others=10)] == ["interrupted", "interrupted"]
    assert reopened.get(batches[1].batch_id) == msgspec.structs.replace(batches[1], status="interrupted", place=2)


def order(queue: BatchQueue) -> list[str]:
    return [batch.batch_id for batch in queue.with_status("queued")]


def test_batches_are_added_atomically(tmp_path: Path) -> None:
    queue = BatchQueue(tmp_path)
    one, two, three = (
        QueuedBatch(batch_id=str(ULID()), battery_id=None, spec=BatchSpec(env="Maze", agent="oracle", repeat=n))
        for n in (1, 2, 3)
    )
    assert queue.add(one)
    assert not queue.add(two, one, three)
    assert order(queue) == [one.batch_id]
    assert queue.add(two, three)
    assert order(queue) == [one.batch_id, two.batch_id, three.batch_id]


def record_episode(workspace: Workspace, size: int) -> Path:
    recording = RecordedEpisode(workspace.store, workspace.index)
    recording.start()
    recording.play(make_step(0, observation=[{"role": "user", "content": "x" * size}]))
    recording.end()
    return recording.file


def test_a_large_episode_is_sent_completely_in_chunks(
    workspace: Workspace, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = record_episode(workspace, 3 << 20)
    content = path.read_bytes()
    assert len(content) > 3 << 20
    reads: list[Path] = []

    def counted(path: Path) -> bytes:
        reads.append(path)
        return read_file(path)

    monkeypatch.setattr("runner.node.file_chunks.read_file", counted)
    received = b""
    while True:
        chunk = send("episode", episode_id=path.stem, offset=len(received))["result"]
        assert (chunk["total"], chunk["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
        part = base64.b64decode(chunk["data"])
        assert len(part) <= CHUNK_BYTES
        received += part
        if not part:
            break
    assert received == content
    assert reads == [path], "the whole file was read more than once"


def test_a_changed_file_is_hashed_again_and_a_deleted_file_is_rejected(workspace: Workspace, send: Send) -> None:
    path = record_episode(workspace, 10)
    send("episode", episode_id=path.stem)
    path.write_bytes(b"another")
    chunk = send("episode", episode_id=path.stem, offset=2)["result"]
    assert (chunk["total"], chunk["sha256"]) == (7, hashlib.sha256(b"another").hexdigest())
    assert base64.b64decode(chunk["data"]) == b"other"
    for offset in (7, 2**53):
        assert send("episode", episode_id=path.stem, offset=offset)["result"]["data"] == ""
    path.unlink()
    assert "cannot be read" in send("episode", episode_id=path.stem)["error"]["message"]


def test_what_is_archived_or_unknown_is_said(workspace: Workspace, send: Send) -> None:
    path = record_episode(workspace, 1)
    archive_episodes(workspace.store, workspace.index, path.parent.name, [path.stem])
    message = send("episode", episode_id=path.stem)["error"]["message"]
    assert f"agentgym-tui open {path.with_name('archive.zip')}" in message
    assert "this node has no episode" in send("episode", episode_id=str(ULID()))["error"]["message"]


BATCH = str(ULID())


QUOTING: list[tuple[str, dict[str, object]]] = [
    ("start", {"batch_id": "TEXT", "envs": ["Maze"]}),
    ("start", {"batch_id": BATCH, "envs": ["TEXT"]}),
    ("start", {"batch_id": BATCH, "envs": ["Maze"], "agent": "TEXT"}),
    ("start", {"batch_id": BATCH, "envs": ["Maze"], "model": "TEXT"}),
    ("start", {"batch_id": BATCH, "envs": ["Maze"], "TEXT": 1}),
    ("cancel", {"batch_id": "TEXT"}),
    ("pause", {"episode_id": "TEXT"}),
    ("episode", {"episode_id": "TEXT"}),
    ("TEXT", {}),
    ("health", {}),
]


@pytest.mark.parametrize("text", [HOSTILE, "x" * 30_000, HOSTILE * 1000], ids=["hostile", "large", "both"])
def test_quoted_text_in_errors_is_short_and_printable(send: Send, text: str) -> None:
    for op, args in QUOTING:
        filled = json.loads(json.dumps(args).replace("TEXT", json.dumps(text)[1:-1]))
        message = send(op.replace("TEXT", text), **filled)["error"]["message"]
        assert message and len(message) <= LIMIT and message.isprintable(), (op, args)


@pytest.mark.parametrize("request_id", ["x" * (LIMIT + 1), HOSTILE, "a\tb"])
def test_a_request_id_that_cannot_be_echoed_is_rejected(send: Send, request_id: str) -> None:
    reply = send("list", request_id)
    assert (reply["ok"], reply["error"]["code"]) == (False, "bad_request")
    assert len(reply["id"]) <= LIMIT
    assert reply["id"].isprintable()
    assert send("list", "y" * LIMIT)["id"] == "y" * LIMIT


@pytest.mark.parametrize(
    ("env", "message", "hint"),
    [
        ("SciWorld", "SciWorld is played only on a server", "- {name: SciWorld, transport: http, port: 8000}"),
        ("os:system", "'os:system' is not in the profile", "the reply to list names its environments"),
        ("Mase", "There is no environment named 'Mase'", "Did you mean Maze? Embedded environments: ALFWorld"),
    ],
)
def test_a_start_of_an_unplayable_environment_is_answered_with_what_works(
    send: Send, env: str, message: str, hint: str
) -> None:
    error = send("start", batch_id=str(ULID()), envs=[env], agent="random")["error"]
    assert error["code"] == "refused"
    assert error["message"].startswith(message)
    assert hint in error["hint"]


@pytest.mark.parametrize("resume", [True, False])
def test_a_known_batch_id_is_accepted_only_with_the_same_request(send: Send, resume: bool) -> None:
    request = {"batch_id": str(ULID()), "envs": ["Maze"], "agent": "oracle", "repeat": 2}
    started = send("start", **request)["result"]
    assert send("start", **{**request, "envs": ["maze"], "agent": "Oracle"})["result"] == started
    others = [("envs", ["Wordle"]), ("envs", ["Maze", "Wordle"]), ("agent", "random"), ("repeat", 3), ("max_rounds", 2)]
    for name, value in others:
        error = send("start", **{**request, name: value, "resume": resume})["error"]
        assert (error["code"], error["hint"]) == ("refused", "use a new batch_id for a different request")
        assert f"differs in {name}" in error["message"]


def test_a_known_batch_id_is_accepted_only_with_the_same_tasks(send: Send) -> None:
    request = {"batch_id": str(ULID()), "envs": ["Maze"], "agent": "oracle", "tasks": {"Maze": [3, 1]}}
    started = send("start", **request)["result"]
    assert send("start", **request)["result"] == started
    error = send("start", **{**request, "tasks": {"Maze": [3, 2]}})["error"]
    assert (error["code"], "differs in tasks" in error["message"]) == ("refused", True)


@pytest.mark.parametrize("budget", [{"tokens": 0}, {"cost": -1.0}, {"errors_in_a_row": 10**40}, {"time": 1}, 5])
def test_an_invalid_budget_is_a_bad_request(send: Send, budget: object) -> None:
    error = send("start", batch_id=str(ULID()), envs=["Maze"], agent="oracle", budget=budget)["error"]
    assert (error["code"], "$.budget" in error["message"]) == ("bad_request", True)


def test_an_interrupted_batch_may_resume_with_another_budget_concurrency_and_other_workers(
    handler: ControlHandler, send: Send
) -> None:
    request: dict[str, Any] = {"batch_id": str(ULID()), "envs": ["Maze"], "agent": "oracle"}
    request |= {"repeat": 2, "concurrency": 8, "budget": {"tokens": 5}}
    (started,) = send("start", **request)["result"]
    assert (started["concurrency"], started["workers"], started["warning"]) == (8, None, None)
    budget = {"tokens": 9, "errors_in_a_row": 2}
    changed = {**request, "concurrency": 3, "workers": 2, "budget": budget, "resume": True}
    refused = send("start", **changed)["error"]  # it is not interrupted
    assert "differs in concurrency, workers, budget" in refused["message"]
    handler.queue.set_status(request["batch_id"], "interrupted")
    refused = send("start", **{**changed, "concurrency": 257})["error"]
    assert "concurrency is 257; a batch plays at most 256 episodes at a time" in refused["message"]
    assert "differs in repeat" in send("start", **{**changed, "repeat": 3})["error"]["message"]
    for _ in range(2):  # a repeated request has no effect
        (resumed,) = send("start", **changed)["result"]
        assert (resumed["status"], resumed["concurrency"], resumed["workers"]) == ("queued", 3, 2)
    listed, queued = send("list")["result"]["batches"], handler.queue.get(request["batch_id"])
    assert [batch["workers"] for batch in listed] == [2]
    assert queued is not None and queued.spec.budget == Budget(tokens=9, errors_in_a_row=2)
    invalid = send("start", **{**request, "batch_id": str(ULID()), "workers": "slurm"})["error"]
    assert (invalid["code"], "$.workers" in invalid["message"]) == ("bad_request", True)


@pytest.mark.parametrize(("limit", "warning"), [(256, "concurrency lowered from 200 to 32: the limit"), (20_000, None)])
def test_a_concurrency_that_does_not_fit_is_named_in_the_reply(
    send: Send, monkeypatch: pytest.MonkeyPatch, limit: int, warning: str | None
) -> None:
    monkeypatch.setattr(batch_spec, "open_file_limit", lambda: limit)
    request = {"batch_id": str(ULID()), "envs": ["Maze"], "agent": "oracle", "repeat": 200}
    request |= {"concurrency": 200, "workers": 0}
    (started,) = send("start", **request)["result"]
    assert started["concurrency"] == 200
    assert (started["warning"] or "").startswith(warning or "")
    assert (started["warning"] is None) == (warning is None)
    monkeypatch.setattr(batch_spec, "open_file_limit", lambda: 64)
    refused = send("start", **{**request, "batch_id": str(ULID())})["error"]
    assert "No episode of Maze fits the limit of 64 open files" in refused["message"]


def test_finished_episodes_of_an_interrupted_batch_are_counted_from_their_files(
    workspace: Workspace, handler: ControlHandler, send: Send
) -> None:
    batch_id = str(ULID())
    for outcome in (Outcome.SUCCESS, Outcome.FAILURE, Outcome.INTERRUPTED):
        recording = RecordedEpisode(workspace.store, workspace.index, batch_id=batch_id)
        recording.start()
        recording.end(outcome=outcome)
    send("start", batch_id=batch_id, envs=["Maze"], agent="oracle", repeat=5)
    handler.queue.set_status(batch_id, "interrupted")
    (listed,) = send("list")["result"]["batches"]
    assert (listed["status"], listed["n_done"], listed["n_planned"]) == ("interrupted", 2, 5)


def test_an_internal_error_is_answered_and_logged(send: Send, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "runner"):
        reply = send("health")
    assert (reply["id"], reply["error"]["code"]) == ("1", "internal")
    assert "RuntimeError: no ␛[2J" in reply["error"]["message"]
    assert "answering a request failed: RuntimeError" in caplog.text
    assert send("list")["ok"]


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
