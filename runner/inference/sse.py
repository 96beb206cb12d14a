"""Server-sent events: parsing of a stream, and accumulation of its chunks, with the pieces of tool calls, to a reply.

Servers differ in the pieces: an index may be missing, be 0 for each call, or grow with each piece; the id and the name
may come once or with each piece; and the arguments may come once more as a whole, or after an empty object in their
place.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from runner.inference.chat_format import (
    MAX_TEXT,
    ModelReply,
    merge_parts,
    raise_on_error,
    raise_on_failed_choice,
    read_metadata,
    reasoning_field,
    reasoning_of,
    reply_too_long,
    unknown_fields,
    validate_reply,
)
from runner.inference.errors import EndpointFailure
from runner.inference.token_capture import TokenCapture
from runner.inference.tool_calls import MAX_TOOL_CALLS, CallPiece, build_calls, read_piece
from runner.types import DeltaPart, StreamDelta
from runner.util.json_accessors import as_dict, as_list, as_text, content_text, decode_json, encode_json

MAX_EVENT = 4 << 20
"""Maximum bytes of one event."""
DONE = b"[DONE]"

_BLANK = BOM_UTF8 + b" \t\r\n"
_MAX_FAILED_CHECKS = 8
"""How often the arguments of a call are searched in vain for their end, because each search reads all of them."""


class CallDelta(NamedTuple):
    """What a piece added: characters that are kept, and what to show of its call, counted among those with a name.

    The text ``replaces`` all earlier arguments of the call, or extends them; without a number there is none to show.
    """

    size: int
    number: int | None = None
    name: str = ""
    text: str = ""
    replaces: bool = False


class StreamedCalls:
    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._named: list[_Call] = []
        self._by_index: dict[int | str, _Call] = {}
        self._by_id: dict[str, _Call] = {}
        self._last: _Call | None = None
        self._n_events = 0

    def add(self, pieces: list[Any]) -> Iterator[CallDelta]:
        """Each piece is added when the iterator gets to it."""
        self._n_events += 1
        for value in pieces[:MAX_TOOL_CALLS]:
            piece = read_piece(value)
            call = self._find(piece)
            if call is None or not call.continues(piece, self._n_events):
                call = self._start()
            yield self._extend(call, piece)

    def add_whole(self, calls: list[Any]) -> Iterator[CallDelta]:
        """Add complete calls unless there are some, of which these are a repetition."""
        if not self._calls:
            yield from (self._extend(self._start(), read_piece(call)) for call in calls[:MAX_TOOL_CALLS])

    def so_far(self) -> Iterator[tuple[str, str]]:
        return ((call.name, "".join(call.arguments)) for call in self._named)

    def result(self) -> list[dict[str, Any]]:
        """Calls in the OpenAI shape; those without a name are omitted."""
        return build_calls(
            CallPiece(None, call.id, call.name, "".join(call.arguments), True, call.fields, call.function_fields)
            for call in self._named
        )

    def _extend(self, call: _Call, piece: CallPiece) -> CallDelta:
        if call.is_kept and call.index is None and piece.index is not None:
            call.index = piece.index
            self._by_index[piece.index] = call
        if call.is_kept and not call.id and piece.id:
            call.id = piece.id
            self._by_id[piece.id] = call
        self._last, call.event, call.name = call, self._n_events, call.name or piece.name
        text, replaces = call.add_arguments(piece)
        size = len(text) + call.add_fields(piece)
        if call.number is None and call.is_kept and call.name:
            call.number = len(self._named)
            self._named.append(call)
            text = "".join(call.arguments)
        if call.number is None or not (text or piece.name):
            return CallDelta(size)
        return CallDelta(size, call.number, call.name, text, replaces)

    def _find(self, piece: CallPiece) -> _Call | None:
        call = None if piece.index is None else self._by_index.get(piece.index)
        if piece.id and (call is None or call.id != piece.id):
            call = self._by_id.get(piece.id, call)
        last = self._last
        if call is None and last is not None:
            is_bare = not (piece.id or piece.name)
            return last if is_bare or piece.index is None or last.index is None else None
        return call

    def _start(self) -> _Call:
        """A new call is not kept if there are too many."""
        call = _Call(is_kept=len(self._calls) < MAX_TOOL_CALLS)
        if call.is_kept:
            self._calls.append(call)
        return call


class _Call(msgspec.Struct, kw_only=True):
    is_kept: bool
    event: int = 0
    number: int | None = None
    index: int | str | None = None
    id: str = ""
    name: str = ""
    arguments: list[str] = []
    fields: dict[str, Any] = {}
    function_fields: dict[str, Any] = {}
    complete: dict[str, Any] | None = None
    n_failed_checks: int = 0

    def continues(self, piece: CallPiece, event: int) -> bool:
        """Return whether a piece belongs to this call, which has its index or id, or was extended last."""
        if piece.name and self.name and piece.name != self.name:
            return False
        same_id = piece.id != "" and piece.id == self.id
        if piece.id and self.id and not same_id:  # some servers make an id for each piece
            is_more = self.find_complete() is None or _object(piece.arguments) == self.complete
            return is_more and piece.arguments != "" and not piece.name
        other_index = piece.index is not None and self.index is not None and piece.index != self.index
        if not piece.name or (same_id and not other_index):
            return True
        whole = _object(piece.arguments)
        if not piece.arguments or whole == {}:
            return event != self.event or self.arguments != []
        if not _starts_object(piece.arguments) or self.find_complete() is None:
            return True
        return whole == self.complete and event != self.event

    def find_complete(self) -> dict[str, Any] | None:
        is_open = self.complete is None and self.n_failed_checks < _MAX_FAILED_CHECKS
        if is_open and self.arguments and self.arguments[-1].rstrip().endswith("}"):
            self.arguments = ["".join(self.arguments)]
            self.complete = _object(self.arguments[0])
            self.n_failed_checks += self.complete is None
        return self.complete

    def add_fields(self, piece: CallPiece) -> int:
        """Add the other fields of a piece, which replace older ones; return the characters of those that are new."""
        size = 0
        for known, received in ((self.fields, piece.fields), (self.function_fields, piece.function_fields)):
            if new := {key: value for key, value in received.items() if known.get(key) != value}:
                known |= new
                size += len(encode_json(new))
        return size

    def add_arguments(self, piece: CallPiece) -> tuple[str, bool]:
        """Return the text that a piece adds to the arguments, and whether it replaces all of them."""
        text = piece.arguments
        whole = _object(text)
        if whole == {} and not self.arguments:
            return "", False  # stands for arguments that follow, or for none
        if whole is not None and self.arguments and (piece.is_object or self.find_complete() is not None):
            if whole in ({}, self.complete):
                return "", False
            self.arguments, self.complete = [text], whole
            return text, True
        if text:
            self.arguments.append(text)
            self.complete = None
        return text, False


def _starts_object(text: str) -> bool:
    return text.lstrip().startswith("{")


def _object(text: str) -> dict[str, Any] | None:
    if not (_starts_object(text) and text.rstrip().endswith("}")):
        return None
    value = decode_json(text.encode())
    return value if isinstance(value, dict) else None


class EventParser:
    """Parses a stream of server-sent events; chunks of bytes may end at any position.

    Beyond the HTML standard: an event of type ``error`` and llama.cpp's field ``error`` become errors in OpenAI's form,
    a line of data after one that is a JSON object starts an event, and a stream that is one JSON body is one event.
    """

    def __init__(self, max_event: int = MAX_EVENT) -> None:
        self._max_event = max_event
        self._line_parts: list[bytes] = []
        self._data: list[bytes] = []
        self._type = b""
        self._size = 0
        self._is_json: bool | None = None
        self._has_started = False
        self._after_return = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of each event that a chunk completes; raises ``EndpointFailure`` for one above the limit."""
        if self._is_json is None and (start := chunk.lstrip(_BLANK)):
            self._is_json = start.startswith((b"{", b"["))
        if self._is_json:
            self._line_parts.append(chunk)
            self._size += len(chunk)
            self._check_size()
            return []
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
        self._check_size()
        return events

    def finish(self) -> list[bytes]:
        """Return the data that the end of the stream completes: a JSON body, or a last event without its empty line."""
        if self._is_json:
            return [b"".join(self._line_parts).lstrip(_BLANK), DONE]
        return [data for data in self.feed(b"\n\n") if data.strip() == DONE or isinstance(decode_json(data), dict)]

    def _check_size(self) -> None:
        if self._size > self._max_event:
            raise EndpointFailure("reply", f"an event of the stream is larger than {self._max_event >> 20} MiB")

    def _line(self, end: bytes) -> bytes | None:
        self._size += len(end)
        line = b"".join([*self._line_parts, end])
        self._line_parts.clear()
        if not self._has_started:
            self._has_started, line = True, line.removeprefix(BOM_UTF8)
        if not line:
            return self._end_event()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            data = self._data  # some servers end each event with one newline, so this line may start another one
            is_whole = len(data) == 1 and data[0].endswith(b"}") and isinstance(decode_json(data[0]), dict)
            ended = self._end_event() if is_whole else None
            self._data.append(value)
            return ended
        if name == b"event":
            self._type = value.strip()
        elif name == b"error" and value.strip():
            return _error(value.strip())
        return None

    def _end_event(self) -> bytes | None:
        data, type = b"\n".join(self._data), self._type
        has_data, self._data, self._type, self._size = bool(self._data), [], b"", 0
        return (_error(data) if type == b"error" else data) if has_data else None


