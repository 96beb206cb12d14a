"""Messages and spans of an episode; content that arrived live is kept as JSON until a view reads it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from agentgym_tui.state.normalize import MAX_CAUSE_CHARS, json_size
from runner.types import Span

Messages: TypeAlias = list[dict[str, Any]]

FIELD_BYTES: Final = 150
"""Approximate memory of one field of a JSON object in bytes, without the texts of its name and value."""

_SPAN_BYTES: Final = 500
_RAW_MESSAGES_BYTES: Final = 100
_RAW_SPAN_BYTES: Final = 250
_COLONS_PER_SPAN: Final = 10
"""Colons in the JSON of a span with few attributes; each further colon suggests a field that grows when decoded."""


class DecodedMessages(msgspec.Struct, frozen=True):
    """Decoded messages of a step: the chats of the agent and the observation of the environment."""

    chats: list[Messages]
    observation: Messages

    @property
    def n_messages(self) -> int:
        """Number of messages."""
        return sum(map(len, self.chats)) + len(self.observation)

    @property
    def size(self) -> int:
        """Approximate memory of the messages in bytes."""
        return sum(map(_messages_size, self.chats)) + _messages_size(self.observation)


class RawMessages(msgspec.Struct, frozen=True, gc=False):
    """Messages of a step as the JSON text in which they arrived."""

    raw_chats: bytes
    raw_observation: bytes

    @property
    def chats(self) -> list[Messages]:
        """Chats of the agent; decoded on each access, because a view shows only one step at a time."""
        return [as_messages(chat if isinstance(chat, list) else [chat]) for chat in _decode_list(self.raw_chats)]

    @property
    def observation(self) -> Messages:
        """Observation of the environment; decoded on each access."""
        return as_messages(_decode_list(self.raw_observation))

    @property
    def n_messages(self) -> int:
        """Number of messages, which are not decoded where they have the usual form."""
        try:
            chats = _CHATS_DECODER.decode(self.raw_chats)
            return sum(map(len, chats)) + len(_CHAT_DECODER.decode(self.raw_observation))
        except (msgspec.MsgspecError, RecursionError):
            return sum(map(len, self.chats)) + len(self.observation)

    @property
    def size(self) -> int:
        """Approximate memory of the messages in bytes."""
        return _RAW_MESSAGES_BYTES + len(self.raw_chats) + len(self.raw_observation)


class Spans:
    """Spans of an episode in the order in which they arrived.

    Args:
        spans: decoded spans of an episode file.

    Attributes:
        size: approximate memory of all spans in bytes.
    """

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._spans = list(spans)
        self._raw: list[bytes] = []
        self.size = spans_size(self._spans)

    def append_raw(self, spans: Sequence[bytes], n_bytes: int) -> None:
        """Append spans that are still JSON; ``n_bytes`` is the result of ``raw_spans_size`` for them."""
        self._raw += spans
        self.size += n_bytes

    @property
    def all(self) -> list[Span]:
        """All spans; decodes the spans that are still JSON."""
        pending, self._raw = self._raw, []
        for raw in pending:
            self._spans.append(self._decode_span(raw))
        return self._spans

    def __len__(self) -> int:
        return len(self._spans) + len(self._raw)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spans) and self.all == other.all

    __hash__ = None  # type: ignore[assignment]  # mutable

    def _decode_span(self, raw: bytes) -> Span:
        try:
            return _SPAN_DECODER.decode(raw)
        except (msgspec.MsgspecError, RecursionError) as exc:
            # shown at the end of the span before it
            end_ns = self._spans[-1].end_ns if self._spans else 0
            name = f"span cannot be decoded: {exc}"[:MAX_CAUSE_CHARS]
            return Span(id=0, parent=None, name=name, category="", track="", start_ns=end_ns, end_ns=end_ns)


def as_messages(chat: Iterable[Any]) -> Messages:
    """Return the entries of a chat as messages; an entry that is no JSON object becomes the content of a message."""
    return [message if isinstance(message, dict) else {"content": message} for message in chat]


def decode_messages(raw: bytes) -> Messages:
    """Decode a JSON list of messages; JSON that cannot be decoded yields one message that contains the error."""
    return as_messages(_decode_list(raw))


def raw_spans_size(spans: Sequence[bytes]) -> int:
    """Return the approximate memory in bytes of spans that are still JSON, with a surcharge for many attributes."""
    joined = b"".join(spans)
    return (
        _RAW_SPAN_BYTES * len(spans)
        + len(joined)
        + FIELD_BYTES * max(joined.count(b":") - _COLONS_PER_SPAN * len(spans), 0)
    )


def spans_size(spans: Sequence[Span]) -> int:
    """Return the approximate memory of decoded spans in bytes."""
    named = sum([len(span.name) + len(span.category) + len(span.track) for span in spans])
    return _SPAN_BYTES * len(spans) + named + _values_size([span.attributes for span in spans])


def _decode_list(raw: bytes) -> list[Any]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as exc:
        return [{"content": f"messages cannot be decoded: {exc}"[:MAX_CAUSE_CHARS]}]
    return value if isinstance(value, list) else [value]


def _messages_size(chat: Iterable[object]) -> int:
    return _values_size([each if isinstance(each, dict) else {"": each} for each in chat])


def _values_size(objects: Iterable[Mapping[str, object]]) -> int:
    total = 0
    for fields in objects:
        for name, value in fields.items():
            total += FIELD_BYTES + len(name) + (len(value) if isinstance(value, str) else json_size(value))
    return total


_CHAT_DECODER: Final = msgspec.json.Decoder(list[msgspec.Raw])
_CHATS_DECODER: Final = msgspec.json.Decoder(list[list[msgspec.Raw]])
_SPAN_DECODER: Final = msgspec.json.Decoder(Span)
