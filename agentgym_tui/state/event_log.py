"""Log of the newest messages of a bus and of notices about the subscription, its search, and the tree of subjects.

Payloads are not decoded, except for the fields that a filter names. Texts are kept as received and may contain control
characters.
"""

from __future__ import annotations

import contextlib
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from agentgym_tui.state.normalize import MAX_CAUSE_CHARS, as_aware
from agentgym_tui.state.query import FieldSet, Query, Searchable
from runner.events.subjects import LIVE_SUBJECTS, PATTERN, DurableNames

if TYPE_CHECKING:
    from runner.query.fields import GetValue, Kind, Value
    from runner.subscribe.buffer import RawMessage
    from runner.subscribe.messages import Notice, Since

EVENT_NAMES: Final = DurableNames()
_LIVE: Final = LIVE_SUBJECTS.removesuffix(">")
_TYPES: Final = frozenset(EVENT_NAMES.all())
MALFORMED: Final = "malformed"
MALFORMED_QUERY: Final = f"is:{MALFORMED}"
MAX_ENTRIES: Final = 20_000
MAX_BYTES: Final = 16 << 20
MAX_PAYLOAD_BYTES: Final = 1 << 20  # kept per message
MAX_OFFERED: Final = 1_000  # entries whose values are offered for completion
MAX_STREAMS: Final = 1_000
# age of a message up to which its stream counts as read to its end; streams are merged within it
MAX_LIVE_AGE: Final = timedelta(seconds=2)
LIVE_SUBJECT: Final = re.compile(r"agentgym\.live\.[a-z]+\.v1\.([^.]+)")
MAX_HEADER_BYTES: Final = 64 << 10  # kept per message
ENTRY_BYTES: Final = 400  # approximate memory without texts
MAX_LIVE_ITEMS: Final = 1_000  # items of a live message whose fields are read
_MAX_CHARS: Final = 400
_COLUMNS: Final[tuple[tuple[str, Kind, str, str], ...]] = (  # the last is the name in JSON
    ("env", "text", "environment", "env"),
    ("kind", "text", "kind of the item", "kind"),
    ("outcome", "text", "how the episode ended", "outcome"),
    ("agent", "text", "agent", "agent"),
    ("model", "text", "model", "model"),
    ("status", "text", "status of the batch, node or server", "status"),
    ("episode", "id", "beginning of the id of the episode", "episode_id"),
    ("batch", "id", "beginning of the id of the batch", "batch_id"),
    ("battery", "id", "beginning of the id of the battery", "battery_id"),
    ("task", "number", "index of the task", "task_index"),
    ("reward", "number", "reward of the episode", "reward"),
    ("rounds", "number", "number of steps", "rounds"),
)
ALL_SUBJECTS: Final = (">",)
MAX_PATTERN_CHARS: Final = 255
MAX_PATTERNS: Final = 16
_SEQUENCE: Final = re.compile(r"#?([0-9]{1,18})")
_AGE: Final = re.compile(r"-?([0-9]{1,6})([smhd])")
_CLOCK: Final = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_MAX_AGE: Final = timedelta(days=36_500)
# the next message, the first stored one, a time, or a sequence number of each stream
HistoryStart: TypeAlias = Literal["now", "all"] | datetime | int
Payload = TypeVar("Payload")
SubjectOrder: TypeAlias = Literal["subject", "count", "rate"]  # by which the rows of a branch are sorted
MAX_SUBJECTS: Final = 6_000  # subjects with a count of their own
MAX_OVERFLOW_GROUPS: Final = 200  # groups of further subjects that have the same first word
MAX_SUBJECT_CHARS: Final = 256  # characters at its start that distinguish a subject
MAX_DEPTH: Final = 16
AUTO_OPEN_MAX: Final = 16  # children of a branch that is open before the user toggles it


class EventMessage(msgspec.Struct, gc=False):
    """A message of the bus or a line of a log file."""

    number: int
    at: datetime  # when the server stored it; its arrival here where no stream does
    subject: str
    headers: dict[str, str]
    payload: bytes  # its first bytes
    n_bytes: int  # of the whole payload
    stream: str | None = None
    sequence: int | None = None

    @property
    def size(self) -> int:
        headers = sum([len(name) + len(value) for name, value in self.headers.items()])
        return ENTRY_BYTES + len(self.payload) + headers


