"""Tool calls of a streamed reply, put together from their pieces by what these are, not only by their index.

Servers differ: an index may be missing, be 0 for each call, or grow with each piece; the id and the name may come once
or with each piece; and the arguments may come once more as a whole, or after an empty object in their place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from runner.inference.tool_calls import MAX_TOOL_CALLS, CallPiece, build_calls, read_piece
from runner.util.json_accessors import decode_json, encode_json

_MAX_FAILED_CHECKS = 8
"""How often the arguments of a call are searched in vain for their end, because each search reads all of them."""


class CallDelta(msgspec.Struct, frozen=True):
    """What a piece added to the calls.

    Attributes:
        size: characters that the piece added to what is kept.
        number: number of its call among those with a name; None if there is nothing to show, or not yet.
        replaces: whether the text stands in place of all earlier arguments of the call.
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
        if call.is_kept:
            self._register(call, piece)
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

    def _register(self, call: _Call, piece: CallPiece) -> None:
        if call.index is None and piece.index is not None:
            call.index = piece.index
            self._by_index[piece.index] = call
        if not call.id and piece.id:
            call.id = piece.id
            self._by_id[piece.id] = call


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
        if not (piece.fields or piece.function_fields):
            return 0
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
