"""Messages of a bus as they came, the newest of them, and what was said about following it: bounded, not decoded.

Texts are kept as they came, hostile ones included; ``views`` makes them safe when it turns them into lines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from agentgym_tui.state.bus_message import ENTRY, MAX_HEADERS, LogEntry, Message, Remark
from agentgym_tui.state.clock_skew import Clocks
from agentgym_tui.state.event_order import by_time
from agentgym_tui.state.limits import MAX_CAUSE, count
from agentgym_tui.state.subject_tree import SubjectTree
from runner.subscribe.buffer import Incoming
from runner.subscribe.messages import Notice

MAX_ENTRIES: Final = 20_000
MAX_BYTES: Final = 16 << 20
MAX_PAYLOAD: Final = 1 << 20
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
        self.clocks = Clocks()
        self.n_seen = self.n_gone = self.n_gap = self.n_skipped = self.n_matched = 0
        self._max_entries, self._max_bytes = max_entries, max_bytes
        self._entries: deque[LogEntry] = deque()
        self._needles: list[bytes] = []
        self._only = b""
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
    def full(self) -> bool:
        """Whether what comes next makes the oldest go."""
        return len(self._entries) >= self._max_entries or self._bytes >= self._max_bytes

    @property
    def lag(self) -> int:
        """Messages that streams had behind those that came last."""
        return count(sum(self._pending.values()))

    def begin(self, only: str = "") -> None:
        """Forget all; from now on take messages that hold ``only``."""
        self._entries.clear()
        self.shown.clear()
        self._pending.clear()
        self.subjects.restart()
        self.n_seen = self.n_gone = self.n_gap = self.n_skipped = self.n_matched = self._bytes = 0
        self._only = only.encode("utf-8", "replace")

    def take(self, came: Sequence[Incoming | Notice], at: datetime) -> None:
        """Take what came, at a time."""
        for each in by_time(came):
            if isinstance(each, Notice):
                self._notice(each, at)
            else:
                self._message(each, at)
        self.clocks.sample([each for each in came if isinstance(each, Incoming)])
        while len(self._entries) > 1 and (len(self._entries) > self._max_entries or self._bytes > self._max_bytes):
            self._let_go()

    def search(self, text: str) -> None:
        """Show only entries that hold all words of ``text``, in subject, headers or payload; ASCII in any case."""
        self.words = tuple(text.lower().split())
        self._needles = [word.encode("utf-8", "replace") for word in self.words]
        self.shown = deque(entry for entry in self._entries if self._holds(entry))
        self.n_matched = len(self.shown)

    def _notice(self, notice: Notice, at: datetime) -> None:
        match notice.kind:
            case "gap":
                self.n_gap = count(self.n_gap + max(notice.count, 1))
            case "skipped":
                self.n_skipped = count(self.n_skipped + max(notice.count, 1))
        self._add(Remark(self._next(), at, notice.kind, notice.text[:MAX_CAUSE]))

    def _message(self, came: Incoming, at: datetime) -> None:
        self.n_seen += 1
        subject = self.subjects.add(came.subject)
        if came.stream is not None and (came.stream in self._pending or len(self._pending) < MAX_STREAMS):
            self._pending[came.stream] = came.pending
        headers = _bounded(came.headers)
        if self._only and self._only not in came.payload and self._only not in _text(subject, headers):
            return
        payload = came.payload[:MAX_PAYLOAD]
        place = (came.stream, came.sequence)
        self._add(Message(self._next(), came.time or at, subject, headers, payload, len(came.payload), *place))

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _add(self, entry: LogEntry) -> None:
        self._entries.append(entry)
        self._bytes += entry.size
        if self._holds(entry):
            self.shown.append(entry)
            self.n_matched += 1

    def _let_go(self) -> None:
        oldest = self._entries.popleft()
        self._bytes -= oldest.size
        self.n_gone += 1
        if self.shown and self.shown[0] is oldest:
            self.shown.popleft()

    def _holds(self, entry: LogEntry) -> bool:
        if not self._needles:
            return True
        if isinstance(entry, Remark):
            return all(needle in entry.text.lower().encode("utf-8", "replace") for needle in self._needles)
        payload = entry.payload.lower()
        missing = [needle for needle in self._needles if needle not in payload]
        if not missing:
            return True
        head = _text(entry.subject, entry.headers).lower()
        return all(needle in head for needle in missing)


def _bounded(headers: dict[str, str]) -> dict[str, str]:
    """Those there is room for."""
    if not headers:
        return _NO_HEADERS
    kept: dict[str, str] = {}
    room = MAX_HEADERS
    for name, value in headers.items():
        room -= len(name) + len(value) + ENTRY // 4
        if room < 0:
            break
        kept[name] = value
    return kept


def _text(subject: str, headers: dict[str, str]) -> bytes:
    if not headers:
        return subject.encode("utf-8", "replace")
    return "\n".join((subject, *headers, *headers.values())).encode("utf-8", "replace")
