"""Recording of one episode from its parts, which its journal has already: its file and its row in the index."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Protocol

import msgspec

from runner.errors import StoreError
from runner.store.episode_file import EpisodeRecord, episode_record
from runner.store.episode_store import EpisodeStore
from runner.store.index import EpisodeIndex
from runner.store.journal import Journal, apply_line, journal_line, read_journal, unfinished_record
from runner.store.parts import EMPTY, EncodedTraces, Ended, Part, Reset, Started, Step, join_arrays
from runner.store.token_file import sync_token_file
from runner.types import EpisodeHeader, ErrorInfo, Outcome
from runner.types.machine import GpuUse
from runner.util.clock import Clock
from runner.util.files import TEMPORARY_SUFFIX
from runner.util.safe_values import finite

logger = logging.getLogger(__name__)

LOCK_TIMEOUT_S = 2.0


class Meter(Protocol):
    def start(self, episode_id: str) -> None: ...

    def stop(self, episode_id: str) -> GpuUse:
        """The result is empty for an unknown episode."""
        ...


class EpisodeLog:
    """Collects the parts of one episode in their order; decodes them only in ``journal``.

    One thread adds the parts. Other threads may read ``reset`` and ``steps``, which only grow. ``end`` is None before
    the end, and after an abandonment.
    """

    def __init__(self, header: EpisodeHeader) -> None:
        self.header = header
        self.reset: Reset | None = None
        self.steps: list[Step] = []
        self.end: Ended | None = None

    @property
    def traces(self) -> list[EncodedTraces]:
        return [part.traces for part in (self.reset, *self.steps, self.end) if part is not None]

    @property
    def tokens(self) -> list[bytes]:
        return [part.tokens for part in (*self.steps, self.end) if part is not None and part.tokens]

    def finish(self, end: Ended) -> tuple[EpisodeRecord, EpisodeRecord]:
        """Add the end; return the record of the episode without texts, schemas and traces, and with them encoded."""
        self.end, reset = end, self.reset
        record = episode_record(
            self.header,
            [step.summary for step in self.steps],
            env_episode_id=None if reset is None else reset.env_episode_id,
            ended_at=end.at,
            duration_s=finite(end.duration_s),
            paused_s=finite(end.paused_s),
            outcome=end.outcome,
            success=end.success,
            reset_observation=[],
            tool_schemas=[],
            spans=[],
            flows=[],
            error=end.error,
            evaluation=None if end.evaluation is None else msgspec.Raw(end.evaluation),
            trace_last_response_flow_id=end.trace_last_response_flow_id,
        )
        content = msgspec.structs.replace(
            record,
            timesteps=[msgspec.Raw(step.data) for step in self.steps],
            reset_observation=msgspec.Raw(EMPTY if reset is None else reset.observation),
            reset_world=None if reset is None or reset.world == EMPTY else msgspec.Raw(reset.world),
            tool_schemas=join_arrays(step.tool_schemas for step in self.steps),
            spans=join_arrays(part.spans for part in self.traces),
            flows=join_arrays(part.flows for part in self.traces),
        )
        return record, content

    def journal(self) -> Journal:
        """Return the decoded parts, as they would be read from the journal, up to the first part that is damaged."""
        journal = Journal(header=self.header)
        for part in (self.reset, *self.steps):
            if part is not None and (problem := apply_line(journal, journal_line(part))) is not None:
                journal.damage = problem
                break
        return journal


class EpisodeRecorder:
    """Keeps the encoded parts of one episode, and finalises it without decoding them.

    The parts come from one thread; ``abandon`` may be called from another one. The internal lock is held while files
    are written. Errors of ``index`` are only logged: the next start adds the missing row.

    Args:
        lock_timeout_s: seconds that ``abandon`` waits for a file write in progress.

    Attributes:
        record: the ended episode, without texts, schemas and traces unless it was abandoned; None before its end.
        content: the ended episode as its file has it; parts of it may be encoded. Only for ``EpisodeStore.save``.
    """

    def __init__(
        self,
        header: EpisodeHeader,
        store: EpisodeStore,
        index: EpisodeIndex,
        clock: Clock | None = None,
        *,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
        meter: Meter | None = None,
    ) -> None:
        self.record: EpisodeRecord | None = None
        self.content: EpisodeRecord | None = None
        self.log = EpisodeLog(header)
        self.started_s: float | None = None
        """When the episode started, by the monotonic clock; None before its start."""
        self._header = header
        self._store = store
        self._index = index
        self._clock = clock or Clock()
        self._meter = meter
        self._lock = threading.Lock()
        self._lock_timeout_s = lock_timeout_s
        self._finished = self._is_stored = False

    @property
    def is_started(self) -> bool:
        """Also if a lost worker has written the start, but could not send it."""
        header = self._header
        return self.started_s is not None or self._store.journal_path(header.batch_id, header.episode_id).exists()

    @property
    def is_stored(self) -> bool:
        record = self.record
        if not self._is_stored and record is not None:
            self._is_stored = self._store.path(record.batch_id, record.episode_id).exists()
        return self._is_stored

    def receive(self, part: Part) -> None:
        """Keep a part; the end follows in ``finish``."""
        match part:
            case Started() if not self._finished:
                self.started_s = self._clock.monotonic()
                if self._meter is not None:
                    self._meter.start(self._header.episode_id)
            case Reset():
                self.log.reset = part
            case Step():
                self.log.steps.append(part)

    def finish(self, end: Ended) -> None:
        """Store the ended episode; ignored after it was abandoned.

        Raises ``StoreError`` if the episode file cannot be written; its journal is kept, and ``record`` is set.
        """
        with self._lock:
            if self._finished:
                return
            if self.started_s is None:
                raise StoreError("an episode ended without having started; it cannot be stored")
            self._finished = True
            use = self._stop_meter()
            record, content = (msgspec.structs.replace(each, **use) for each in self.log.finish(end))
            self.record, self.content = record, content
            self._save(content)
            self._is_stored = True
        self._add_to_index(record)

    def abandon(self, outcome: Outcome, error: ErrorInfo | None = None) -> EpisodeRecord:
        """End an episode whose player hangs or is lost: store the parts that are known as the episode.

        If the episode has already ended, its record is returned unchanged. Raises ``StoreError`` if it never started,
        or cannot be written; its journal is kept, and ``record`` is set if it started.
        """
        if not self.is_started:
            self._finished = True
            raise StoreError("the episode was abandoned before it started; there is nothing to store")
        if not self._lock.acquire(timeout=self._lock_timeout_s):
            self._finished = True
            if self.record is None:
                self.record = self.content = self._unfinished(self.log.journal(), outcome, error)
            raise StoreError(
                f"a write of episode {self._header.episode_id} hangs; check the disk. "
                "The next start recovers the episode from its journal"
            )
        try:
            if self.record is None:
                self._finished = True
                self.record = self.content = record = self._unfinished(self._longer_journal(), outcome, error)
                self._save(record)
                self._add_to_index(record)
            return self.record
        finally:
            self._lock.release()

    def store_again(self) -> None:
        """Try again after ``finish`` or ``abandon`` could not write the file; raises like them."""
        if self.record is not None and self.content is not None:
            self._save(self.content)
            self._add_to_index(self.record)

    def discard(self) -> None:
        """Remove the files of an episode that has not started, or starts again with another recorder.

        All later parts are ignored.
        """
        with self._lock:
            self._finished = True
            self._stop_meter()
            batch_id, episode_id = self._header.batch_id, self._header.episode_id
            journal = self._store.journal_path(batch_id, episode_id)
            temporary = journal.with_name(journal.name + TEMPORARY_SUFFIX)
            for path in (journal, temporary, self._store.tokens_path(batch_id, episode_id)):
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)

    def _save(self, content: EpisodeRecord) -> None:
        header = self._header
        sync_token_file(self._store.tokens_path(header.batch_id, header.episode_id), self.log.tokens)
        self._store.save(content)

    def _longer_journal(self) -> Journal:
        """Return the parts that have arrived, or those on the disk if a lost worker could not send all of them."""
        arrived = self.log.journal()
        with contextlib.suppress(StoreError):
            written = read_journal(self._store.journal_path(self._header.batch_id, self._header.episode_id))
            n_arrived = -1 if self.log.reset is None else len(arrived.steps)
            if written.env_episode_id is not None and len(written.steps) > n_arrived:
                return written
        return arrived

    def _unfinished(self, journal: Journal, outcome: Outcome, error: ErrorInfo | None) -> EpisodeRecord:
        record = unfinished_record(
            journal,
            outcome,
            ended_at=self._clock.now(),
            error=error,
            duration_s=None if self.started_s is None else self._clock.monotonic() - self.started_s,
        )
        return msgspec.structs.replace(record, **self._stop_meter())

    def _stop_meter(self) -> dict[str, float | bool | None]:
        return {} if self._meter is None else msgspec.structs.asdict(self._meter.stop(self._header.episode_id))

    def _add_to_index(self, record: EpisodeRecord) -> None:
        try:
            self._index.insert(record, self.content)
        except StoreError as exc:
            logger.warning("episode %s is stored but not in the index yet: %s", record.episode_id, exc)
