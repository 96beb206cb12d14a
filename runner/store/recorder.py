"""Records one episode from its events: into the journal while it is played, then as a file and a row of the index."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from runner.errors import StoreError
from runner.store.episode_file import EpisodeRecord, TimestepLog, finished_record
from runner.store.episode_store import EpisodeStore
from runner.store.index import EpisodeIndex
from runner.store.journal import Journal, JournalExtras, JournalWriter, TraceDelta, unfinished_record
from runner.store.safe_json import encode
from runner.types import (
    Chat,
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
from runner.util.clock import Clock

logger = logging.getLogger(__name__)

LOCK_TIMEOUT_S = 2.0
"""Seconds to wait for a file that is being written before an episode is abandoned without it."""


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
    The lock is held while files are written, never while objects of the agent or the environment are encoded: that may
    take as long as they like.

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
        self._steps = TimestepLog()
        self._reset = JournalExtras()
        self._n_spans = 0
        self._n_flows = 0
        self._began = self._clock.monotonic()

    def on_event(self, event: EpisodeEvent) -> None:
        """Record an event; nothing happens once the episode has ended or was abandoned.

        Raises:
            StoreError: when the episode file cannot be written; its journal is kept, and ``record`` is set.
        """
        if self._over:
            return
        match event:
            case EpisodeStarted():
                self._begin(event.header)
            case TimestepPlayed():
                self._add(event)
            case EpisodeEnded():
                self._end(event)
            case _:  # pauses are in the sums, spans come from the source
                pass

    def on_reset(self, observation: Chat, env_episode_id: str) -> None:
        """Record what the reset gave, so that it is not lost with the first step."""
        self._reset = JournalExtras(reset_observation=observation, env_episode_id=env_episode_id)
        self._write(encode(self._reset))

    def abandon(self, outcome: Outcome, error: ErrorInfo | None = None) -> EpisodeRecord:
        """End an episode whose thread does not come back: what its journal holds becomes the episode.

        An episode that has just ended by itself stays as it is.

        Raises:
            StoreError: when the episode never started, or cannot be written; its journal is kept.
        """
        if self._header is None:
            self._over = True
            raise StoreError("an episode was given up before it started; there is nothing to store")
        if not self._lock.acquire(timeout=LOCK_TIMEOUT_S):
            self._over = True
            self.record = self.record or self._unwritten(self._header, outcome, error)
            raise StoreError(
                f"writing episode {self._header.episode_id} does not come back; look after the disk, "
                "the next start turns its journal into an episode"
            )
        try:
            if self.record is None:
                self._over = True
                self.record = self._close(self._header, outcome, error)
                self._list(self.record)
            return self.record
        finally:
            self._lock.release()

    def _begin(self, header: EpisodeHeader) -> None:
        self._header = header
        self._began = self._clock.monotonic()
        with self._lock:
            try:
                self._journal = JournalWriter(self._store.journal_path(header.batch_id, header.episode_id), header)
            except OSError as exc:
                self._give_up_journal(exc)

    def _add(self, event: TimestepPlayed) -> None:
        tools = self._steps.table.lists
        n_known = len(tools)
        step = self._steps.add(event.step)
        if len(tools) > n_known:
            self._write(step, encode(JournalExtras(tool_schemas=tools[n_known:])))
        else:
            self._write(step)

    def _write(self, *objects: bytes) -> None:
        """Add a line to the journal, with what was traced since the last one."""
        with self._lock:
            if self._over or self._journal is None or self.journal_error is not None:
                return
            if self._source is not None:
                objects = (*objects, encode(JournalExtras(traces=self._new_traces(self._source))))
            try:
                self._journal.append(*objects)
            except OSError as exc:
                self._give_up_journal(exc)

    def _end(self, event: EpisodeEnded) -> None:
        if self._header is None:
            raise StoreError(f"episode {event.episode_id!r} ended without having started; it cannot be stored")
        record = finished_record(
            self._header,
            event.trajectory,
            self._steps,
            ended_at=event.at,
            spans=list(self._source.spans) if self._source else [],
            flows=list(self._source.flows) if self._source else [],
        )
        encoded = self._steps.written_into(record)
        with self._lock:
            if self._over:
                return
            self._over = True
            self.record = record
            try:
                self._store.save(encoded)
            finally:
                if self._journal is not None:
                    self._journal.close()
        self._list(record)

    def _close(self, header: EpisodeHeader, outcome: Outcome, error: ErrorInfo | None) -> EpisodeRecord:
        traces = None if self._source is None else self._new_traces(self._source)
        now, took_s = self._clock.now(), self._took_s()
        if self._journal is None:
            record = unfinished_record(
                Journal(header=header), outcome, ended_at=now, error=error, traces=traces, duration_s=took_s
            )
            self._store.save(record)
            return record
        self._journal.fence()
        try:
            return self._store.close_journal(
                self._journal.path, outcome, ended_at=now, error=error, traces=traces, duration_s=took_s
            )
        finally:
            self._journal.close()

    def _unwritten(self, header: EpisodeHeader, outcome: Outcome, error: ErrorInfo | None) -> EpisodeRecord:
        """The record of what is known without touching the disk."""
        source, reset = self._source, self._reset
        journal = Journal(
            header=header,
            steps=self._steps.records.copy(),
            reset_observation=reset.reset_observation or [],
            env_episode_id=reset.env_episode_id or None,
            tool_schemas=self._steps.table.lists.copy(),
        )
        if source is not None:
            journal.traces = TraceDelta(
                spans=source.spans.copy(), flows=source.flows.copy(), open_spans=source.open_spans()
            )
        return unfinished_record(journal, outcome, ended_at=self._clock.now(), error=error, duration_s=self._took_s())

    def _took_s(self) -> float:
        return self._clock.monotonic() - self._began

    def _new_traces(self, source: SpanSource) -> TraceDelta:
        """What was traced since the last call."""
        spans, flows = source.spans[self._n_spans :], source.flows[self._n_flows :]
        self._n_spans += len(spans)
        self._n_flows += len(flows)
        return TraceDelta(spans=spans, flows=flows, open_spans=source.open_spans())

    def _list(self, record: EpisodeRecord) -> None:
        try:
            self._index.insert(record)
        except StoreError as exc:
            logger.warning("episode %s is stored but not listed yet: %s", record.episode_id, exc)

    def _give_up_journal(self, exc: OSError) -> None:
        self.journal_error = exc
        logger.warning("the journal of an episode cannot be written, its steps are lost if we are killed: %s", exc)
