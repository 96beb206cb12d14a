"""A streamed model reply: server-sent events whose bytes arrive in pieces of any size."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable

from runner.inference.chat_format import ModelReply
from runner.inference.errors import EndpointFailure
from runner.inference.sse import EventParser, StreamAccumulator
from runner.types import StreamDelta
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
        assert "".join(delta.text for delta in deltas if delta.part == "text") == whole.content
        assert "".join(delta.text for delta in deltas if delta.part == "reasoning") == whole.reasoning


def _events(data: bytes) -> list[bytes]:
    """Return the data of the complete events, by the words of the HTML standard."""
    events: list[bytes] = []
    parts: list[bytes] = []
    for line in re.split(rb"\r\n|\n|\r", data.removeprefix(b"\xef\xbb\xbf"))[:-1]:
        name, _, value = line.partition(b":")
        if line and name == b"data":
            parts.append(value[1:] if value[:1] == b" " else value)
        elif not line and parts:
            events.append(b"\n".join(parts))
            parts = []
    return events


def _read(chunks: Iterable[bytes]) -> tuple[ModelReply | Exception, list[StreamDelta]]:
    deltas: list[StreamDelta] = []
    accumulator, parser = StreamAccumulator(lambda: 1.0, deltas.append), EventParser()

    def read() -> ModelReply:
        for chunk in chunks:
            for event in parser.feed(chunk):
                accumulator.add(event)
        return accumulator.result()

    return outcome(read, EndpointFailure), deltas