class LogNotice(NamedTuple):
    """A notice about the subscription, placed between the messages where it occurred."""

    number: int
    at: datetime  # when it arrived
    kind: str
    text: str

    @property
    def size(self) -> int:
        return ENTRY_BYTES + len(self.text)


LogEntry: TypeAlias = EventMessage | LogNotice


class EventQuery(msgspec.Struct, frozen=True):
    patterns: tuple[str, ...] = ALL_SUBJECTS
    start: HistoryStart = "now"
    episode: str = ""  # that each message must contain; "" for all messages
    is_history: bool = False  # the view stays at the first message; scrolling reads more


def resolve_start(start: HistoryStart, now: datetime) -> Since:
    """A subscription takes a duration in place of a time."""
    return max(now - start, timedelta()) if isinstance(start, datetime) else start


def parse_patterns(text: str) -> tuple[str, ...] | None:
    """Return subject patterns that blanks or commas separate; None if one is not valid."""
    return valid_patterns(text.replace(",", " ").split() or ALL_SUBJECTS)


def valid_patterns(patterns: list[str] | tuple[str, ...]) -> tuple[str, ...] | None:
    are_valid = all(len(each) <= MAX_PATTERN_CHARS and PATTERN.fullmatch(each) for each in patterns)
    return tuple(patterns) if are_valid and len(patterns) <= MAX_PATTERNS else None


def parse_age(text: str) -> timedelta | None:
    """Return a duration of at most a century, such as ``30s``, ``10m`` or ``2d``."""
    age = _AGE.fullmatch(text)
    return None if age is None else min(timedelta(seconds=int(age[1]) * _SECONDS[age[2]]), _MAX_AGE)


def parse_start(text: str, now: datetime) -> HistoryStart | None:
    """Return the start of a query; None if the text has another form than these.

    ``all``, ``now``, a sequence number, a duration before now such as ``10m``, a clock time such as ``14:30``, or an
    ISO date with or without a time. A time without a zone is local time.
    """
    text = text.strip()
    if text in ("all", "now"):
        return "all" if text == "all" else "now"
    if (sequence := _SEQUENCE.fullmatch(text)) is not None:
        return int(sequence[1])
    if (age := parse_age(text)) is not None:
        return now - age
    try:
        if (clock := _CLOCK.fullmatch(text)) is not None:
            hour, minute, second = (int(part or 0) for part in clock.groups())
            at = now.astimezone().replace(hour=hour, minute=minute, second=second, microsecond=0)
            return (at if at <= now else at - timedelta(days=1)).astimezone(UTC)
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None


class Words:
    """Words that a text must contain: ASCII letters in any case, others as entered or in lower case."""

    def __init__(self, words: Iterable[str] = ()) -> None:
        self.needles = tuple(
            tuple(dict.fromkeys(form.encode("utf-8", "replace").lower() for form in (word, word.lower())))
            for word in words
        )

    def found_in(self, parts: Iterable[bytes]) -> bool:
        """Return whether each word is in one of the parts; a part that cannot change the answer is not requested."""
        missing, rest = self.needles, iter(parts)
        while missing and (part := next(rest, None)) is not None:
            lower = part.lower()
            missing = tuple(forms for forms in missing if not any(form in lower for form in forms))
        return not missing


def json_columns(payload_of: Callable[[Payload], bytes]) -> list[tuple[str, Kind, str, GetValue[Payload]]]:
    """Return the columns of the fields in the payloads of rows, for ``FieldSet``."""
    read = partial(partial, _payload_values, payload_of)
    return [(name, kind, about, read(json_name)) for name, kind, about, json_name in _COLUMNS]


def _payload_values(payload_of: Callable[[Payload], bytes], name: str, row: Payload) -> Value | tuple[Value, ...]:
    found = [raw for each in _objects(payload_of(row)) if (raw := each.get(name)) is not None]
    values = dict.fromkeys(value for raw in found for value in _scalars(raw))
    return tuple(values) if len(values) > 1 else next(iter(values), None)


@lru_cache(maxsize=1)  # a query may test several fields of a payload
def _objects(payload: bytes) -> list[Mapping[str, msgspec.Raw]]:
    """Return the object of a payload and the items of a live message, as far as they can be decoded."""
    objects: list[Mapping[str, msgspec.Raw]] = []
    with contextlib.suppress(ValueError, RecursionError):
        objects.append(OBJECT_DECODER.decode(payload))
        if (items := objects[0].get("items")) is not None:
            objects += _ITEMS.decode(items)[:MAX_LIVE_ITEMS]
    return objects


