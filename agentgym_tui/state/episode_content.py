"""What was said in the rounds of an episode, and its spans: what came live is decoded when somebody looks at it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from agentgym_tui.state.limits import MAX_CAUSE_CHARS, json_size
from runner.types import Span

Messages: TypeAlias = list[dict[str, Any]]

FIELD_BYTES: Final = 150
"""Bytes of a field of an object, about, beside its texts."""

_SPAN_BYTES: Final = 500
_RAW_MESSAGES_BYTES: Final = 100
_RAW_SPAN_BYTES: Final = 250
_COLONS_PER_SPAN: Final = 10
"""Colons of a span with few attributes; each more may be of one that takes far more room once it is read."""


class DecodedMessages(msgspec.Struct, frozen=True, tag="told"):
    """What the agent saw and said in a round, and what the environment answered."""

    chats: list[Messages]
    observation: Messages

    @property
    def size(self) -> int:
        """Bytes it takes, about."""
        return sum(map(_messages_size, self.chats)) + _messages_size(self.observation)


class RawMessages(msgspec.Struct, frozen=True, tag="heard", gc=False):
    """The same as it came: JSON."""

    raw_chats: bytes
    raw_observation: bytes

    @property
    def chats(self) -> list[Messages]:
        """Decoded each time: at most one round is looked at."""
        return [as_messages(chat if isinstance(chat, list) else [chat]) for chat in _decode_list(self.raw_chats)]

    @property
    def observation(self) -> Messages:
        """As ``chats``."""
        return as_messages(_decode_list(self.raw_observation))

    @property
    def size(self) -> int:
        """Bytes it takes, about."""
        return _RAW_MESSAGES_BYTES + len(self.raw_chats) + len(self.raw_observation)


class Spans:
    """Those of an episode, in the order they came.

    Attributes:
        size: bytes they take, about.
    """

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        """Those of a file are decoded already."""
        self._spans = list(spans)
        self._raw: list[bytes] = []
        self.size = spans_size(self._spans)

    def append_raw(self, spans: Sequence[bytes], n_bytes: int) -> None:
        """Add some as they came; ``n_bytes``: see ``raw_spans_size``."""
        self._raw += spans
        self.size += n_bytes

    @property
    def all(self) -> list[Span]:
        """All of them, decoded."""
        heard, self._raw = self._raw, []
        for raw in heard:
            self._spans.append(self._decode_span(raw))
        return self._spans

    def __len__(self) -> int:
        """How many there are."""
        return len(self._spans) + len(self._raw)

    def __eq__(self, other: object) -> bool:
        """Whether others say the same."""
        return isinstance(other, Spans) and self.all == other.all

    __hash__ = None  # type: ignore[assignment]  # it grows

    def _decode_span(self, raw: bytes) -> Span:
        """One that cannot be read is at the end of the one before."""
        try:
            return _SPAN_DECODER.decode(raw)
        except (msgspec.MsgspecError, RecursionError) as exc:
            at, why = self._spans[-1].end_ns if self._spans else 0, f"span that cannot be read: {exc}"[:MAX_CAUSE_CHARS]
            return Span(id=0, parent=None, name=why, category="", track="", start_ns=at, end_ns=at)


def as_messages(chat: Iterable[Any]) -> Messages:
    """What an agent says it held is kept as it was, also when it is no message."""
    return [message if isinstance(message, dict) else {"content": message} for message in chat]


def decode_messages(raw: bytes) -> Messages:
    """Messages of JSON."""
    return as_messages(_decode_list(raw))


def raw_spans_size(spans: Sequence[bytes]) -> int:
    """Bytes that spans take as they came, about; more than that where they grow when they are read."""
    together = b"".join(spans)
    return (
        _RAW_SPAN_BYTES * len(spans)
        + len(together)
        + FIELD_BYTES * max(together.count(b":") - _COLONS_PER_SPAN * len(spans), 0)
    )


def spans_size(spans: Sequence[Span]) -> int:
    """Bytes that spans take, about."""
    named = sum([len(span.name) + len(span.category) + len(span.track) for span in spans])
    return _SPAN_BYTES * len(spans) + named + _values_size([span.attributes for span in spans])


def _decode_list(raw: bytes) -> list[Any]:
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as exc:
        return [{"content": f"what was said cannot be read: {exc}"[:MAX_CAUSE_CHARS]}]
    return found if isinstance(found, list) else [found]


def _messages_size(chat: Iterable[object]) -> int:
    return _values_size([each if isinstance(each, dict) else {"": each} for each in chat])


def _values_size(objects: Iterable[Mapping[str, object]]) -> int:
    """As ``json_size``, but quick: nearly all there is to measure is small objects of texts."""
    total = 0
    for fields in objects:
        for name, value in fields.items():
            total += FIELD_BYTES + len(name) + (len(value) if isinstance(value, str) else json_size(value))
    return total


_SPAN_DECODER: Final = msgspec.json.Decoder(Span)
