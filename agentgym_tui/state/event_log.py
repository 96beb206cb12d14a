"""Messages of a bus as they came, the newest of them, and what was said about following it: bounded, not decoded.

Texts are kept as they came, hostile ones included; ``views`` makes them safe when it turns them into lines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from heapq import merge
from typing import Final, NamedTuple, TypeAlias

import msgspec

from agentgym_tui.state.clock_skew import ClockSkewEstimator
from agentgym_tui.state.limits import MAX_CAUSE_CHARS, clamp_count
from agentgym_tui.state.subject_tree import SubjectTree
from runner.subscribe.buffer import RawMessage
from runner.subscribe.messages import Notice

MAX_HEADER_BYTES: Final = 64 << 10


ENTRY_BYTES: Final = 400
"""Bytes that an entry takes beside its texts, about."""


class EventMessage(msgspec.Struct, gc=False):
    """A message: ``at`` by the server's clock where a stream keeps it, else by this machine's.

    Attributes:
        number: counts entries of the log.
        payload: its beginning; ``n_bytes`` is the length of the whole.
    """

    number: int
    at: datetime
    subject: str
    headers: dict[str, str]
    payload: bytes
    n_bytes: int
    stream: str | None = None
    sequence: int | None = None

    @property
    def size(self) -> int:
        """Bytes it takes, about."""
        headers = sum([len(name) + len(value) for name, value in self.headers.items()]) if self.headers else 0
        return ENTRY_BYTES + len(self.payload) + headers


class LogNotice(NamedTuple):
    """Something about the following, in its place among the messages; ``kind`` as of a ``Notice``."""

    number: int
    at: datetime
    kind: str
    text: str

    @property
    def size(self) -> int:
        """Bytes it takes, about."""
        return ENTRY_BYTES + len(self.text)


LogEntry: TypeAlias = EventMessage | LogNotice


MAX_ENTRIES: Final = 20_000
MAX_BYTES: Final = 16 << 20
MAX_PAYLOAD_BYTES: Final = 1 << 20
"""Bytes of a payload that are kept."""

MAX_STREAMS: Final = 1_000
_NO_HEADERS: Final[dict[str, str]] = {}


class EventLog:
    """The newest messages, and those among them that hold some words.

    Args:
        max_entries: messages and remarks that are kept.
        max_bytes: about what they may take; one is kept in any case.

    Attributes:
        shown: the entries that hold all ``words``, the oldest first.
        words: what a person looks for, in small letters.
        subjects: what was said where, kept ones or not.
        clocks: of those who sent it.
        n_seen: messages since ``begin``; ``n_gone`` entries of them made room for others.
        n_matched: entries that came into ``shown`` since ``begin`` or ``search``.
        n_gap: messages that left their stream unread; ``n_skipped`` came too fast and are kept by no stream.
    """

    def __init__(self, *, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        """Start empty."""
        self.shown: deque[LogEntry] = deque()
        self.words: tuple[str, ...] = ()
        self.subjects = SubjectTree()
        self.clock_skew = ClockSkewEstimator()
        self.n_received = self.n_evicted = self.n_gap = self.n_skipped = self.n_matched = 0
        self._max_entries, self._max_bytes = max_entries, max_bytes
        self._entries: deque[LogEntry] = deque()
        self._needles: list[bytes] = []
        self._required = b""
        self._bytes = self._number = 0
        self._pending: dict[str, int] = {}

    def __len__(self) -> int:
        """How many are kept, shown or not."""
        return len(self._entries)

    @property
    def n_bytes(self) -> int:
        """What they take, about."""
        return self._bytes

    @property
    def is_full(self) -> bool:
        """Whether what comes next makes the oldest go."""
        return len(self._entries) >= self._max_entries or self._bytes >= self._max_bytes

    @property
    def lag(self) -> int:
        """Messages that streams had behind those that came last."""
        return clamp_count(sum(self._pending.values()))

    def reset(self, only: str = "") -> None:
        """Forget all; from now on take messages that hold ``only``."""
        self._entries.clear()
        self.shown.clear()
        self._pending.clear()
        self.subjects.reset_counts()
        self.n_received = self.n_evicted = self.n_gap = self.n_skipped = self.n_matched = self._bytes = 0
        self._required = only.encode("utf-8", "replace")

    def append(self, came: Sequence[RawMessage | Notice], at: datetime) -> None:
        """Take what came, at a time."""
        for each in merge_by_time(came):
            if isinstance(each, Notice):
                self._append_notice(each, at)
            else:
                self._append_message(each, at)
        self.clock_skew.sample([each for each in came if isinstance(each, RawMessage)])
        while len(self._entries) > 1 and (len(self._entries) > self._max_entries or self._bytes > self._max_bytes):
            self._evict_oldest()

    def search(self, text: str) -> None:
        """Show only entries that hold all words of ``text``, in subject, headers or payload; ASCII in any case."""
        self.words = tuple(text.lower().split())
        self._needles = [word.encode("utf-8", "replace") for word in self.words]
        self.shown = deque(entry for entry in self._entries if self._matches(entry))
        self.n_matched = len(self.shown)

    def _append_notice(self, notice: Notice, at: datetime) -> None:
        match notice.kind:
            case "gap":
                self.n_gap = clamp_count(self.n_gap + max(notice.count, 1))
            case "skipped":
                self.n_skipped = clamp_count(self.n_skipped + max(notice.count, 1))
        self._add(LogNotice(self._next_number(), at, notice.kind, notice.text[:MAX_CAUSE_CHARS]))

    def _append_message(self, came: RawMessage, at: datetime) -> None:
        self.n_received += 1
        subject = self.subjects.add(came.subject)
        if came.stream is not None and (came.stream in self._pending or len(self._pending) < MAX_STREAMS):
            self._pending[came.stream] = came.pending
        headers = _limit_headers(came.headers)
        if self._required and self._required not in came.payload and self._required not in _subject_and_headers(subject, headers):
            return
        payload = came.payload[:MAX_PAYLOAD_BYTES]
        place = (came.stream, came.sequence)
        self._add(EventMessage(self._next_number(), came.time or at, subject, headers, payload, len(came.payload), *place))

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _add(self, entry: LogEntry) -> None:
        self._entries.append(entry)
        self._bytes += entry.size
        if self._matches(entry):
            self.shown.append(entry)
            self.n_matched += 1

    def _evict_oldest(self) -> None:
        oldest = self._entries.popleft()
        self._bytes -= oldest.size
        self.n_evicted += 1
        if self.shown and self.shown[0] is oldest:
            self.shown.popleft()

    def _matches(self, entry: LogEntry) -> bool:
        if not self._needles:
            return True
        if isinstance(entry, LogNotice):
            return all(needle in entry.text.lower().encode("utf-8", "replace") for needle in self._needles)
        payload = entry.payload.lower()
        missing = [needle for needle in self._needles if needle not in payload]
        if not missing:
            return True
        head = _subject_and_headers(entry.subject, entry.headers).lower()
        return all(needle in head for needle in missing)


def _limit_headers(headers: dict[str, str]) -> dict[str, str]:
    """Those there is room for."""
    if not headers:
        return _NO_HEADERS
    kept: dict[str, str] = {}
    room = MAX_HEADER_BYTES
    for name, value in headers.items():
        room -= len(name) + len(value) + ENTRY_BYTES // 4
        if room < 0:
            break
        kept[name] = value
    return kept


def _subject_and_headers(subject: str, headers: dict[str, str]) -> bytes:
    if not headers:
        return subject.encode("utf-8", "replace")
    return "\n".join((subject, *headers, *headers.values())).encode("utf-8", "replace")


_END_OF_TIME = datetime.max.replace(tzinfo=UTC)


def merge_by_time(came: Sequence[RawMessage | Notice]) -> Iterator[RawMessage | Notice]:
    """What came at once, by time: each stream keeps its own order, and notices stay between what they are between.

    What no stream keeps has no time, and is the newest.
    """
    group: list[RawMessage] = []
    for each in came:
        if isinstance(each, Notice):
            yield from _merge_streams(group)
            group = []
            yield each
        else:
            group.append(each)
    yield from _merge_streams(group)


def _merge_streams(came: list[RawMessage]) -> Iterator[RawMessage]:
    streams: dict[str | None, list[RawMessage]] = {}
    for each in came:
        streams.setdefault(each.stream, []).append(each)
    return merge(*streams.values(), key=_time)


def _time(incoming: RawMessage) -> datetime:
    return incoming.time or _END_OF_TIME
