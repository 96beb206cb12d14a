"""Recording of one episode from its events: in a journal, and at the episode's end in an episode file and the index."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Protocol

from runner.errors import StoreError
from runner.store.encoded import EncodedEnd, EncodedReset, EncodedStep
from runner.store.encoded_log import EncodedLog
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
"""Default seconds that ``abandon`` waits for a file write in progress."""


class SpanSource(Protocol):
    """Source of the spans of a running episode; its two lists only grow."""

    @property
    def spans(self) -> list[Span]:
        """Closed spans in closing order."""

    @property
    def flows(self) -> list[Flow]:
        """Flows of the closed spans."""

    @property
    def open_spans(self) -> Callable[[], list[Span]]:
        """Function that returns copies of the open spans, like ``Tracer.open_spans``; may be called from any thread."""


class EpisodeRecorder:
    """Records the events of one episode, on the thread that runs it; ``abandon`` may be called from another thread.

    An episode of another process is recorded by the ``on_encoded_…`` methods, without decoding its parts. ``record``
    then has the totals of the episode, and no texts, schemas and traces; ``content`` has all of them.

    If the journal cannot be written, the error is logged and stored in ``journal_error``, and the episode continues
    without a journal. The internal lock is held while files are written, but never while data of the agent or the
    environment is encoded, because foreign code may block.

    Args:
        store: store of the episode file.
        index: index of the episode; errors are only logged, because the next start adds the missing row.
        source: source of the spans; None if the episode is not traced.
        clock: clock for the end and the duration of an abandoned episode.
        lock_timeout_s: seconds that ``abandon`` waits for a file write in progress.
    """

    def __init__(
        self,
        store: EpisodeStore,
        index: EpisodeIndex,
        source: SpanSource | None = None,
        clock: Clock | None = None,
        *,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
    ) -> None:
        """Create the recorder; the first event creates the journal."""
        self.record: EpisodeRecord | None = None
        self.content: EpisodeRecord | None = None
        """The ended episode as its file has it; parts of it may be encoded. Only for ``EpisodeStore.save``."""
        self.journal_error: OSError | None = None
        self._store = store
        self._index = index
        self._source = source
        self._clock = clock or Clock()
        self._lock = threading.Lock()
        self._lock_timeout_s = lock_timeout_s
        self._finished = self._is_stored = False
        self._header: EpisodeHeader | None = None
        self._journal: JournalWriter | None = None
        self._steps = TimestepLog()
        self._encoded: EncodedLog | None = None
        self._reset_extras = JournalExtras()
        self._n_spans = 0
        self._n_flows = 0
        self._started_s = self._clock.monotonic()

    def trace_from(self, source: SpanSource) -> None:
        """Set the source of the spans, before the first event."""
        self._source = source

    @property
    def is_started(self) -> bool:
        """Whether the episode has started, so that it can be stored."""
        return self._header is not None

    @property
    def is_stored(self) -> bool:
        """Whether the episode has ended and its file exists."""
        record = self.record
        if not self._is_stored and record is not None:
            self._is_stored = self._store.path(record.batch_id, record.episode_id).exists()
        return self._is_stored

    def on_event(self, event: EpisodeEvent) -> None:
        """Record an event; ignored after the episode has ended or was abandoned.

        Raises:
            StoreError: the episode file cannot be written; its journal is kept, and ``record`` is set.
        """
        if self._finished:
            return
        match event:
            case EpisodeStarted():
                self._start(event.header)
            case TimestepPlayed():
                self._add_step(event)
            case EpisodeEnded():
                self._finish(event)
            case _:  # the trajectory has the pauses, and spans come from the source
                pass

    def on_reset(self, observation: Chat, env_episode_id: str) -> None:
        """Record the result of the reset at once, so that a crash in the first step does not lose it."""
        self._reset_extras = JournalExtras(reset_observation=observation, env_episode_id=env_episode_id)
        self._append_line(encode(self._reset_extras))

    def on_encoded_reset(self, reset: EncodedReset) -> None:
        """Record the result of the reset of an episode in another process."""
        self._encoded = self._encoded or EncodedLog()
        self._append_line(*self._encoded.add_reset(reset))

    def on_encoded_step(self, step: EncodedStep) -> None:
        """Record a finished step of an episode in another process."""
        self._encoded = self._encoded or EncodedLog()
        self._append_line(*self._encoded.add_step(step))

    def on_encoded_end(self, end: EncodedEnd) -> None:
        """Record the end of an episode in another process; raises like ``on_event``."""
        if self._finished:
            return
        if self._header is None:
            raise StoreError("an episode ended without having started; it cannot be stored")
        self._save(*(self._encoded or EncodedLog()).finish(self._header, end))

    def abandon(self, outcome: Outcome, error: ErrorInfo | None = None) -> EpisodeRecord:
        """End an episode whose thread hangs: store the content of its journal as the episode.

        If the episode has already ended, its record is returned unchanged.

        Args:
            outcome: outcome of the abandoned episode.
            error: the error to store with it.

        Raises:
            StoreError: the episode never started, or cannot be written; its journal is kept, and ``record`` is set if
                it started.
        """
        if self._header is None:
            self._finished = True
            raise StoreError("the episode was abandoned before it started; there is nothing to store")
        if not self._lock.acquire(timeout=self._lock_timeout_s):
            self._finished = True
            if self.record is None:
                self.record = self.content = self._build_record(self._header, outcome, error)
            raise StoreError(
                f"a write of episode {self._header.episode_id} hangs; check the disk. "
                "The next start recovers the episode from its journal"
            )
        try:
            if self.record is None:
                self._finished = True
                try:
                    self.record = self.content = self._store_journal(self._header, outcome, error)
                except StoreError:
                    self.record = self.content = self._build_record(self._header, outcome, error)
                    raise
                self._add_to_index(self.record)
            return self.record
        finally:
            self._lock.release()

    def store_again(self) -> None:
        """Write the file of an ended episode once more, after ``on_event`` or ``abandon`` could not write it.

        Raises:
            StoreError: the file cannot be written; its journal is kept.
        """
        if self.record is not None and self.content is not None:
            self._store.save(self.content)
            self._add_to_index(self.record)

    def discard(self) -> None:
        """Remove the journal of an episode that starts again with another recorder; ignore all later events."""
        with self._lock:
            self._finished = True
            if self._journal is not None:
                with contextlib.suppress(OSError):
                    self._journal.path.unlink()
                self._journal.close()

    def _start(self, header: EpisodeHeader) -> None:
        self._header = header
        self._started_s = self._clock.monotonic()
        with self._lock:
            try:
                self._journal = JournalWriter(self._store.journal_path(header.batch_id, header.episode_id), header)
            except OSError as exc:
                self._disable_journal(exc)

    def _add_step(self, event: TimestepPlayed) -> None:
        tool_schemas = self._steps.table.lists
        n_known = len(tool_schemas)
        step = self._steps.add(event.step)
        if len(tool_schemas) > n_known:
            self._append_line(step, encode(JournalExtras(tool_schemas=tool_schemas[n_known:])))
        else:
            self._append_line(step)

    def _append_line(self, *objects: bytes) -> None:
        """Append a line to the journal, with the traces since the previous line."""
        with self._lock:
            if self._finished or self._journal is None or self.journal_error is not None:
                return
            if self._source is not None:
                objects = (*objects, encode(JournalExtras(traces=self._new_traces(self._source))))
            try:
                self._journal.append(*objects)
            except OSError as exc:
                self._disable_journal(exc)

    def _finish(self, event: EpisodeEnded) -> None:
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
        self._save(record, self._steps.with_encoded(record))

    def _save(self, record: EpisodeRecord, content: EpisodeRecord) -> None:
        with self._lock:
            if self._finished:
                return
            self._finished = True
            self.record, self.content = record, content
            try:
                self._store.save(content)
                self._is_stored = True
            finally:
                if self._journal is not None:
                    self._journal.close()
        self._add_to_index(record)

    def _store_journal(self, header: EpisodeHeader, outcome: Outcome, error: ErrorInfo | None) -> EpisodeRecord:
        if self._encoded is not None and (self._journal is None or self.journal_error is not None):
            return self._store_from_memory(header, outcome, error)
        traces = None if self._source is None else self._new_traces(self._source)
        now, duration_s = self._clock.now(), self._elapsed_s()
        if self._journal is None:
            record = unfinished_record(
                Journal(header=header), outcome, ended_at=now, error=error, traces=traces, duration_s=duration_s
            )
            self._store.save(record)
            return record
        self._journal.fence()
        try:
            return self._store.close_journal(
                self._journal.path, outcome, ended_at=now, error=error, traces=traces, duration_s=duration_s
            )
        finally:
            self._journal.close()

    def _store_from_memory(self, header: EpisodeHeader, outcome: Outcome, error: ErrorInfo | None) -> EpisodeRecord:
        record = self._build_record(header, outcome, error)
        self._store.save(record)
        if self._journal is not None:
            self._journal.close()
        return record

    def _build_record(self, header: EpisodeHeader, outcome: Outcome, error: ErrorInfo | None) -> EpisodeRecord:
        """Build the record from the data in memory, without access to the disk."""
        source, reset = self._source, self._reset_extras
        journal = (
            self._encoded.journal(header)
            if self._encoded is not None
            else Journal(
                header=header,
                steps=self._steps.records.copy(),
                reset_observation=reset.reset_observation or [],
                env_episode_id=reset.env_episode_id or None,
                tool_schemas=self._steps.table.lists.copy(),
            )
        )
        if source is not None:
            journal.traces = TraceDelta(
                spans=source.spans.copy(), flows=source.flows.copy(), open_spans=source.open_spans()
            )
        return unfinished_record(
            journal, outcome, ended_at=self._clock.now(), error=error, duration_s=self._elapsed_s()
        )

    def _elapsed_s(self) -> float:
        return self._clock.monotonic() - self._started_s

    def _new_traces(self, source: SpanSource) -> TraceDelta:
        spans, flows = source.spans[self._n_spans :], source.flows[self._n_flows :]
        self._n_spans += len(spans)
        self._n_flows += len(flows)
        return TraceDelta(spans=spans, flows=flows, open_spans=source.open_spans())

    def _add_to_index(self, record: EpisodeRecord) -> None:
        try:
            self._index.insert(record)
        except StoreError as exc:
            logger.warning("episode %s is stored but not in the index yet: %s", record.episode_id, exc)

    def _disable_journal(self, exc: OSError) -> None:
        self.journal_error = exc
        logger.warning("cannot write the journal of an episode; a crash would lose its steps: %s", exc)
