"""The events screen: messages and notices as rows, each message in one line, its heading, and the subject tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Final, NamedTuple, get_args

import msgspec

from agentgym_tui.presenters.cells import (
    Cell,
    Column,
    Line,
    Tone,
    cut_middle,
    filter_cells,
    indented_rows,
    join_parts,
    key_line,
)
from agentgym_tui.presenters.episode_facts import FALLBACK_MARK
from agentgym_tui.presenters.number_format import (
    UNKNOWN,
    format_count,
    format_per_second,
    format_reward,
    format_time,
    pluralize,
    rate_text,
)
from agentgym_tui.presenters.payload import payload_size
from agentgym_tui.presenters.status_line import LINK_STATES
from agentgym_tui.safe_text import MAX_LINE_CHARS, masked_line, player_text
from agentgym_tui.sessions.event_reader import EventReader
from agentgym_tui.state.event_log import (
    ALL_SUBJECTS,
    EVENT_NAMES,
    LIVE_SUBJECT,
    MALFORMED_QUERY,
    MAX_SUBJECTS,
    EventLog,
    EventMessage,
    EventQuery,
    LogEntry,
    LogNotice,
    SubjectOrder,
    SubjectRow,
    SubjectTree,
    decode_error,
    is_agentgym_message,
    node_of,
)
from agentgym_tui.state.query import Sorting
from agentgym_tui.state.run_store import RunStore
from runner.events.codec import DurableRow, check_limits, decode
from runner.events.durable import BatchCompleted, BatteryCompleted, DurableEvent, EpisodeCompleted, FieldStatus
from runner.events.subjects import LIVE_SUBJECTS
from runner.types import join_models

MAX_CACHED: Final = 1_000
MAX_SHOWN: Final = 200
MAX_KINDS: Final = 6
SUBJECT_WIDTH: Final = 30
EVENT_COLUMNS: Final = (
    Column("time", 12),
    Column("seq", 8, right=True, rank=2),
    Column("subject", SUBJECT_WIDTH, most=70),
    Column("node", 12, rank=1, most=30),
    Column("message", None, min_width=20, most=80),
)
SUBJECT_COLUMNS: Final = (
    Column("subject", None, min_width=10),
    Column("count", 5, right=True, rank=1),
    Column("rate", 6, right=True, rank=2),
)
DEFAULT_SORTING: Final = Sorting("subject")
_SORT_KEYS: Final[tuple[SubjectOrder, ...]] = get_args(SubjectOrder)
_INDENT: Final = 2
"""Columns of indentation per level of the subject tree; deep levels of a narrow tree have less."""
_LIVE: Final = LIVE_SUBJECTS.removesuffix(">")
_NOTICE_TONES: Final[dict[str, Tone]] = {"no_history": "dim", "reconnected": "dim"}


class EventRows:
    """Messages and notices as rows of ``EVENT_COLUMNS``; the key of a row is the number of its log entry."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self._summaries: dict[int, MessageSummary] = {}

    def __len__(self) -> int:
        return len(self.log.shown)

    def entry(self, index: int) -> LogEntry | None:
        return self.log.shown[index] if 0 <= index < len(self.log.shown) else None

    def episode_id(self, index: int) -> str:
        """Return the episode id in the message of a row; "" if the message has none."""
        entry = self.entry(index)
        return self._summary(entry).episode_id if isinstance(entry, EventMessage) else ""

    def key(self, index: int) -> str:
        return str(self.log.shown[index].number)

    def line(self, index: int, width: int) -> Line:
        entry = self.log.shown[index]
        at = Cell(format_time(entry.at, "%H:%M:%S", ms=True), "dim")
        if isinstance(entry, LogNotice):
            return [at, Cell(""), Cell(f"― {masked_line(entry.text, 300)}", _NOTICE_TONES.get(entry.kind, "warn"))]
        summary = self._summary(entry)
        sequence = Cell("" if entry.sequence is None else str(entry.sequence), "dim")
        subject = Cell(entry.subject, "accent")
        if _LIVE not in entry.subject:
            subject.or_shorter(partial(cut_middle, entry.subject))
        return [at, sequence, subject, Cell(summary.node or UNKNOWN, "dim"), summary.cell]

    def _summary(self, message: EventMessage) -> MessageSummary:
        if (known := self._summaries.get(message.number)) is None:
            if len(self._summaries) >= MAX_CACHED:
                self._summaries.clear()
            known = self._summaries[message.number] = summarize(message)
        return known


