"""Recording of one episode from its parts: in a journal, and at the episode's end in an episode file and the index."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Protocol

import msgspec

from runner.errors import StoreError
from runner.store.encoded import EncodedEnd, EncodedLog, EncodedReset, EncodedStep
from runner.store.episode_file import EpisodeRecord
from runner.store.episode_store import EpisodeStore
from runner.store.index import EpisodeIndex
from runner.store.journal import JournalWriter, TraceDelta, unfinished_record
from runner.store.token_file import TokenFileWriter
from runner.types import EpisodeEvent, EpisodeHeader, EpisodeStarted, ErrorInfo, Outcome
from runner.types.machine import GpuUse
from runner.util.clock import Clock

logger = logging.getLogger(__name__)

LOCK_TIMEOUT_S = 2.0


class Meter(Protocol):
    def start(self, episode_id: str) -> None: ...

    def stop(self, episode_id: str) -> GpuUse:
        """The result is empty for an unknown episode."""
        ...


class EpisodeRecorder:
    """Appends the encoded parts of one episode to its journal, and finalises it, without decoding them.

    The parts come from one thread; ``abandon`` may be called from another one. If the journal cannot be written, the
    error is logged and stored in ``journal_error``, and the episode continues without a journal. The internal lock is
    held while files are written. Errors of ``index`` are only logged: the next start adds the missing row.

    Args:
        lock_timeout_s: seconds that ``abandon`` waits for a file write in progress.

    Attributes:
        record: the ended episode, without texts, schemas and traces unless it was abandoned; None before its end.
        content: the ended episode as its file has it; parts of it may be encoded. Only for ``EpisodeStore.save``.
        traces: returns all spans so far, on any thread; None if only the parts have them.
    """

    def __init__(
        self,
        store: EpisodeStore,
        index: EpisodeIndex,
        clock: Clock | None = None,
        *,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
        meter: Meter | None = None,
    ) -> None:
        self.record: EpisodeRecord | None = None
        self.content: EpisodeRecord | None = None
        self.traces: Callable[[], TraceDelta] | None = None
        self.journal_error: OSError | None = None
        self._store = store
        self._index = index
        self._clock = clock or Clock()
        self._meter = meter
        self._lock = threading.Lock()
        self._lock_timeout_s = lock_timeout_s
        self._finished = self._is_stored = False
        self._header: EpisodeHeader | None = None
        self._journal: JournalWriter | None = None
        self._tokens: TokenFileWriter | None = None
        self.log = EncodedLog()
        self._started_s = self._clock.monotonic()

    @property
    def is_started(self) -> bool:
        return self._header is not None

    @property
    def is_stored(self) -> bool:
        record = self.record
        if not self._is_stored and record is not None:
            self._is_stored = self._store.path(record.batch_id, record.episode_id).exists()
        return self._is_stored

    def on_event(self, event: EpisodeEvent) -> None:
        """Record the start, which creates the journal; the other events are in the parts."""
        if isinstance(event, EpisodeStarted) and not self._finished:
            self._start(event.header)

    def on_reset(self, reset: EncodedReset) -> None:
        """Record the result of the reset at once, so that a crash in the first step does not lose it."""
        self._append_line(self.log.add_reset(reset))

    def on_step(self, step: EncodedStep) -> None:
        """Record a finished step; its token ids first, because the journal refers to them."""
        self._append_line(self.log.add_step(step), step.tokens)

    def on_end(self, end: EncodedEnd) -> None:
        """Store the ended episode; ignored after it was abandoned.

        Raises ``StoreError`` if the episode file cannot be written; its journal is kept, and ``record`` is set.
        """
        with self._lock:
            if self._finished:
                return
            if self._header is None:
                raise StoreError("an episode ended without having started; it cannot be stored")
            self._finished = True
            use = self._stop_meter(self._header)
            record, content = (msgspec.structs.replace(each, **use) for each in self.log.finish(self._header, end))
            self.record, self.content = record, content
            if self._tokens is not None and end.tokens:
                self._tokens.append(end.tokens)
            try:
                self._save(content)
                self._is_stored = True
            finally:
                self._close_journal()
        self._add_to_index(record)

    def abandon(self, outcome: Outcome, error: ErrorInfo | None = None) -> EpisodeRecord:
        """End an episode whose thread hangs: store the parts that have been recorded as the episode.

        If the episode has already ended, its record is returned unchanged. Raises ``StoreError`` if it never started,
        or cannot be written; its journal is kept, and ``record`` is set if it started.
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
                self.record = self.content = record = self._build_record(self._header, outcome, error)
                try:
                    self._save(record)
                finally:
                    self._close_journal()
                self._add_to_index(record)
            return self.record
        finally:
            self._lock.release()

    def store_again(self) -> None:
        """Try again after ``on_end`` or ``abandon`` could not write the file; raises like them."""
        if self.record is not None and self.content is not None:
            self._save(self.content)
            self._add_to_index(self.record)

    def discard(self) -> None:
        """Remove the journal of an episode that starts again with another recorder; ignore all later events."""
        with self._lock:
            self._finished = True
            if self._header is not None:
                self._stop_meter(self._header)
            if self._journal is not None:
                with contextlib.suppress(OSError):
                    self._journal.path.unlink()
            if self._tokens is not None:
                self._tokens.discard()
            self._close_journal()

    def _start(self, header: EpisodeHeader) -> None:
        self._header = header
        self._started_s = self._clock.monotonic()
        if self._meter is not None:
            self._meter.start(header.episode_id)
        self._tokens = TokenFileWriter(self._store.tokens_path(header.batch_id, header.episode_id))
        with self._lock:
            try:
                self._journal = JournalWriter(self._store.journal_path(header.batch_id, header.episode_id), header)
            except OSError as exc:
                self._disable_journal(exc)

    def _save(self, content: EpisodeRecord) -> None:
        if self._tokens is not None:
            self._tokens.finish(self.log)
        self._store.save(content)

    def _append_line(self, line: bytes, tokens: bytes = b"") -> None:
        with self._lock:
            if self._tokens is not None and tokens and not self._finished:
                self._tokens.append(tokens)
            if self._finished or self._journal is None or self.journal_error is not None:
                return
            try:
                self._journal.append(line)
            except OSError as exc:
                self._disable_journal(exc)

    def _close_journal(self) -> None:
        if self._journal is not None:
            self._journal.close()

    def _build_record(self, header: EpisodeHeader, outcome: Outcome, error: ErrorInfo | None) -> EpisodeRecord:
        """Build the record from the parts in memory, without access to the disk."""
        record = unfinished_record(
            self.log.journal(header),
            outcome,
            ended_at=self._clock.now(),
            error=error,
            traces=self.traces and self.traces(),
            duration_s=self._clock.monotonic() - self._started_s,
        )
        return msgspec.structs.replace(record, **self._stop_meter(header))

    def _stop_meter(self, header: EpisodeHeader) -> dict[str, float | bool | None]:
        return {} if self._meter is None else msgspec.structs.asdict(self._meter.stop(header.episode_id))

    def _add_to_index(self, record: EpisodeRecord) -> None:
        try:
            self._index.insert(record, self.content)
        except StoreError as exc:
            logger.warning("episode %s is stored but not in the index yet: %s", record.episode_id, exc)

    def _disable_journal(self, exc: OSError) -> None:
        self.journal_error = exc
        logger.warning("cannot write the journal of an episode; a crash would lose its steps: %s", exc)
