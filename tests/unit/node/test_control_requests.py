"""The parser of control requests, their limits, and the cap of the queue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ulid import ULID

from runner.batch.spec import BatchSpec
from runner.batch.workspace import Workspace
from runner.events.control import ERRORS, ControlReply, ControlRequest, Op
from runner.node import batch_queue
from runner.node.batch_queue import BatchQueue, QueuedBatch, QueueFull
from runner.node.handlers import (
    MAX_REQUEST_BYTES,
    ControlHandler,
    RequestRejected,
    find_problem,
    parse_request,
    reject,
    to_control_error,
)
from runner.util.display_text import one_line
from tests.support.episodes import RecordedEpisode
from tests.unit.node.conftest import Send

KEYS = st.sampled_from(["id", "op", "args", "envs", "batch_id", "x", ""]) | st.text(max_size=3)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)
OPS = get_args(Op)
REQUESTS = st.fixed_dictionaries(
    {}, optional={"id": JSON_VALUES | st.text(), "op": st.sampled_from(OPS) | JSON_VALUES, "args": JSON_VALUES}
)


def rejection_code(payload: bytes) -> str:
    problem = find_problem(payload)
    reply = msgspec.json.decode(reject(payload, problem), type=ControlReply)
    assert not reply.ok
    assert isinstance(reply.error, msgspec.Struct)
    assert reply.error.message
    assert len(reply.error.message) <= 200
    assert reply.error.message == one_line(reply.error.message)
    assert reply.id == one_line(reply.id)
    return reply.error.code


@given(st.binary(max_size=300) | JSON_VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_a_problem_or_a_request(payload: bytes) -> None:
    if find_problem(payload) is None:
        assert msgspec.json.decode(payload, type=ControlRequest).op in OPS
    else:
        assert rejection_code(payload) == "bad_request"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(request=REQUESTS)
def test_the_handler_rejects_each_request_with_a_problem_with_the_same_code(
    handler: ControlHandler, request: dict[str, Any]
) -> None:
    payload = json.dumps(request).encode()
    problem = find_problem(payload)
    reply = json.loads(handler.handle(payload))
    if problem is not None:
        assert (reply["ok"], reply["error"]["code"]) == (False, rejection_code(payload))
    else:
        assert reply["ok"] or reply["error"]["code"] in ERRORS


def to_json_with_twice(pairs: list[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in pairs) + "}"


@given(
    args=st.dictionaries(KEYS, JSON_VALUES, min_size=1, max_size=4),
    depth=st.integers(0, 5),
    twice=st.booleans(),
    data=st.data(),
)
def test_a_request_is_accepted_exactly_if_no_object_has_a_key_twice(
    args: dict[str, Any], depth: int, twice: bool, data: st.DataObject
) -> None:
    pairs = [(json.dumps(key), json.dumps(value)) for key, value in args.items()]
    if twice:
        key = data.draw(st.sampled_from(sorted(args)))
        escaped = "".join(f"\\u{ord(char):04x}" for char in key) if key.isascii() else json.dumps(key)[1:-1]
        pairs.insert(data.draw(st.integers(0, len(pairs))), (f'"{escaped}"', "0"))
    inner = "[" * depth + to_json_with_twice(pairs) + "]" * depth
    payload = f'{{"id": "1", "op": "list", "args": {{"deep": {inner}}}}}'.encode()
    if twice:
        with pytest.raises(RequestRejected, match="twice"):
            parse_request(payload)
    else:
        assert parse_request(payload).op == "list"


@pytest.mark.parametrize(
    "payload",
    [
        b'{"id": "1", "op": "shutdown", "op": "list"}',
        b'{"id": "1", "id": "1", "op": "list"}',
        b'{"id": "1", "op": "list", "\\u006fp": "list"}',
        b'{"id": "1", "op": "cancel", "args": {"batch_id": "a", "batch_id": "b"}}',
        b'{"id": "1", "op": "list", "unknown": [{"a": 1, "a": 1}]}',
    ],
)
def test_a_duplicate_key_is_rejected_with_its_name(handler: ControlHandler, payload: bytes) -> None:
    reply = json.loads(handler.handle(payload))
    assert (reply["id"], reply["error"]["code"]) == ("1", "bad_request")
    assert "twice" in reply["error"]["message"]
    assert reply["error"]["hint"] == "send each key once"
    assert rejection_code(payload) == "bad_request"  # in the event loop, so that a flood does not fill the queue


def test_a_long_request_is_left_to_the_worker_thread(handler: ControlHandler) -> None:
    keys = ", ".join(f'"{number}": 0' for number in range(5000))
    payload = f'{{"id": "1", "op": "list", "unknown": {{{keys}, "0": 0}}}}'.encode()
    assert find_problem(payload) is None
    assert "twice" in json.loads(handler.handle(payload))["error"]["message"]


@pytest.mark.parametrize(
    "payload",
    [
        b"x" * (MAX_REQUEST_BYTES + 1),
        b"[" * MAX_REQUEST_BYTES,
        b'{"id": "1", "op": "list", "x": ' + b"[" * 60_000,
        b'{"id": "1", "op": "list", "x": ' + b"9" * 60_000 + b"}",
        b'{"id": "1", "op": "list", "x": 1e999999}',
        b"\xef\xbb\xbf{}",
        "{}".encode("utf-16"),
    ],
    ids=["large", "brackets", "nested", "digits", "exponent", "bom", "utf-16"],
)
def test_extreme_payloads_are_answered(handler: ControlHandler, payload: bytes) -> None:
    reply = json.loads(handler.handle(payload))
    assert reply["ok"] or reply["error"]["code"] == "bad_request"


def test_too_many_requests_are_rejected_with_a_hint() -> None:
    error = json.loads(reject(b'{"id": "7", "op": "list"}', None))
    assert (error["id"], error["error"]["code"]) == ("7", "busy")
    assert "send this request again" in error["error"]["hint"]


OUT_OF_RANGE: list[tuple[dict[str, object], str]] = [
    ({"max_duration_sec": 1e308}, "at most 1000000000 seconds"),
    ({"max_duration_sec": 1_000_000_001}, "at most 1000000000 seconds"),
    ({"max_duration_sec": 0}, "a positive number of seconds"),
    ({"max_duration_sec": -1}, "a positive number of seconds"),
    ({"max_rounds": 1_000_001}, "at most 1000000"),
    ({"max_rounds": 10**4000}, "at most 1000000"),
    ({"max_rounds": 0}, "at least one round"),
    ({"repeat": 10**4000}, "at most 1000000 episodes"),
    ({"repeat": 1_000_001}, "at most 1000000 episodes"),
    ({"attempts": 10**18}, "at most 1000000 episodes"),
    ({"repeat": 2000, "attempts": 2000}, "at most 1000000 episodes"),
    ({"repeat": -1, "attempts": -1}, "at least 1"),
    ({"concurrency": 257}, "at most 256 episodes at a time"),
    ({"concurrency": 10**4000}, "at most 256 episodes at a time"),
    ({"workers": 257}, "give 0 to 256 local processes"),
    ({"workers": -1}, "workers is -1; give 0 to 256 local processes"),
    ({"workers": 10**4000}, "workers is a number of 13288 bits; give 0 to 256"),
    ({"task_index": 2**62}, f"must be below {2**62}"),
    ({"task_index": -1}, "at least 0"),
    ({"seed": 10**4000}, f"must be below {2**62}"),
    ({"seed": -(2**62)}, f"must be below {2**62}"),
]


def test_a_number_out_of_range_is_rejected_with_its_bound(send: Send) -> None:
    for args, bound in OUT_OF_RANGE:
        error = send("start", batch_id=str(ULID()), envs=["Maze"], agent="oracle", **args)["error"]
        assert (error["code"], bound in error["message"]) == ("refused", True), (args, error)
    assert send("list")["result"]["batches"] == []


@pytest.mark.parametrize(
    ("op", "args"),
    [
        *(("episode", {"offset": offset}) for offset in (-1, 2**53 + 1, 10**4000)),
        *(("annotate", {"step": step, "remove": ["tag"]}) for step in (-1, 2**62, 10**4000)),
    ],
)
def test_a_step_or_an_offset_out_of_range_is_a_bad_request(
    workspace: Workspace, send: Send, op: str, args: dict[str, Any]
) -> None:
    episode = RecordedEpisode(workspace.store, workspace.index).record_episode()
    error = send(op, episode_id=episode.episode_id, **args)["error"]
    assert (error["code"], "`int`" in error["message"]) == ("bad_request", True), error


def test_the_largest_numbers_are_accepted(send: Send) -> None:
    largest = {
        "max_duration_sec": 1e9,
        "max_rounds": 1_000_000,
        "allow_longer": True,
        "repeat": 1000,
        "attempts": 1000,
        "concurrency": 256,
        "workers": 256,
        "task_index": 2**62 - 1,
        "seed": 2**62 - 1,
    }
    reply = send("start", batch_id=str(ULID()), envs=["Maze"], agent="oracle", **largest)
    assert reply["result"][0]["n_planned"] == 1_000_000


def test_too_many_environments_and_one_twice_are_rejected(send: Send) -> None:
    twice = send("start", batch_id=str(ULID()), envs=["Maze", "maze"], agent="oracle")["error"]
    assert twice["code"] == "bad_request"
    error = send("start", batch_id=str(ULID()), envs=["Maze"] * 201, agent="oracle")["error"]
    assert (error["code"], error["message"]) == (
        "bad_request",
        "the request is for 201 batches; one request starts at most 200",
    )


def test_a_full_queue_rejects_starts_and_resumes_until_a_batch_is_cancelled(
    handler: ControlHandler, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_queue, "MAX_QUEUED", 2)
    interrupted, *queued = ({"batch_id": str(ULID()), "envs": ["Maze"], "agent": "oracle"} for _ in range(4))
    send("start", **interrupted)
    handler.queue.set_status(str(interrupted["batch_id"]), "interrupted")
    assert [send("start", **request)["ok"] for request in queued] == [True, True, False]
    for request in (queued[2], {**interrupted, "resume": True}):
        error = send("start", **request)["error"]
        assert error["code"] == "queue_full"
        assert error["message"] == "the request makes 3 batches wait; this node queues at most 2"
        assert "cancel some" in error["hint"]
    assert send("start", **queued[0])["ok"], "a repeated request has no effect, so it is accepted"
    assert len(send("list")["result"]["batches"]) == 3
    send("cancel", batch_id=queued[0]["batch_id"])
    assert send("start", **{**interrupted, "resume": True})["result"][0]["status"] == "queued"


def test_a_battery_that_does_not_fit_into_the_queue_is_not_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_queue, "MAX_QUEUED", 2)
    batches = [QueuedBatch(batch_id=str(ULID()), battery_id="b", spec=BatchSpec(env="Maze")) for _ in range(3)]
    queue = BatchQueue(tmp_path)
    with pytest.raises(QueueFull, match="3 batches"):
        queue.add(*batches)
    assert queue.listed(n_waiting=10, n_others=10) == []
    assert to_control_error(QueueFull("full")).code == "queue_full"
