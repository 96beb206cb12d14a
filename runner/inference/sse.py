"""Server-sent events: parsing of a stream, and accumulation of its chunks to a reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from runner.inference.chat_format import (
    MAX_TEXT,
    ModelReply,
    raise_on_error,
    read_metadata,
    reasoning_of,
    reply_too_long,
    validate_reply,
)
from runner.inference.errors import EndpointFailure
from runner.inference.token_capture import TokenCapture
from runner.inference.tool_calls import MAX_TOOL_CALLS, arguments_text, tool_call, with_unique_ids
from runner.types import DeltaPart, StreamDelta
from runner.util.json_accessors import as_dict, as_list, as_text, content_text, decode_json

MAX_EVENT = 4 << 20
"""Maximum bytes of one event."""
DONE = b"[DONE]"

_BOM = b"\xef\xbb\xbf"


class EventParser:
    """Parses a stream of server-sent events; chunks of bytes may end at any position."""

    def __init__(self, max_event: int = MAX_EVENT) -> None:
        """Create a parser for a new stream, whose events have at most ``max_event`` bytes."""
        self._max_event = max_event
        self._line_parts: list[bytes] = []
        self._data: list[bytes] = []
        self._size = 0
        self._has_started = False
        self._after_return = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Add a chunk of bytes; return the data of each event that this chunk completes.

        Raises:
            EndpointFailure: if an event is larger than its limit.
        """
        if self._after_return:  # a following newline belongs to the same line end
            chunk, self._after_return = chunk.removeprefix(b"\n"), not chunk
        if not chunk:
            return []
        self._after_return = chunk.endswith(b"\r")
        lines = chunk.splitlines()
        unfinished = b"" if chunk.endswith((b"\r", b"\n")) else lines.pop()
        events = [data for line in lines if (data := self._line(line)) is not None]
        if unfinished:
            self._line_parts.append(unfinished)
            self._size += len(unfinished)
        if self._size > self._max_event:
            raise EndpointFailure("reply", f"an event of the stream is larger than {self._max_event >> 20} MiB")
        return events

    def _line(self, end: bytes) -> bytes | None:
        """Add the last bytes of a line; return the data of the event if this line ends it, else None."""
        self._size += len(end)
        line = end
        if self._line_parts:
            line = b"".join([*self._line_parts, end])
            self._line_parts.clear()
        if not self._has_started:
            self._has_started, line = True, line.removeprefix(_BOM)
        if line:
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
            return None
        data, self._data, self._size = self._data, [], 0
        return b"\n".join(data) if data else None


class StreamAccumulator:
    """Accumulates the chunks of a streamed reply; the attribute ``done`` is True after the final event.

    Attributes:
        n_deltas: number of deltas with text, reasoning, or a tool call's name or arguments.

    Args:
        now: a monotonic clock in seconds.
        on_delta: receives each delta of the content, the reasoning and the tool calls.
        capture: receives the token ids; None if the request did not ask for them.
    """

    def __init__(
        self,
        now: Callable[[], float],
        on_delta: Callable[[StreamDelta], None] | None = None,
        capture: TokenCapture | None = None,
    ) -> None:
        """Start without chunks; the time to the first token is measured from now."""
        self.done = False
        self.n_deltas = 0
        self._now = now
        self._started = now()
        self._on_delta = on_delta
        self._capture = capture
        self._reply = ModelReply()
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, _Call] = {}
        self._length = 0

    def add(self, data: bytes) -> None:
        """Add the data of one event.

        Raises:
            EndpointFailure: if the data is an error or not a JSON object, or the reply becomes too long.
        """
        data = data.strip()
        if data in (DONE, b""):
            self.done = self.done or data == DONE
            return
        chunk = decode_json(data)
        if not isinstance(chunk, dict):  # a part of the answer may be lost
            raise EndpointFailure("reply", "an event of the stream is not a JSON object")
        raise_on_error(chunk)
        read_metadata(self._reply, chunk)
        if self._capture is not None:
            self._capture.add(chunk)
        choices = [as_dict(choice) for choice in as_list(chunk.get("choices"))]
        for choice in choices:
            if choice.get("index", 0) == 0:
                self._add_choice(choice)

    def result(self) -> ModelReply:
        """Return the complete reply.

        Raises:
            EndpointFailure: if the stream ended early or contains no usable answer.
        """
        if not self.done and self._reply.finish_reason is None:
            raise EndpointFailure("reply", "the stream ended in the middle of the reply")
        if not self._length and self._reply.finish_reason is None:
            raise EndpointFailure("reply", "the reply is empty")
        reply = self._reply
        reply.content, reply.reasoning = "".join(self._content), "".join(self._reasoning)
        calls = [call for _, call in sorted(self._calls.items()) if call.name]
        reply.tool_calls = with_unique_ids(
            tool_call(number, call.id, call.name, "".join(call.arguments)) for number, call in enumerate(calls)
        )
        return validate_reply(reply)

    def _add_choice(self, choice: dict[str, Any]) -> None:
        self._reply.finish_reason = as_text(choice.get("finish_reason"))[:40] or self._reply.finish_reason
        delta = as_dict(choice.get("delta")) or as_dict(choice.get("message"))
        self._add_text(reasoning_of(delta), self._reasoning, "reasoning")
        self._add_text(content_text(delta.get("content")), self._content, "text")
        for call in as_list(delta.get("tool_calls"))[:MAX_TOOL_CALLS]:
            self._add_call(as_dict(call))

    def _add_text(self, text: str, into: list[str], part: DeltaPart) -> None:
        if text:
            self._count(len(text))
            into.append(text)
            self._emit(text, part)

    def _add_call(self, delta: dict[str, Any]) -> None:
        function, index = as_dict(delta.get("function")), delta.get("index")
        name, arguments = as_text(function.get("name")), arguments_text(function.get("arguments"))
        if type(index) is not int:  # without an index, a name starts a new call and other deltas continue the last one
            index = max(self._calls, default=-1) + bool(name)
        if index not in self._calls and len(self._calls) >= MAX_TOOL_CALLS:
            return
        call = self._calls.setdefault(index, _Call(len(self._calls)))
        call.id = call.id or as_text(delta.get("id"))
        call.name = call.name or name
        call.arguments.append(arguments)
        self._count(len(arguments))
        if name or arguments:
            self._emit(arguments, "call", call.number, call.name)

    def _emit(self, text: str, part: DeltaPart, call: int = 0, tool: str = "") -> None:
        self.n_deltas += 1
        if self._on_delta is not None:
            self._on_delta(
                StreamDelta(text=text, part=part, call=call, tool=tool[:200], n=1, ttft_s=self._reply.ttft_s)
            )

    def _count(self, length: int) -> None:
        if self._reply.ttft_s is None:
            self._reply.ttft_s = self._now() - self._started
        self._length += length
        if self._length > MAX_TEXT:
            raise reply_too_long()


class _Call(msgspec.Struct):
    number: int
    id: str = ""
    name: str = ""
    arguments: list[str] = []