def _error(data: bytes) -> bytes:
    error = decode_json(data)
    if isinstance(error, dict) and error.get("error"):
        return data
    return encode_json({"error": error if isinstance(error, dict) else data.decode("utf-8", "replace")})


class StreamAccumulator:
    """Accumulates the chunks of a streamed reply; the attribute ``done`` is True after the final event.

    ``n_deltas`` counts the deltas with text, reasoning, or a tool call's name or arguments.
    """

    def __init__(
        self,
        now: Callable[[], float],
        on_delta: Callable[[StreamDelta], None] | None = None,
        capture: TokenCapture | None = None,
    ) -> None:
        """The time to the first token is measured from now."""
        self.done = False
        self.n_deltas = 0
        self._now = now
        self._started = now()
        self._on_delta = on_delta
        self._capture = capture
        self._reply = ModelReply()
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self._calls = StreamedCalls()
        self._length = 0

    def add(self, data: bytes) -> None:
        """Raises ``EndpointFailure`` if the data is an error or not a JSON object, or the reply becomes too long."""
        data = data.strip()
        chunk = None if data == DONE else decode_json(data)
        if isinstance(chunk, dict):
            self._add_chunk(chunk)
        elif b"\n" in data:  # lines of JSON instead of events
            for line in data.split(b"\n"):
                self.add(line)
        elif data == DONE:
            self.done = True
        elif data not in (b"", b"null"):  # a part of the answer may be lost
            raise EndpointFailure("reply", "an event of the stream is not a JSON object")

    @property
    def has_finish_reason(self) -> bool:
        """Whether the answer is complete, although its token counts may follow."""
        return self._reply.finish_reason is not None

    def result(self) -> ModelReply:
        """Raises ``EndpointFailure`` if the stream ended early or contains no usable answer."""
        if not self.done and self._reply.finish_reason is None:
            raise EndpointFailure("reply", "the stream ended in the middle of the reply")
        if not self._length and self._reply.finish_reason is None:
            raise EndpointFailure("reply", "the reply is empty")
        reply = self._reply
        reply.content, reply.reasoning = "".join(self._content), "".join(self._reasoning)
        reply.tool_calls, reply.refusal = self._calls.result(), "".join(self._refusal)
        return validate_reply(reply)

    def _add_chunk(self, chunk: dict[str, Any]) -> None:
        raise_on_error(chunk)
        read_metadata(self._reply, chunk)
        if self._capture is not None:
            self._capture.add(chunk)
        for choice in map(as_dict, as_list(chunk.get("choices"))):
            if choice.get("index") in (0, None):
                self._add_choice(choice)

    def _add_choice(self, choice: dict[str, Any]) -> None:
        raise_on_failed_choice(choice)
        self._reply.finish_reason = as_text(choice.get("finish_reason"))[:40] or self._reply.finish_reason
        message = as_dict(choice.get("message"))  # whole; some servers end a stream with the message once more
        delta = as_dict(choice.get("delta")) or message
        reasoning, content = reasoning_of(delta), content_text(delta.get("content"))
        if reasoning and not (delta is message and reasoning == "".join(self._reasoning)):
            self._reply.reasoning_field = reasoning_field(delta)
            self._add_text(reasoning, self._reasoning, "reasoning")
        if content and not (delta is message and content == "".join(self._content)):
            self._add_text(content, self._content, "text")
        if refusal := as_text(delta.get("refusal")):
            self._count(len(refusal))
            self._refusal.append(refusal)
        unknown = unknown_fields(delta)
        if content and "content_parts" not in unknown and "content_parts" in self._reply.extra:
            unknown["content_parts"] = [{"type": "text", "text": content}]  # the parts are the whole answer
        if unknown:
            self._add_unknown(unknown)
        if pieces := as_list(delta.get("tool_calls")):
            self._add_calls(pieces, are_whole=delta is message)

    def _add_unknown(self, fields: dict[str, Any]) -> None:
        """Keep fields that only the server understands; a later value replaces an earlier one, a list extends it."""
        self.n_deltas += 1
        known = self._reply.extra
        for name, value in fields.items():
            earlier = known.setdefault(name, [] if isinstance(value, list) else value)
            if isinstance(earlier, list) and isinstance(value, list):
                merge_parts(earlier, value)
            else:
                known[name] = value
            self._count(len(encode_json(value)))

    def _add_text(self, text: str, into: list[str], part: DeltaPart) -> None:
        self.n_deltas += 1
        self._count(len(text))
        into.append(text)
        self._emit(text, part)

    def _add_calls(self, pieces: list[Any], *, are_whole: bool) -> None:
        for delta in self._calls.add_whole(pieces) if are_whole else self._calls.add(pieces):
            self.n_deltas += bool(delta.size or delta.name)
            self._count(delta.size)
            if delta.replaces:
                self._emit_again()
            elif delta.number is not None:
                self._emit(delta.text, "call", delta.number, delta.name)

    def _emit_again(self) -> None:
        """Emit all of the answer once more, because deltas can only add to texts."""
        if self._on_delta is not None:
            self._on_delta(StreamDelta(restart=True))
        if self._reasoning:
            self._emit("".join(self._reasoning), "reasoning")
        if self._content:
            self._emit("".join(self._content), "text")
        for number, (name, arguments) in enumerate(self._calls.so_far()):
            self._emit(arguments, "call", number, name)

    def _emit(self, text: str, part: DeltaPart, call: int = 0, tool: str = "") -> None:
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
