from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.inference.chat_format import MAX_TEXT, MAX_TOOL_CALLS
from runner.inference.errors import EndpointFailure
from runner.inference.sse import MAX_EVENT, EventParser, StreamAccumulator
from runner.types import StreamDelta
from tests.support.rude_model import FINISH_CHUNK, USAGE, delta_chunk

LINES = st.sampled_from([b"data: a", b"data:b", b"data:", b": comment", b"event: x", b"", b"id: 1", "data: é".encode()])


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@settings(max_examples=80, deadline=None)
@given(
    lines=st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"])), max_size=12),
    places=st.lists(st.integers(0, 200), max_size=8),
)
def test_events_are_the_same_however_the_bytes_are_cut(lines: list[tuple[bytes, bytes]], places: list[int]) -> None:
    data = b"".join(line + end for line, end in lines) + b"\n\n"
    whole, pieces = EventParser(), EventParser()
    assert [event for piece in cut(data, places) for event in pieces.feed(piece)] == whole.feed(data)


def test_data_of_several_lines_is_one_event_and_other_fields_are_none() -> None:
    parser = EventParser()
    told = parser.feed(b"\xef\xbb\xbfdata: one\ndata:two\nevent: x\n\n: hello\n\nid: 4\n\ndata: three\r\n\r\n")
    assert told == [b"one\ntwo", b"three"]


def test_an_event_that_is_not_ended_is_no_event() -> None:
    assert EventParser().feed(b"data: one\n") == []


@pytest.mark.parametrize("part", [b"data: " + b"x" * (1 << 20), b"data: " + b"x" * (1 << 20) + b"\n"])
def test_an_event_without_end_is_not_kept_for_ever(part: bytes) -> None:
    parser = EventParser()
    with pytest.raises(EndpointFailure, match="larger than"):
        for _ in range(MAX_EVENT // len(part) + 2):
            parser.feed(part)


def assembled(*data: object, told: list[StreamDelta] | None = None) -> StreamAccumulator:
    ticks = iter(range(1000))
    assembly = StreamAccumulator(lambda: float(next(ticks)), None if told is None else told.append)
    for chunk in data:
        assembly.add(chunk if isinstance(chunk, bytes) else json.dumps(chunk).encode())
    return assembly


def test_pieces_add_up_and_are_told_as_they_come() -> None:
    told: list[StreamDelta] = []
    pieces = [
        delta_chunk(role="assistant", content=""),
        delta_chunk(reasoning_content="hm"),
        delta_chunk(content="go "),
        delta_chunk(content="up"),
    ]
    reply = assembled(*pieces, FINISH_CHUNK, {"choices": [], "usage": USAGE}, b"[DONE]", told=told).result()
    assert (reply.content, reply.reasoning, reply.finish_reason, reply.model) == ("go up", "hm", "stop", "said-model")
    assert reply.ttft_s == 1.0
    assert [(piece.part, piece.text) for piece in told] == [("reasoning", "hm"), ("text", "go "), ("text", "up")]
    assert {(piece.n, piece.ttft_s) for piece in told} == {(1, 1.0)}
    assert reply.tokens is not None
    assert reply.tokens.total == 1200


def call(index: object = 0, id: object = None, name: object = None, arguments: object = None) -> dict[str, Any]:
    return delta_chunk(tool_calls=[{"index": index, "id": id, "function": {"name": name, "arguments": arguments}}])


def test_tool_calls_come_in_pieces() -> None:
    told: list[StreamDelta] = []
    reply = assembled(
        call(5, "a", "up", ""),
        call(5, arguments='{"n"'),
        call(7, None, "down", {"n": 2}),
        call(5, arguments=": 1}"),
        FINISH_CHUNK,
        told=told,
    ).result()
    assert [(piece.part, piece.call, piece.tool, piece.text) for piece in told] == [
        ("call", 0, "up", ""),
        ("call", 0, "up", '{"n"'),
        ("call", 1, "down", '{"n":2}'),
        ("call", 0, "up", ": 1}"),
    ]
    assert [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in reply.tool_calls] == [
        ("a", "up", '{"n": 1}'),
        ("call_1", "down", '{"n":2}'),
    ]
    assert reply.message()["content"] is None


def test_calls_without_an_index_begin_with_a_name() -> None:
    pieces = [
        call(None, "a", "up"),
        call(None, arguments="{}"),
        call(None, "b", "down"),
        call(None, arguments="[]"),
        FINISH_CHUNK,
    ]
    calls = assembled(*pieces).result().tool_calls
    assert [c["function"] for c in calls] == [{"name": "up", "arguments": "{}"}, {"name": "down", "arguments": "[]"}]


def test_calls_without_end_are_cut() -> None:
    assembly = assembled(*(call(number, name="up") for number in range(MAX_TOOL_CALLS + 5)), FINISH_CHUNK)
    assert len(assembly.result().tool_calls) == MAX_TOOL_CALLS


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        ([delta_chunk(content="go")], "in the middle"),
        ([FINISH_CHUNK], "empty"),
        ([b"[DONE]"], "empty"),
        ([delta_chunk(content="go"), b'{"choices": [{', FINISH_CHUNK], "not a JSON object"),
        ([delta_chunk(content="go"), b"null", FINISH_CHUNK], "not a JSON object"),
        ([delta_chunk(content="go"), {"error": {"message": "overloaded"}}], "overloaded"),
        ([delta_chunk(content="x" * (MAX_TEXT // 2 + 1))] * 2, "longer than"),
    ],
)
def test_what_is_no_answer(data: list[object], cause: str) -> None:
    with pytest.raises(EndpointFailure, match=cause):
        assembled(*data).result()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("stop"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "delta", "message", "content", "tool_calls", "function", "name", "arguments", "index"]
            )
            | st.sampled_from(["usage", "prompt_tokens", "error", "finish_reason", "id", "model", "text", "reasoning"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=80, deadline=None)
@given(st.lists(JSON.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=20), max_size=5))
def test_no_chunk_is_worse_than_a_failure(data: list[bytes]) -> None:
    assembly = StreamAccumulator(lambda: 0.0)
    try:
        for chunk in [*data, b"[DONE]"]:
            assembly.add(chunk)
        message = assembly.result().message()
    except EndpointFailure:
        return
    assert json.loads(json.dumps(message)) == message
