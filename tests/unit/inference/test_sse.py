"""Server-sent events, and replies accumulated from streamed chunks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runner.inference.chat_format import MAX_TEXT
from runner.inference.errors import EndpointFailure
from runner.inference.sse import MAX_EVENT, EventParser, StreamAccumulator
from runner.types import StreamDelta, Tokens
from tests.support.rude_model import FINISH_CHUNK, USAGE, chat_completion, delta_chunk, sse_event, streamed_answer


def test_several_data_lines_are_one_event_and_other_fields_are_ignored() -> None:
    parser = EventParser()
    events = parser.feed(b"\xef\xbb\xbfdata: one\ndata:two\nevent: x\n\n: hello\n\nid: 4\n\ndata: three\r\n\r\n")
    assert events == [b"one\ntwo", b"three"]


@pytest.mark.parametrize(
    ("rest", "events"),
    [
        (b"data: one\n", []),
        (b'data: {"a"', []),
        (b'data: {"a": 1}', [b'{"a": 1}']),
        (b'event: error\ndata: {"message": "e"}\r\n', [b'{"error":{"message":"e"}}']),
        (b"data: [DONE]", [b"[DONE]"]),
        (b": hi", []),
    ],
)
def test_the_end_of_a_stream_completes_only_an_event_whose_data_are_complete(rest: bytes, events: list[bytes]) -> None:
    parser = EventParser()
    assert parser.feed(b"data: 0\n\n" + rest) == [b"0"]
    assert parser.finish() == events


ERROR_FORMS = [
    b'error: {"code": 500, "message": "overloaded"}\n\n',
    b"error: overloaded\n\n",
    b'event: error\ndata: {"message": "overloaded"}\n\n',
    b'event: error\ndata: {"type": "error", "error": {"message": "overloaded"}}\n\n',
    b"data: overloaded\nevent:error\n\n",
    b'data: {"error": {"message": "overloaded"}}',
]


@pytest.mark.parametrize("start", [b"", sse_event(delta_chunk(content="go"))])
@pytest.mark.parametrize("error", ERROR_FORMS)
def test_the_cause_of_an_error_in_a_stream_is_shown(start: bytes, error: bytes) -> None:
    with pytest.raises(EndpointFailure, match=r"an error instead of an answer: overloaded$") as raised:
        read_stream(start + error)
    assert raised.value.reason == "server"


def read_stream(data: bytes) -> StreamAccumulator:
    parser, accumulator = EventParser(), StreamAccumulator(lambda: 0.0)
    for event in [*parser.feed(data), *parser.finish()]:
        accumulator.add(event)
    return accumulator


ANSWER = streamed_answer(["go ", "up"])


@pytest.mark.parametrize(
    "data",
    [
        b"\n\r\n\n" + ANSWER,
        b"\xef\xbb\xbf\n: hi\n\n" + ANSWER,
        b"\xef\xbb\xbf" + ANSWER,
        b"id: 1\nretry: 5\n" + ANSWER,
        b"event: message\n" + ANSWER,
        b": a comment that\nis wrapped: over\nlines\n\n" + ANSWER.replace(b"\n\n", b"\n: more\n\n: ..\n\n"),
        b"data: null\n\n" + ANSWER.replace(b"\n\n", b"\n\ndata: null\n\ndata:\n\n"),
        ANSWER.replace(b'"index": 0', b'"index": null'),
        ANSWER.replace(b'"index": 0, ', b""),
        ANSWER.replace(b"\n\n", b"\r\r"),
        ANSWER.replace(b"\n\n", b"\n"),
        ANSWER.replace(b"\n\n", b"\n") + b"\n",
        ANSWER.replace(b'"choices"', b'\ndata: "choices"'),
        ANSWER.replace(b"\n\n", b'\n\ndata: {"choices": [{"index": 1, "delta": {"content": "no"}}]}\n\n', 1),
        ANSWER.replace(b"data: [DONE]\n\n", sse_event(chat_completion({"content": "go up"}, usage=USAGE))),
        json.dumps(chat_completion({"content": "go up"}, usage=USAGE), indent=1).encode(),
        b"\xef\xbb\xbf\n" + json.dumps(chat_completion({"content": "go up"}, None, usage=USAGE)).encode(),
        ANSWER.removesuffix(b"data: [DONE]\n\n").replace(b"data: ", b""),
    ],
)
def test_an_answer_is_found_in_every_form_of_a_stream(data: bytes) -> None:
    reply = read_stream(data).result()
    assert (reply.content, reply.tokens) == ("go up", Tokens(1000, 200))


def test_a_whole_message_that_repeats_a_stream_adds_what_is_missing() -> None:
    calls = [{"id": "a", "function": {"name": "up", "arguments": "{}"}}]
    chunks = [delta_chunk(content="go", tool_calls=calls), delta_chunk(content=" up")]
    whole = chat_completion({"content": "go up", "reasoning": "hm", "tool_calls": calls})
    reply = accumulate(*chunks, whole).result()
    assert (reply.content, reply.reasoning, len(reply.tool_calls)) == ("go up", "hm", 1)


def test_arguments_that_are_replaced_are_shown_from_the_start() -> None:
    deltas: list[StreamDelta] = []
    chunks = [delta_chunk(reasoning="hm"), delta_chunk(content="go"), call_delta(0, "a", "up", '{"n":1}')]
    accumulate(*chunks, call_delta(0, arguments='{"n":2}'), FINISH_CHUNK, deltas=deltas).result()
    restart = next(number for number, delta in enumerate(deltas) if delta.restart)
    assert [(delta.part, delta.text) for delta in deltas[restart + 1 :]] == [
        ("reasoning", "hm"),
        ("text", "go"),
        ("call", '{"n":2}'),
    ]


@pytest.mark.parametrize("part", [b"data: " + b"x" * (1 << 20), b"data: " + b"x" * (1 << 20) + b"\n"])
def test_an_endless_event_is_rejected(part: bytes) -> None:
    parser = EventParser()
    with pytest.raises(EndpointFailure, match="larger than"):
        for _ in range(MAX_EVENT // len(part) + 2):
            parser.feed(part)


def accumulate(*data: object, deltas: list[StreamDelta] | None = None) -> StreamAccumulator:
    ticks = iter(range(1000))
    accumulator = StreamAccumulator(lambda: float(next(ticks)), None if deltas is None else deltas.append)
    for chunk in data:
        accumulator.add(chunk if isinstance(chunk, bytes) else json.dumps(chunk).encode())
    return accumulator


def test_deltas_accumulate_and_are_emitted_immediately() -> None:
    deltas: list[StreamDelta] = []
    chunks = [
        delta_chunk(role="assistant", content=""),
        delta_chunk(reasoning_content="hm"),
        delta_chunk(content="go "),
        delta_chunk(content="up"),
    ]
    reply = accumulate(*chunks, FINISH_CHUNK, {"choices": [], "usage": USAGE}, b"[DONE]", deltas=deltas).result()
    assert (reply.content, reply.reasoning, reply.finish_reason, reply.model) == ("go up", "hm", "stop", "served-model")
    assert reply.ttft_s == 1.0
    assert [(delta.part, delta.text) for delta in deltas] == [("reasoning", "hm"), ("text", "go "), ("text", "up")]
    assert {(delta.n, delta.ttft_s) for delta in deltas} == {(1, 1.0)}
    assert reply.tokens is not None
    assert reply.tokens.total == 1200


def call_delta(index: object = 0, id: object = None, name: object = None, arguments: object = None) -> dict[str, Any]:
    return delta_chunk(tool_calls=[{"index": index, "id": id, "function": {"name": name, "arguments": arguments}}])


def test_tool_calls_accumulate_from_deltas() -> None:
    deltas: list[StreamDelta] = []
    reply = accumulate(
        call_delta(5, "a", "up", ""),
        call_delta(5, arguments='{"n"'),
        call_delta(7, None, "down", {"n": 2}),
        call_delta(5, arguments=": 1}"),
        FINISH_CHUNK,
        deltas=deltas,
    ).result()
    assert [(delta.part, delta.call, delta.tool, delta.text) for delta in deltas] == [
        ("call", 0, "up", ""),
        ("call", 0, "up", '{"n"'),
        ("call", 1, "down", '{"n":2}'),
        ("call", 0, "up", ": 1}"),
    ]
    assert [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in reply.tool_calls] == [
        ("a", "up", '{"n": 1}'),
        ("call00001", "down", '{"n":2}'),
    ]
    assert reply.message()["content"] == ""


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        ([delta_chunk(content="go")], "in the middle"),
        ([b"[DONE]"], "empty"),
        ([delta_chunk(content="go"), b'{"choices": [{', FINISH_CHUNK], "not a JSON object"),
        ([delta_chunk(content="go"), b"[]", FINISH_CHUNK], "not a JSON object"),
        ([delta_chunk(content="go"), b"null"], "in the middle"),
        ([delta_chunk(content="go"), {"error": {"message": "overloaded"}}], "overloaded"),
        ([delta_chunk(content="x" * (MAX_TEXT // 2 + 1))] * 2, "longer than"),
    ],
)
def test_incomplete_and_invalid_streams_are_failures(data: list[object], cause: str) -> None:
    with pytest.raises(EndpointFailure, match=cause):
        accumulate(*data).result()


def test_a_stream_that_ends_without_a_word_is_an_answer() -> None:
    assert accumulate(FINISH_CHUNK).result().is_silent


def test_what_only_the_server_understands_is_kept_and_its_lists_are_put_together() -> None:
    details = [
        {"type": "reasoning.text", "text": "hm", "index": 0, "format": "f"},
        {"type": "reasoning.text", "text": ", yes", "index": 0, "signature": None},
        {"type": "reasoning.text", "text": "", "index": 0, "signature": "c2ln"},
        {"type": "reasoning.encrypted", "data": "AAA", "index": 1},
    ]
    chunks = [delta_chunk(reasoning=each.get("text"), reasoning_details=[each]) for each in details]
    reply = accumulate(*chunks, delta_chunk(content="go", annotations=[]), FINISH_CHUNK).result()
    assert reply.extra == {
        "reasoning_details": [
            {"type": "reasoning.text", "text": "hm, yes", "index": 0, "format": "f", "signature": "c2ln"},
            {"type": "reasoning.encrypted", "data": "AAA", "index": 1},
        ]
    }
    assert (reply.reasoning, reply.reasoning_field) == ("hm, yes", "")  # it goes back in the details


def test_thoughts_among_the_parts_of_a_text_are_reasoning() -> None:
    thoughts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "h"}]},
        {"type": "thinking", "thinking": [{"type": "text", "text": "m"}]},
    ]
    reply = accumulate(
        *(delta_chunk(content=[each]) for each in thoughts), delta_chunk(content="go"), FINISH_CHUNK
    ).result()
    assert (reply.content, reply.reasoning) == ("go", "hm")
    assert reply.message()["content_parts"] == [  # type: ignore[typeddict-item]
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "go"},
    ]


def test_a_streamed_refusal_is_the_cause_of_an_answer_without_an_action() -> None:
    reply = accumulate(
        delta_chunk(content="", refusal="I cannot "), delta_chunk(refusal="help."), FINISH_CHUNK
    ).result()
    assert reply.cause_of_silence == "the model refused: I cannot help."