def events_heading(
    reader: EventReader, log: EventLog, store: RunStore, key: Callable[[str], str], width: int, kept: str = ""
) -> list[Line]:
    """Return query, that of an earlier start if it is ``kept``, and reading state, then the message counters."""
    clear, query = key("events.clear"), reader.query
    matches = "kept filter " if log.query_text == kept else "matches "
    above = [
        [Cell("Events", "head")],
        [Cell(matches, "accent"), *filter_cells(log.query.text, clear, width)] if log.query else [],
        [_reading_state(reader, key)],
        filter_cells(" ".join(query.patterns), clear, width) if query.patterns != ALL_SUBJECTS else [],
        [Cell("episode ", "accent"), *filter_cells(query.episode, clear, width)] if query.episode else [],
        [Cell(f"from {_start_text(query)}")] if query.is_history else [],
        [Cell(*LINK_STATES[store.link.status])],
        [Cell(masked_line(store.link.address, 60), "dim")] if store.link.address else [],
    ]
    return [join_parts(above, width), join_parts(list(_counter_parts(reader, log, store, key)), width)]


def _reading_state(reader: EventReader, key: Callable[[str], str]) -> Cell:
    waiting = "" if reader.n_waiting is None else f", {format_count(reader.n_waiting)} waiting"
    if reader.paused:
        return Cell(f"‖ paused{waiting}", "warn")
    if reader.query.is_history:
        return Cell(f"◂ history{waiting}", "accent")
    if reader.suspended:
        return Cell("‖ not reading while another screen is shown", "warn")
    if not reader.is_reading:
        return Cell(f"‖ no room for more{waiting}; {key('list.bottom')} continues", "warn")
    return Cell("● live", "good")


def _start_text(query: EventQuery) -> str:
    if isinstance(query.start, datetime):
        return f"{query.start.astimezone():%Y-%m-%d %H:%M:%S}"
    return {"all": "the beginning", "now": "now"}.get(str(query.start), f"#{query.start}")


def _counter_parts(reader: EventReader, log: EventLog, store: RunStore, key: Callable[[str], str]) -> Iterator[Line]:
    yield [Cell(pluralize(log.n_received, "message"))]
    if log.is_replaying and reader.is_reading:
        yield [Cell("replaying history", "accent")]
    elif rate := format_per_second(log.subjects.rate):
        yield [Cell(rate, "accent")]
    yield [Cell(f"lag {format_count(log.lag)}", "warn" if log.lag > 1_000 else "dim")]
    found = f"malformed ({key('events.filter')} {MALFORMED_QUERY})" if store.n_malformed else "malformed"
    for n, label in ((log.n_gap, "in gaps"), (log.n_skipped, "skipped"), (store.n_malformed, found)):
        yield [Cell(f"{format_count(n)} {label}", "warn" if n else "dim")]
    if log.n_evicted:
        yield [Cell(f"newest {format_count(len(log))} kept", "dim")]
    yield [Cell(pluralize(len(log.subjects), "subject"), "dim")]


def entry_info(entry: LogEntry | None, view: str) -> Line:
    if not isinstance(entry, EventMessage):
        return []
    error = decode_error(entry)
    return [payload_size(entry, view), *([Cell(" "), Cell(f"✗ malformed: {error}", "bad")] if error else [])]


