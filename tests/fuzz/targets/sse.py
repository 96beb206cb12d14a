"""A streamed model reply: server-sent events whose bytes arrive in pieces of any size."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable

from runner.inference.chat_format import ModelReply
from runner.inference.errors import EndpointFailure
from runner.inference.sse import EventParser, StreamAccumulator
from runner.types import StreamDelta
from runner.util.json_accessors import decode_json, encode_json
from tests.fuzz.oracles import outcome, same_outcome
from tests.fuzz.targets.chat_reply import check_reply

TOKENS = (
    b"data: ",
    b"data: [DONE]\n\n",
    b"\r\n\r\n",
    b"\r",
    b"\xef\xbb\xbf",
    b": comment\n",
    b'{"choices":[{"delta":{"content":"a"}}]}',
    b'"tool_calls":[{"index":0,"function":{"name":"f","arguments":"{"}}]',
    b'"finish_reason":"stop"',
    b'"index":null,',
    b'"id":"c",',
    b'"extra_content":{"a":[1]},',
    b"event: error\n",
    b"error: x\n",
    b"data: null\n",
    b"\n\n",
    b'"usage":{"completion_tokens":1}',
)


def check(data: bytes) -> None:
    assert EventParser().feed(data) == _events(data)
    whole, deltas = _read([data])
    seed = random.Random(data)
    cuts = sorted(seed.randrange(len(data) + 1) for _ in range(min(len(data), 4)))
    pieces = [data[start:stop] for start, stop in zip((0, *cuts), (*cuts, len(data)), strict=True)]
    for chunks in (pieces, [bytes([byte]) for byte in data]):
        reply, streamed = _read(chunks)
        assert same_outcome(whole, reply), (whole, reply)
        assert streamed == deltas
    if isinstance(whole, ModelReply):
        check_reply(whole)
        restarts = [number for number, delta in enumerate(deltas) if delta.restart]
        _check_shown(whole, deltas[restarts[-1] + 1 if restarts else 0 :])


def _check_shown(reply: ModelReply, deltas: list[StreamDelta]) -> None:
    assert "".join(delta.text for delta in deltas if delta.part == "text") == reply.content
    assert "".join(delta.text for delta in deltas if delta.part == "reasoning") == reply.reasoning
    for number, call in enumerate(reply.tool_calls):
        shown = [delta for delta in deltas if (delta.part, delta.call) == ("call", number)]
        assert {delta.tool for delta in shown} == {call["function"]["name"]}
        assert ("".join(delta.text for delta in shown) or "{}") == call["function"]["arguments"]


def _events(data: bytes) -> list[bytes]:
    """Return the data of the complete events, by the words of the HTML standard and of ``EventParser``."""
    if data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
        return []
    events: list[bytes] = []
    parts: list[bytes] = []
    kind = b""
    for line in re.split(rb"\r\n|\n|\r", data.removeprefix(b"\xef\xbb\xbf"))[:-1]:
        name, _, value = line.partition(b":")
        value = value[1:] if value[:1] == b" " else value
        ends = not line or (name == b"data" and len(parts) == 1 and isinstance(_json_object(parts[0]), dict))
        if ends:
            if parts:
                events.append(_as_error(b"\n".join(parts)) if kind == b"error" else b"\n".join(parts))
            parts, kind = [], b""
        if name == b"data":
            parts.append(value)
        elif name == b"event":
            kind = value.strip()
        elif name == b"error" and value.strip():
            events.append(_as_error(value.strip()))
    return events


def _json_object(data: bytes) -> object:
    return decode_json(data) if data[-1:] == b"}" else None


def _as_error(data: bytes) -> bytes:
    error = decode_json(data)
    if isinstance(error, dict) and error.get("error"):
        return data
    return encode_json({"error": error if isinstance(error, dict) else data.decode("utf-8", "replace")})


def _read(chunks: Iterable[bytes]) -> tuple[ModelReply | Exception, list[StreamDelta]]:
    deltas: list[StreamDelta] = []
    accumulator, parser = StreamAccumulator(lambda: 1.0, deltas.append), EventParser()

    def read() -> ModelReply:
        for chunk in chunks:
            for event in parser.feed(chunk):
                accumulator.add(event)
        for event in parser.finish():
            accumulator.add(event)
        return accumulator.result()

    return outcome(read, EndpointFailure), deltas