def _scalars(raw: msgspec.Raw) -> Iterator[Value]:
    with contextlib.suppress(ValueError, RecursionError):  # JSON allows numbers of any size
        value = None if bytes(raw)[:1] in (b"{", b"[") else msgspec.json.decode(raw)
        if isinstance(value, str):
            yield value[:_MAX_CHARS]
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield value


OBJECT_DECODER: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


def node_of(message: EventMessage) -> str:
    """Return the node that sent a message, by its headers or subject (untrusted text); "" if it is not known."""
    live = LIVE_SUBJECT.fullmatch(message.subject)
    sources = (value for name, value in message.headers.items() if name.lower() == "ce-source")
    return next(sources, live[1] if live is not None else "")


def is_agentgym_message(message: EventMessage) -> bool:
    """Whether a message is an AgentGym event by subject or CloudEvents type, so that it is malformed if not decoded."""
    if message.subject in _TYPES or message.subject.startswith(_LIVE):
        return True
    return any(key.lower() == "ce-type" and value.strip() in _TYPES for key, value in message.headers.items())


def decode_error(message: EventMessage) -> str:
    """Return why an AgentGym event, or an item of a live batch, cannot be decoded; "" for any other message."""
    if not is_agentgym_message(message):
        return ""
    from runner.events import codec  # what opened files do not need

    match codec.decode(message.subject, message.headers, message.payload, EVENT_NAMES):
        case codec.RawRow() as row:
            return row.reason
        case codec.LiveRow() as row:
            items = map(codec.decode_item, row.batch.items)
            raw = [*row.raw, *(item for item in items if isinstance(item, codec.RawRow))]
            return f"{len(raw)} of its items: {raw[0].reason}" if raw else ""
    return ""


def _searched_parts(entry: LogEntry) -> Iterator[bytes]:
    if isinstance(entry, LogNotice):
        yield entry.text.encode("utf-8", "replace")
    else:
        yield entry.payload
        yield _subject_and_headers(entry.subject, entry.headers)


def _subject_and_headers(subject: str, headers: dict[str, str]) -> bytes:
    return "\n".join((subject, *headers, *headers.values())).encode("utf-8", "replace")


EVENT_FIELDS: Final[FieldSet[LogEntry]] = FieldSet(  # those of a payload are looked for in live items, too
    ("subject", "text", "subject", lambda entry: getattr(entry, "subject", None)),
    ("node", "text", "node that sent it", lambda entry: node_of(entry) if isinstance(entry, EventMessage) else None),
    *json_columns(lambda entry: entry.payload if isinstance(entry, EventMessage) else b""),
    ("seq", "number", "sequence number in its stream", lambda entry: getattr(entry, "sequence", None)),
    ("stream", "text", "stream that stores it", lambda entry: getattr(entry, "stream", None)),
    ("size", "number", "bytes of the payload", lambda entry: getattr(entry, "n_bytes", None)),
    ("since", "since", "stored since an age or a time: 5m, 2h, 2026-11-26", lambda entry: as_aware(entry.at)),
    ("until", "until", "stored until then", lambda entry: as_aware(entry.at)),
    ("notice", "text", "kind of a notice of the subscription", lambda entry: getattr(entry, "kind", None)),
    (
        *("is", "text", "malformed: of AgentGym, but it cannot be decoded"),
        lambda entry: MALFORMED if isinstance(entry, EventMessage) and decode_error(entry) else None,
    ),
    values={"is": (MALFORMED,)},
)


class _SubjectCount(msgspec.Struct):
    subject: str = ""  # one object for all messages that this counts; "" for several subjects
    n: int = 0
    n_live: int = 0
    rate: float = 0.0


class _Node(msgspec.Struct):
    n: int = 0
    rate: float = 0.0
    is_subject: bool = False
    is_truncated: bool = False
    children: dict[str, _Node] = msgspec.field(default_factory=dict)


class SubjectRow(NamedTuple):
    """A row of the tree, which stands for one word of a subject."""

    path: str  # words from the root to that of this row, joined by dots
    word: str
    depth: int
    n: int  # on ``path`` and all subjects below it, as ``rate``
    rate: float  # live messages per second
    n_children: int  # also hidden ones, directly below
    is_open: bool
    is_subject: bool  # messages arrive on ``path`` itself
    is_truncated: bool = False  # it has subjects without rows, which are only counted together

    @property
    def patterns(self) -> tuple[str, ...]:
        """Match all messages on ``path`` and below it; untrusted text."""
        below = (f"{self.path}.>",) if self.n_children or self.is_truncated else ()
        return (self.path, *below) if self.is_subject or not below else below