def empty_events_lines(
    reader: EventReader, log: EventLog, store: RunStore, key: Callable[[str], str], width: int
) -> list[Line]:
    if log.query:
        head: Line = [Cell("No message matches ", "head"), Cell(log.query.text, "accent")]
        is_counted = log.query.text == MALFORMED_QUERY and store.n_malformed
        unlisted = "those counted above came before this list was read, or are single items of live messages"
        why: list[Line] = indented_rows(unlisted, width) if is_counted else []
        return [head, *why, key_line(key("events.clear"), "shows all messages", 3)]
    if store.link.status != "connected":
        cause = indented_rows(masked_line(store.link.cause, 400), width) if store.link.cause else []
        return [[Cell("Not connected to the bus yet.", "head")], *cause]
    subjects = " ".join(reader.query.patterns)
    return [
        [Cell("No messages yet on ", "head"), Cell(subjects, "accent")],
        key_line(key("events.go_to"), "goes back in the stream history: a sequence, a time, 10m, all", 3),
        key_line(key("events.subject"), "selects subjects, with * and >", 3),
    ]


class SubjectRows:
    """A snapshot of the subject tree as rows of ``SUBJECT_COLUMNS``; the key of a row is its subject prefix.

    Once the tree has reached its limit, a last row with the key "" counts the messages on all other subjects.
    """

    def __init__(self, branches: Sequence[SubjectRow] = (), n_others: int = 0) -> None:
        self.branches, self._n_others = branches, n_others

    @classmethod
    def from_tree(cls, tree: SubjectTree, sorting: Sorting | None = None) -> SubjectRows:
        column, descending = sorting or DEFAULT_SORTING
        order = next((each for each in _SORT_KEYS if each == column), None)
        return cls(tree.rows(order or "subject", descending=descending and order is not None), tree.n_others)

    def __len__(self) -> int:
        return len(self.branches) + bool(self._n_others)

    def line(self, index: int, width: int) -> Line:
        if index >= len(self.branches):
            return [Cell(f"beyond {MAX_SUBJECTS:,} subjects", "warn"), Cell(format_count(self._n_others)), Cell("")]
        branch = self.branches[index]
        sign = "" if not branch.n_children else "▾ " if branch.is_open else "▹ "
        closed = "" if branch.is_open or not branch.n_children else f" ({format_count(branch.n_children)})"
        indent = " " * min(_INDENT * branch.depth, width // 4)
        name = f"{indent}{sign}{branch.word}{closed}{' …' if branch.is_truncated else ''}"
        tone: Tone = "plain" if branch.n else "dim"
        return [Cell(name, tone), Cell(format_count(branch.n), tone), Cell(format_per_second(branch.rate), "dim")]

    def key(self, index: int) -> str:
        return self.branches[index].path if index < len(self.branches) else ""

    def branch(self, index: int) -> SubjectRow | None:
        return self.branches[index] if index < len(self.branches) else None


class MessageSummary(NamedTuple):
    node: str
    cell: Cell
    episode_id: str = ""


class _Item(msgspec.Struct):
    kind: str
    episode_id: str = ""
    env: str = ""
    outcome: str = ""


class _Batch(msgspec.Struct):
    node: str
    items: list[_Item]
    dropped: int = 0


class _EpisodeReference(msgspec.Struct):
    episode_id: str = ""


_BATCH: Final = msgspec.json.Decoder(_Batch)
_EPISODE_REFERENCE: Final = msgspec.json.Decoder(_EpisodeReference)


def summarize(message: EventMessage) -> MessageSummary:
    """Summarize a message in one line. A malformed message raises no error; it is described."""
    node = node_of(message)
    if LIVE_SUBJECT.fullmatch(message.subject):
        return _summarize_live(message, node)
    if is_agentgym_message(message):
        return _summarize_durable(message, node)
    return MessageSummary(node, Cell(_payload_preview(message), "plain"), _named_episode(message))


def _summarize_live(message: EventMessage, node: str) -> MessageSummary:
    """Count the items of a live message by kind, such as ``3 timestep, 120 token · Wordle``."""
    try:
        check_limits(message.payload)
        batch = _BATCH.decode(message.payload)
    except (ValueError, RecursionError):
        return MessageSummary(node, _malformed_cell(message))
    episode_ids = (item.episode_id for item in batch.items if item.episode_id)
    kinds = Counter(item.kind for item in batch.items)
    shown = [kind if n == 1 else f"{n:,} {kind}" for kind, n in kinds.most_common()]
    parts = [", ".join(shown[:MAX_KINDS]), *(["…"] if len(shown) > MAX_KINDS else [])]
    episode = next((item for item in batch.items if item.env or item.outcome), None)
    parts += [f"{episode.env} {episode.outcome}".strip()] if episode else []
    parts += [f"{format_count(batch.dropped)} dropped earlier"] if batch.dropped else []
    text = " · ".join(filter(None, parts)) or "nothing"
    return MessageSummary(batch.node, Cell(text), next(episode_ids, ""))


def _summarize_durable(message: EventMessage, node: str) -> MessageSummary:
    match decode(message.subject, message.headers, message.payload, EVENT_NAMES):
        case DurableRow(event=event):
            episode_id = event.episode_id if isinstance(event, EpisodeCompleted) else ""
            tone: Tone = "good" if isinstance(event, EpisodeCompleted) and event.success else "plain"
            cell = Cell(masked_line(" · ".join(filter(None, _event_parts(event))), MAX_LINE_CHARS), tone)
            return MessageSummary(event.node or node, cell, episode_id)
    return MessageSummary(node, _malformed_cell(message), _named_episode(message))


def _event_parts(event: DurableEvent) -> Iterator[str]:
    match event:
        case EpisodeCompleted():
            success = {True: "success", False: "failure", None: ""}[event.success]
            yield f"{event.env} {event.outcome or success}".strip()
            yield f"reward {format_reward(event.reward)}"
            yield pluralize(event.rounds, "round")
            yield player_text(event.agent, join_models(event.model, event.models))
            if event.fallback:
                yield f"{FALLBACK_MARK} answered by {masked_line(event.fallback, 60)}"
        case BatchCompleted():
            yield f"{event.env} {event.status}"
            yield pluralize(event.n_episodes, "episode")
            rate = event.success_rate
            scored = "" if rate is None or event.n_rated is None else f" of {format_count(event.n_rated)}"
            yield f"success {rate_text(rate)}{scored}"
            if event.n_errors:
                yield pluralize(event.n_errors, "error")
            yield f"mean reward {format_reward(event.mean_reward)}"
            if event.models and event.models != [event.model]:
                yield join_models(event.model, event.models) or ""
        case BatteryCompleted():
            yield pluralize(len(event.batches), "batch", "batches")
            yield ", ".join(event.environments)
            if event.n_cancelled:
                yield f"{event.n_cancelled:,} cancelled"
            yield pluralize(event.n_episodes, "episode")
            yield f"mean reward {format_reward(event.mean_reward)}"
            yield ", ".join(event.models)
        case FieldStatus():
            yield f"{event.role or ''} {event.status}".strip()
            yield event.config


def _malformed_cell(message: EventMessage) -> Cell:
    reason = decode_error(message) or "unexpected fields"
    return Cell(f"✗ malformed: {reason}", "bad")


def _payload_preview(message: EventMessage) -> str:
    head = message.payload[: 4 * MAX_SHOWN]
    try:
        text = head.decode()
    except UnicodeDecodeError as exc:
        if len(head) == message.n_bytes or exc.start < len(head) - 3:
            return f"{pluralize(message.n_bytes, 'byte')}, not text"
        text = head[: exc.start].decode()
    return text[:MAX_SHOWN] if text else "empty"


def _named_episode(message: EventMessage) -> str:
    try:
        check_limits(message.payload)
        return _EPISODE_REFERENCE.decode(message.payload).episode_id
    except (ValueError, RecursionError):
        return ""
