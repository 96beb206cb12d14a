"""Records one episode from its events: into the journal while it is played, then as a file and a row of the index."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from runner.clock import Clock
from runner.errors import StoreError
from runner.store.episodes import EpisodeStore
from runner.store.index import EpisodeIndex
from runner.store.journal import Extras, Journal, JournalWriter, Traces, unfinished_record
from runner.store.records import EpisodeRecord, StoredSteps, played_record
from runner.types import (
    EpisodeEnded,
    EpisodeEvent,
    EpisodeHeader,
    EpisodeStarted,
    ErrorInfo,
    Flow,
    Outcome,
    Span,
    TimestepPlayed,
)

logger = logging.getLogger(__name__)


class SpanSource(Protocol):
    """The spans of one episode while it is played; the two lists hold the closed ones and only grow."""

    @property
    def spans(self) -> list[Span]:
        """Closed spans, in order of closing."""

    @property
    def flows(self) -> list[Flow]:
        """The flows of the closed spans."""

    @property
    def open_spans(self) -> Callable[[], list[Span]]:
        """Gives copies of the open spans, outer ones first, each ending now; callable from any thread."""


class EpisodeRecorder:
    """Takes the events of one episode, on the thread that plays it; ``abandon`` may be called from another one.

    What of the journal cannot be written is logged and remembered in ``journal_error``; the episode goes on without.

    Args:
        store: where the episode is stored.
        index: where it is listed; if that fails it is logged, as the next start makes up for it.
        source: the spans of the episode, None when it is not traced.
        clock: when an abandoned episode ended.
    """

    def __init__(
        self, store: EpisodeStore, index: EpisodeIndex, source: SpanSource | None = None, clock: Clock | None = None
    ) -> None:
        """Prepare; nothing is written before the episode starts."""
        self.record: EpisodeRecord | None = None
        self.journal_error: OSError | None = None
        self._store = store
        self._index = index
        self._source = source
        self._clock = clock or Clock()
        self._lock = threading.Lock()
        self._over = False
        self._header: EpisodeHeader | None = None
        self._journal: JournalWriter | None = None
        self._steps = StoredSteps()
        self._n_spans = 0
        self._n_flows = 0

    def on_event(self, event: EpisodeEvent) -> None:
        """Record an event; nothing happens once the episode has ended or was abandoned.

        Raises:
            StoreError: when the episode file cannot be written; its journal is kept, and ``record`` is set.
        """
        with self._lock:
            if self._over:
                return
            match event:
                case EpisodeStarted():
                    self._begin(event.header)
                case TimestepPlayed():
                    self._add(event)
                case EpisodeEnded():
                    self._end(event)

    def abandon(self, outcome: Outcome, error: ErrorInfo | None = None) -> EpisodeRecord:
        """End an episode whose thread does not come back: what its journal holds becomes the episode.

        An episode that has just ended by itself stays as it is.

        Raises:
            StoreError: when the episode never started, or cannot be written; its journal is kept.
        """
        with self._lock:
            if self.record is not None:
                return self.record
            self._over = True
            if self._header is None:
                raise StoreError("an episode was given up before it started; there is nothing to store")
            self.record = self._close(self._header, outcome, error)
            self._list(self.record)
            return self.record

    def _begin(self, header: EpisodeHeader) -> None:
        self._header = header
        try:
            self._journal = JournalWriter(self._store.journal_path(header.batch_id, header.episode_id), header)
        except OSError as exc:
            self._give_up_journal(exc)

    def _add(self, event: TimestepPlayed) -> None:
        tools = self._steps.table.lists
        n_known = len(tools)
        step = self._steps.add(event.step)
        if self._journal is None or self.journal_error is not None:
            return
        extras = Extras()
        if len(tools) > n_known:
            extras.tool_schemas = tools[n_known:]
        if event.reset_observation is not None:
            extras.reset_observation = event.reset_observation
        if self._source is not None:
            extras.traces = self._new_traces(self._source)
        try:
            self._journal.append(step, extras)
        except OSError as exc:
            self._give_up_journal(exc)

    def _end(self, event: EpisodeEnded) -> None:
        if self._header is None:
            raise StoreError(f"episode {event.episode_id!r} ended without having started; it cannot be stored")
        self._over = True
        self.record = played_record(
            self._header,
            event.trajectory,
            self._steps,
            ended_at=event.at,
            spans=list(self._source.spans) if self._source else [],
            flows=list(self._source.flows) if self._source else [],
        )
        try:
            self._store.save(self._steps.written_into(self.record))
        finally:
            if self._journal is not None:
                self._journal.close()
        self._list(self.record)

    def _close(self, header: EpisodeHeader, outcome: Outcome, error: ErrorInfo | None) -> EpisodeRecord:
        traces = None if self._source is None else self._new_traces(self._source)
        now = self._clock.now()
        if self._journal is None:
            record = unfinished_record(Journal(header=header), outcome, ended_at=now, error=error, traces=traces)
            self._store.save(record)
            return record
        self._journal.fence()
        try:
            return self._store.close_journal(self._journal.path, outcome, ended_at=now, error=error, traces=traces)
        finally:
            self._journal.close()

    def _new_traces(self, source: SpanSource) -> Traces:
        """What was traced since the last call."""
        spans, flows = source.spans[self._n_spans :], source.flows[self._n_flows :]
        self._n_spans += len(spans)
        self._n_flows += len(flows)
        return Traces(spans=spans, flows=flows, open_spans=source.open_spans())

    def _list(self, record: EpisodeRecord) -> None:
        try:
            self._index.insert(record)
        except StoreError as exc:
            logger.warning("episode %s is stored but not listed yet: %s", record.episode_id, exc)

    def _give_up_journal(self, exc: OSError) -> None:
        self.journal_error = exc
        logger.warning("the journal of an episode cannot be written, its steps are lost if we are killed: %s", exc)
