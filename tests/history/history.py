"""A recorded history, indexed for the checks: batches, files, streams, games on servers, and faults."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeVar

from tests.history.records import (
    AnyRecord,
    Begin,
    Call,
    End,
    EpisodeFile,
    Fault,
    Journal,
    Message,
    Reset,
    Sink,
    Step,
    StreamRead,
)

_R = TypeVar("_R", bound=AnyRecord)

RATED: Final = frozenset({"success", "failure", "truncated", "timeout"})
STOPPED: Final = frozenset({"cancelled", "interrupted"})
MAX_LISTED = 200
"""Number of batches in the reply to ``list``."""


class HistoryError(Exception):
    """The history lacks a record without which nothing can be concluded; a mistake of the recording."""


@dataclass
class Batch:
    """A batch whose start was answered with ``ok``, as the first such answer describes it."""

    batch_id: str
    env: str
    n_planned: int
    tasks: range
    attempts: int
    accepted: Call

    def plans(self, task_index: int, attempt: int) -> bool:
        return task_index in self.tasks and attempt in range(self.attempts)


@dataclass
class Game:
    """One task in an instance of a server, from the reset to the last step."""

    reset: Reset
    steps: list[Step] = field(default_factory=list)

    @property
    def ended_at(self) -> float:
        return self.steps[-1].at if self.steps else self.reset.at


@dataclass
class StoredEpisode:
    """An episode file: all versions of it that were seen, and its present document."""

    path: str
    versions: list[EpisodeFile]

    @property
    def document(self) -> dict[str, Any] | None:
        return self.versions[-1].document

    @property
    def seen_at(self) -> float:
        return self.versions[0].at


@dataclass(frozen=True)
class FaultSpan:
    """A fault from its beginning to its end; a fault that never ended lasts until the end of the history."""

    begin: Fault
    ended_at: float

    def overlaps(self, start: float, end: float) -> bool:
        return self.begin.at <= end and start <= self.ended_at


class History:
    """Records of one history by time."""

    def __init__(self, records: Sequence[AnyRecord]) -> None:
        """Index the records.

        Raises:
            HistoryError: the beginning, the end, or what must be read at the end is missing.
        """
        self.records = sorted(records, key=lambda record: record.at)
        self.begin = self._only(Begin)
        self.end = self._only(End)
        if self.last_list is None:
            raise HistoryError("no answered `list` request is recorded")
        if missing := set(self.begin.sinks) - {read.sink for read in self.all(StreamRead)}:
            raise HistoryError(f"the streams of {', '.join(sorted(missing))} were not read at the end")
        for read in self.all(StreamRead):
            present = {m.seq for m in self.all(Message) if (m.sink, m.created) == (read.sink, read.created)}
            if lacking := set(range(1, read.last_seq + 1)) - present:
                raise HistoryError(f"messages of the {read.sink} stream were not recorded, first {min(lacking)}")

    def all(self, kind: type[_R]) -> list[_R]:
        return [record for record in self.records if isinstance(record, kind)]

    def _only(self, kind: type[_R]) -> _R:
        found = self.all(kind)
        if len(found) != 1:
            raise HistoryError(f"{len(found)} records {kind.__name__.lower()!r} instead of one")
        return found[0]

    # --- control

    @cached_property
    def calls(self) -> list[Call]:
        return self.all(Call)

    @cached_property
    def lists(self) -> list[Call]:
        return [call for call in self.calls if call.op == "list" and is_ok(call)]

    @property
    def last_list(self) -> Call | None:
        return max(self.lists, key=lambda call: call.ended_at, default=None)

    @cached_property
    def batches(self) -> dict[str, Batch]:
        """Accepted batches by id, in the order of their acceptance."""
        found: dict[str, Batch] = {}
        starts = [call for call in self.calls if call.op == "start" and is_ok(call)]
        for call in sorted(starts, key=lambda call: call.ended_at):
            for state in (call.reply or {})["result"]:
                found.setdefault(state["batch_id"], _batch(call, state))
        return found

    def is_cancelled(self, batch_id: str) -> bool:
        """Whether a cancellation of the batch or its battery was requested, with whatever answer."""
        targets = {call.args.get("batch_id") for call in self.calls if call.op == "cancel"}
        batch = self.batches.get(batch_id)
        return bool(targets & {batch_id, batch.accepted.args["batch_id"] if batch else batch_id})

    def cancellation(self, batch_id: str) -> Call | None:
        """Return the first request answered with ``ok`` that cancelled this very batch."""
        cancels = (call for call in self.calls if call.op == "cancel" and is_ok(call))
        return next((call for call in cancels if call.args.get("batch_id") == batch_id), None)

    @cached_property
    def cancelled_episodes(self) -> set[str]:
        return {call.args.get("episode_id", "") for call in self.calls if call.op == "cancel"}

    # --- files and servers

    @cached_property
    def stored(self) -> list[StoredEpisode]:
        """Every episode file that was ever seen."""
        by_path: dict[str, list[EpisodeFile]] = defaultdict(list)
        for record in self.all(EpisodeFile):
            by_path[record.path].append(record)
        return [StoredEpisode(path, versions) for path, versions in by_path.items()]

    @cached_property
    def documents(self) -> dict[str, dict[str, Any]]:
        """Episodes on the disk at the end, by id."""
        return {stored.document["episode_id"]: stored.document for stored in self.stored if stored.document}

    @cached_property
    def file_of(self) -> dict[str, StoredEpisode]:
        return {stored.document["episode_id"]: stored for stored in self.stored if stored.document}

    @cached_property
    def by_batch(self) -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for document in self.documents.values():
            found[document["batch_id"]].append(document)
        return found

    @cached_property
    def games(self) -> dict[str, list[Game]]:
        """Games by instance."""
        found: dict[str, list[Game]] = defaultdict(list)
        for record in self.records:
            if isinstance(record, Reset):
                found[record.instance].append(Game(record))
            elif isinstance(record, Step) and found[record.instance]:
                found[record.instance][-1].steps.append(record)
        return found

    @cached_property
    def journals(self) -> list[Journal]:
        return self.all(Journal)

    # --- streams

    @cached_property
    def messages(self) -> dict[Sink, dict[str, list[Message]]]:
        """Distinct messages of each sink by event id, each as it was read first."""
        found: dict[Sink, dict[str, list[Message]]] = {sink: defaultdict(list) for sink in self.begin.sinks}
        distinct = {(m.sink, m.stream, m.created, m.seq): m for m in reversed(self.all(Message))}
        for message in distinct.values():
            found[message.sink][event_id(message)].append(message)
        return found

    # --- faults

    @cached_property
    def faults(self) -> list[FaultSpan]:
        records = self.all(Fault)
        ends = {record.number: record.at for record in records if record.phase == "end"}
        return [FaultSpan(r, ends.get(r.number, self.end.at)) for r in records if r.phase == "begin"]

    def faults_between(self, start: float, end: float, *targets: str, kind: str = "") -> list[Fault]:
        """Return the faults of these targets (all, if none is named) that were in progress in a span of time."""
        return [
            span.begin
            for span in self.faults
            if span.overlaps(start, end)
            and (not targets or span.begin.target in targets)
            and (not kind or span.begin.kind == kind)
        ]

    def calm(self, *targets: str) -> list[tuple[float, float]]:
        """Return the spans of time without a fault of these targets."""
        spans: list[tuple[float, float]] = []
        start = self.begin.at
        for span in sorted(self.faults, key=lambda span: span.begin.at):
            if span.begin.target not in targets:
                continue
            if span.begin.at > start:
                spans.append((start, span.begin.at))
            start = max(start, span.ended_at)
        return [*spans, (start, self.end.at)] if self.end.at > start else spans


def is_ok(call: Call) -> bool:
    return call.reply is not None and call.reply.get("ok") is True


def event_id(message: Message) -> str:
    return message.headers.get("ce-id", "")


def is_finished(document: dict[str, Any]) -> bool:
    """Whether a resumed batch does not play the task of this episode again."""
    error = document.get("error") or {}
    return document["outcome"] not in STOPPED and error.get("type") != "resources"


def listed(call: Call) -> Iterator[dict[str, Any]]:
    """Yield the batches of an answered ``list`` request."""
    yield from (call.reply or {})["result"]["batches"]


def _batch(call: Call, state: dict[str, Any]) -> Batch:
    first = call.args.get("task_index", 0)
    return Batch(
        batch_id=state["batch_id"],
        env=state["env"],
        n_planned=state["n_planned"],
        tasks=range(first, first + call.args.get("repeat", 1)),
        attempts=call.args.get("attempts", 1),
        accepted=call,
    )