class SubjectTree:
    """Message counts and rates of the subjects of a bus; ``rate`` is that of live messages on all of them."""

    def __init__(self) -> None:
        self.rate = 0.0
        self._counts: dict[str, _SubjectCount] = {}
        self._overflow: dict[str, _SubjectCount] = {}
        self._others = _SubjectCount()
        self._toggled: set[str] = set()
        self._ticked_at: float | None = None

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def n_others(self) -> int:
        """Messages on subjects that have neither a count of their own nor a group."""
        return self._others.n

    def add(self, subject: str, *, is_live: bool = True) -> str:
        """Count a message, in the rates only a live one; return its subject as an object that they all share."""
        subject = subject[:MAX_SUBJECT_CHARS]
        count = self._counts.get(subject) or self._new(subject)
        count.n += 1
        count.n_live += is_live
        return count.subject or subject

    def reset_counts(self) -> None:
        for count in self._all_counts():
            count.n = count.n_live = 0
            count.rate = 0.0
        self.rate, self._ticked_at = 0.0, None

    def tick(self, now: float) -> None:
        """Compute the rates since the last call; ``now`` is in seconds of a monotonic clock."""
        elapsed_s = None if self._ticked_at is None else now - self._ticked_at
        if elapsed_s is not None and elapsed_s <= 0:
            return
        for count in self._all_counts():
            count.rate = count.n_live / elapsed_s if elapsed_s else 0.0
            count.n_live = 0
        self._ticked_at = now
        self.rate = sum(count.rate for count in self._all_counts())

    def toggle(self, path: str) -> None:
        self._toggled ^= {path}

    def rows(self, by: SubjectOrder = "subject", *, descending: bool = False) -> list[SubjectRow]:
        """Return the shown rows; those below the same row are sorted."""
        return list(self._rows(self._tree(), partial(_sorted_words, by, descending)))

    def _rows(
        self, node: _Node, sorted_words: Callable[[_Node], list[str]], above: str = "", depth: int = 0
    ) -> Iterator[SubjectRow]:
        for word in sorted_words(node):
            child, path = node.children[word], f"{above}.{word}" if depth else word
            n_children, is_truncated = len(child.children), child.is_truncated
            is_open = (n_children <= AUTO_OPEN_MAX) != (path in self._toggled)
            numbers = (child.n, child.rate, n_children)
            yield SubjectRow(path, word, depth, *numbers, is_open, child.is_subject, is_truncated)
            if is_open:
                yield from self._rows(child, sorted_words, path, depth + 1)

    def _new(self, subject: str) -> _SubjectCount:
        if len(self._counts) < MAX_SUBJECTS:
            return self._counts.setdefault(subject, _SubjectCount(subject))
        first = subject.partition(".")[0]
        is_full = first not in self._overflow and len(self._overflow) >= MAX_OVERFLOW_GROUPS
        return self._others if is_full else self._overflow.setdefault(first, _SubjectCount())

    def _all_counts(self) -> Iterator[_SubjectCount]:
        yield from self._counts.values()
        yield from self._overflow.values()
        yield self._others

    def _tree(self) -> _Node:
        root = _Node()
        for subject, count in self._counts.items():
            node = root
            for word in subject.split(".", MAX_DEPTH - 1):
                node = node.children.setdefault(word, _Node())
                node.n += count.n
                node.rate += count.rate
            node.is_subject = True
        for first, count in self._overflow.items():
            node = root.children.setdefault(first, _Node(is_subject=True))
            node.is_truncated = True
            node.n += count.n
            node.rate += count.rate
        return root


def _sorted_words(by: SubjectOrder, descending: bool, node: _Node) -> list[str]:
    """Words with equal values stay in alphabetical order."""
    if by == "subject":
        return sorted(node.children, reverse=descending)
    value = attrgetter("n" if by == "count" else "rate")
    return sorted(sorted(node.children), key=lambda word: value(node.children[word]), reverse=descending)


