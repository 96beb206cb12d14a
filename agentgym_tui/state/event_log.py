"""Log of the newest messages of a bus and of notices about the subscription, limited in number and memory.

Payloads are not decoded, except for the fields that a query names. Texts are kept as received and may contain control
characters; ``presenters`` sanitize texts when they build lines.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from agentgym_tui.state.clock_skew import ClockSkewEstimator
from agentgym_tui.state.log_entries import ENTRY_BYTES, MAX_HEADER_BYTES, EventMessage, LogEntry, LogNotice
from agentgym_tui.state.normalize import MAX_CAUSE_CHARS, as_aware, clamp_count
from agentgym_tui.state.payload_search import Words, json_columns
from agentgym_tui.state.query import FieldSet, Query, Searchable
from agentgym_tui.state.subject_tree import SubjectTree
from runner.subscribe.buffer import RawMessage
from runner.subscribe.messages import Notice

MAX_ENTRIES: Final = 20_000
MAX_BYTES: Final = 16 << 20
MAX_PAYLOAD_BYTES: Final = 1 << 20
"""Largest number of payload bytes kept per message."""

MAX_OFFERED: Final = 1_000
"""Number of entries whose values are offered for completion."""

MAX_STREAMS: Final = 1_000
MAX_LIVE_AGE: Final = timedelta(seconds=2)
"""Age of a message up to which its stream counts as read to its end; streams are merged within this time."""

LIVE_SUBJECT: Final = re.compile(r"agentgym\.live\.[a-z]+\.v1\.([^.]+)")

_NO_HEADERS: Final[dict[str, str]] = {}


def node_of(message: EventMessage) -> str:
    """Return the node that sent a message, by its headers or subject (untrusted text); "" if it is not known."""
    if message.headers:
        for name, value in message.headers.items():
            if name.lower() == "ce-source":
                return value
    live = LIVE_SUBJECT.fullmatch(message.subject)
    return live[1] if live is not None else ""


def _searched_parts(entry: LogEntry) -> Iterator[bytes]:
    """Return the bytes of an entry in which words are found, the payload first."""
    if isinstance(entry, LogNotice):
        yield entry.text.encode("utf-8", "replace")
    else:
        yield entry.payload
        yield _subject_and_headers(entry.subject, entry.headers)


def _subject_and_headers(subject: str, headers: dict[str, str]) -> bytes:
    """Return the subject and the headers of a message as bytes."""
    if not headers:
        return subject.encode("utf-8", "replace")
    return "\n".join((subject, *headers, *headers.values())).encode("utf-8", "replace")


def _payload(entry: LogEntry) -> bytes:
    return entry.payload if isinstance(entry, EventMessage) else b""


EVENT_FIELDS: Final[FieldSet[LogEntry]] = FieldSet(
    ("subject", "text", "subject", lambda entry: getattr(entry, "subject", None)),
    ("node", "text", "node that sent it", lambda entry: node_of(entry) if isinstance(entry, EventMessage) else None),
    *json_columns(_payload),
    ("seq", "number", "sequence number in its stream", lambda entry: getattr(entry, "sequence", None)),
    ("stream", "text", "stream that stores it", lambda entry: getattr(entry, "stream", None)),
    ("size", "number", "bytes of the payload", lambda entry: getattr(entry, "n_bytes", None)),
    ("since", "since", "stored since an age or a time: 5m, 2h, 2026-11-26", lambda entry: as_aware(entry.at)),
    ("until", "until", "stored until then", lambda entry: as_aware(entry.at)),
    ("notice", "text", "kind of a notice of the subscription", lambda entry: getattr(entry, "kind", None)),
)
"""The fields of a message or notice; those of a payload are looked for in live items, too."""


class EventLog(Searchable[LogEntry]):
    """The newest messages and notices, with a search.

    Args:
        max_entries: largest number of entries, which are messages and notices.
        max_bytes: approximate memory limit of the entries in bytes; one entry is kept even where it exceeds the limit.

    Attributes:
        shown: entries that match ``query``, the oldest first.
        query: the filter of the shown entries. Words are found in subject, headers and payload, and in a notice's text.
        subjects: message counts per subject; evicted messages stay counted.
        clock_skew: estimates of the senders' clock skew.
        n_bytes: approximate memory of all entries in bytes.
        n_received: number of messages received since the last ``reset``.
        n_evicted: number of entries evicted since the last ``reset``.
        n_matched: number of entries that were added to ``shown`` since the last ``reset`` or ``search``, including
            entries evicted since.
        n_gap: number of messages that were deleted from their stream before this program read them.
        n_skipped: number of messages dropped unread because they arrived too fast and no stream stores them.
    """

    def __init__(self, *, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        super().__init__(EVENT_FIELDS)
        self.shown: deque[LogEntry] = deque()
        self._words = Words()
        self.subjects = SubjectTree()
        self.clock_skew = ClockSkewEstimator()
        self.n_received = self.n_evicted = self.n_gap = self.n_skipped = self.n_matched = 0
        self._max_entries, self._max_bytes = max_entries, max_bytes
        self._entries: deque[LogEntry] = deque()
        self._required = b""
        self.n_bytes = self._number = 0
        self._pending: dict[str, int] = {}
        self._caught_up: set[str] = set()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def is_full(self) -> bool:
        """Whether adding an entry evicts the oldest entry."""
        return len(self._entries) >= self._max_entries or self.n_bytes >= self._max_bytes

    @property
    def lag(self) -> int:
        """Number of unread messages in the streams, as each stream reported with its last delivered message."""
        return clamp_count(sum(self._pending.values()))

    @property
    def is_replaying(self) -> bool:
        """Whether the messages of a stream are still those of its history, which count in no rate."""
        return len(self._caught_up) < len(self._pending)

    def reset(self, required: str = "") -> None:
        """Remove all entries and set the counters to 0; from then on, keep only messages that contain ``required``."""
        self._entries.clear()
        self.shown.clear()
        self._pending.clear()
        self._caught_up.clear()
        self.subjects.reset_counts()
        self.n_received = self.n_evicted = self.n_gap = self.n_skipped = self.n_matched = self.n_bytes = 0
        self._required = required.encode("utf-8", "replace")

    def append(self, messages: Sequence[RawMessage | Notice], at: datetime) -> None:
        """Append messages and notices, which a subscription has sorted by time; ``at`` is the time of their arrival."""
        for message in messages:
            if isinstance(message, Notice):
                self._append_notice(message, at)
            else:
                self._append_message(message, at)
        self.clock_skew.sample([each for each in messages if isinstance(each, RawMessage)])
        while len(self._entries) > 1 and (len(self._entries) > self._max_entries or self.n_bytes > self._max_bytes):
            self._evict_oldest()

    def sample_rows(self) -> Iterator[LogEntry]:
        return islice(reversed(self._entries), MAX_OFFERED)

    def parse(self, text: str) -> Query[LogEntry]:
        return Query(EVENT_FIELDS, text, word_test=_word_test, splits=True)

    def show_matches(self) -> None:
        self._words = Words(self.query.words)
        self.shown = deque(entry for entry in self._entries if self._matches(entry))
        self.n_matched = len(self.shown)

    def _append_notice(self, notice: Notice, at: datetime) -> None:
        match notice.kind:
            case "gap":
                self.n_gap = clamp_count(self.n_gap + max(notice.count, 1))
            case "skipped":
                self.n_skipped = clamp_count(self.n_skipped + max(notice.count, 1))
        self._add(LogNotice(self._next_number(), at, notice.kind, notice.text[:MAX_CAUSE_CHARS]))

    def _append_message(self, message: RawMessage, at: datetime) -> None:
        self.n_received += 1
        if message.stream is not None and (message.stream in self._pending or len(self._pending) < MAX_STREAMS):
            self._pending[message.stream] = message.pending
        subject = self.subjects.add(message.subject, is_live=self._is_live(message, at))
        headers = _limit_headers(message.headers)
        if (
            self._required
            and self._required not in message.payload
            and self._required not in _subject_and_headers(subject, headers)
        ):
            return
        payload = message.payload[:MAX_PAYLOAD_BYTES]
        position = (message.stream, message.sequence)
        self._add(
            EventMessage(
                self._next_number(), message.time or at, subject, headers, payload, len(message.payload), *position
            )
        )

    def _is_live(self, message: RawMessage, at: datetime) -> bool:
        if message.stream not in self._pending or message.stream in self._caught_up:
            return True
        is_recent = message.time is not None and at - message.time < MAX_LIVE_AGE
        if is_recent or not message.pending:
            self._caught_up.add(message.stream)
        return is_recent

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _add(self, entry: LogEntry) -> None:
        self._entries.append(entry)
        self.n_bytes += entry.size
        if self._matches(entry):
            self.shown.append(entry)
            self.n_matched += 1

    def _evict_oldest(self) -> None:
        oldest = self._entries.popleft()
        self.n_bytes -= oldest.size
        self.n_evicted += 1
        if self.shown and self.shown[0] is oldest:
            self.shown.popleft()

    def _matches(self, entry: LogEntry) -> bool:
        return not self.query or (self._words.found_in(_searched_parts(entry)) and self.query.matches(entry))


def _word_test(word: str) -> Callable[[LogEntry], bool]:
    words = Words([word])
    return lambda entry: words.found_in(_searched_parts(entry))


def _limit_headers(headers: dict[str, str]) -> dict[str, str]:
    if not headers:
        return _NO_HEADERS
    limited: dict[str, str] = {}
    n_left = MAX_HEADER_BYTES
    for name, value in headers.items():
        n_left -= len(name) + len(value) + ENTRY_BYTES // 4
        if n_left < 0:
            break
        limited[name] = value
    return limited