class EventLog(Searchable[LogEntry]):
    """The newest messages and notices; words are found in subject, headers, payload, and a notice's text.

    Attributes:
        subjects: evicted messages stay counted.
        n_matched: entries added to ``shown`` since the last ``reset`` or ``search``.
        n_gap: messages that were deleted from their stream before this program read them.
        n_skipped: messages dropped unread because they arrived too fast and no stream stores them.
    """

    def __init__(self, *, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        super().__init__(EVENT_FIELDS)
        self._max_entries, self._max_bytes, self._number = max_entries, max_bytes, 0
        self._words, self.subjects = Words(), SubjectTree()
        self.reset()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def is_full(self) -> bool:
        return len(self._entries) >= self._max_entries or self.n_bytes >= self._max_bytes

    @property
    def lag(self) -> int:
        return sum(self._pending.values())

    @property
    def is_replaying(self) -> bool:
        """Whether the messages of a stream are still those of its history, which count in no rate."""
        return len(self._caught_up) < len(self._pending)

    def reset(self, required: str = "") -> None:
        """Forget everything; from then on, keep only messages that contain ``required``."""
        self._entries, self.shown = deque[LogEntry](), deque[LogEntry]()
        self._pending, self._caught_up = dict[str, int](), set[str]()
        self.subjects.reset_counts()
        self.n_received = self.n_evicted = self.n_gap = self.n_skipped = self.n_matched = self.n_bytes = 0
        self._required = required.encode("utf-8", "replace")

    def append(self, messages: Sequence[RawMessage | Notice], at: datetime) -> None:
        """Append messages that arrived ``at``, as a subscription has sorted them by time."""
        from runner.subscribe.messages import Notice  # imports the client of the bus, which a log file does not need

        for message in messages:
            if isinstance(message, Notice):
                self.n_gap += max(message.count, 1) if message.kind == "gap" else 0
                self.n_skipped += max(message.count, 1) if message.kind == "skipped" else 0
                self._number += 1
                self._add(LogNotice(self._number, at, message.kind, message.text[:MAX_CAUSE_CHARS]))
            else:
                self._append_message(message, at)
        while len(self._entries) > 1 and (len(self._entries) > self._max_entries or self.n_bytes > self._max_bytes):
            oldest = self._entries.popleft()
            self.n_bytes -= oldest.size
            self.n_evicted += 1
            if self.shown and self.shown[0] is oldest:
                self.shown.popleft()

    def sample_rows(self) -> Iterator[LogEntry]:
        return islice(reversed(self._entries), MAX_OFFERED)

    def parse(self, text: str) -> Query[LogEntry]:
        return Query(EVENT_FIELDS, text, word_test=_word_test, splits=True)

    def show_matches(self) -> None:
        self._words = Words(self.query.words)
        self.shown = deque(entry for entry in self._entries if self._matches(entry))
        self.n_matched = len(self.shown)

    def _append_message(self, message: RawMessage, at: datetime) -> None:
        self.n_received += 1
        if message.stream is not None and (message.stream in self._pending or len(self._pending) < MAX_STREAMS):
            self._pending[message.stream] = message.pending
        subject = self.subjects.add(message.subject, is_live=self._is_live(message, at))
        payload, headers = message.payload, _limit_headers(message.headers)
        if self._required in payload or self._required in _subject_and_headers(subject, headers):
            self._number += 1
            where = (message.stream, message.sequence)
            kept = payload[:MAX_PAYLOAD_BYTES]
            self._add(EventMessage(self._number, message.time or at, subject, headers, kept, len(payload), *where))

    def _is_live(self, message: RawMessage, at: datetime) -> bool:
        if message.stream not in self._pending or message.stream in self._caught_up:
            return True
        is_recent = message.time is not None and at - message.time < MAX_LIVE_AGE
        if is_recent or not message.pending:
            self._caught_up.add(message.stream)
        return is_recent

    def _add(self, entry: LogEntry) -> None:
        self._entries.append(entry)
        self.n_bytes += entry.size
        if self._matches(entry):
            self.shown.append(entry)
            self.n_matched += 1

    def _matches(self, entry: LogEntry) -> bool:
        return not self.query or (self._words.found_in(_searched_parts(entry)) and self.query.matches(entry))


def _word_test(word: str) -> Callable[[LogEntry], bool]:
    words = Words([word])
    return lambda entry: words.found_in(_searched_parts(entry))


def _limit_headers(headers: dict[str, str]) -> dict[str, str]:
    limited: dict[str, str] = {}
    n_left = MAX_HEADER_BYTES
    for name, value in headers.items():
        n_left -= len(name) + len(value) + ENTRY_BYTES // 4
        if n_left < 0:
            break
        limited[name] = value
    return limited
