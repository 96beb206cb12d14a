"""Second record of a node's batches, from which a damaged, lost or outdated queue file is restored.

``batches.jsonl`` gets a line with the state of a batch when the batch is accepted, resumed or ended. The last line of a
batch counts.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from runner.batch.spec import INTEGER_LIMIT, MAX_EPISODES, BatchSpec
from runner.errors import StoreError
from runner.types import MAX_WORKERS
from runner.util.clock import is_ulid
from runner.util.files import read_file, replace_file, set_aside, write_all

logger = logging.getLogger(__name__)

Status: TypeAlias = Literal["queued", "running", "completed", "cancelled", "interrupted"]

ENDED: Final[tuple[Status, ...]] = ("completed", "cancelled")
"""The statuses that a batch keeps for good."""
MAX_LINE_BYTES = 128 * 1024
"""Maximum length of a line; the request that starts a batch is smaller."""
MAX_GROWTH = 4
"""A file that is this many times as large as the last lines of its batches is written again at the start."""


class QueuedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A requested batch with its current status."""

    batch_id: str
    battery_id: str | None
    spec: BatchSpec
    status: Status = "queued"
    n_done: int = 0

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED


_DECODER = msgspec.json.Decoder(QueuedBatch)


def check_batch(batch: QueuedBatch) -> QueuedBatch:
    """Raise a ``ValueError`` if no node can have written the batch."""
    spec, ids = batch.spec, (batch.batch_id, batch.battery_id or batch.batch_id)
    numbers = [batch.n_done, spec.seed, spec.task_index, *chain.from_iterable(spec.chosen or ()), *(spec.tasks or ())]
    if spec.adaptive is not None:
        numbers += [spec.adaptive.task_index, spec.adaptive.repeat]
    is_planned = min(spec.repeat, spec.attempts, spec.n_planned) > 0 and spec.n_planned <= MAX_EPISODES
    is_planned = is_planned and (spec.tasks is None or len(set(spec.tasks)) == spec.repeat)
    is_planned = is_planned and (not isinstance(spec.workers, int) or 0 <= spec.workers <= MAX_WORKERS)
    if not (all(map(is_ulid, ids)) and is_planned and all(abs(number) < INTEGER_LIMIT for number in numbers)):
        raise ValueError("a batch has an invalid id or number")
    return batch


class BatchJournal:
    """The file of batches, which need not exist; each write is on the disk when it returns.

    Attributes:
        is_complete: whether ``read`` found the file with its first line, which is empty, and could read all others.
        is_tidy: whether, in addition, the last line has an end, and few lines are outdated.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_complete = self.is_tidy = False
        self._written: tuple[int, int] | None = None

    def read(self) -> dict[str, QueuedBatch]:
        """Return the batches by id, in the order of acceptance; none if the file is missing or unreadable.

        Unreadable lines are logged and skipped. A batch that has ended stays so, whatever the order of its lines.
        """
        if not os.path.lexists(self.path):
            return {}
        try:
            content = read_file(self.path)
        except StoreError as exc:
            logger.warning("%s", exc)
            self._set_aside()
            return {}
        batches, last_lines, n_damaged = _read_lines(content)
        if n_damaged:
            logger.warning("%s has %d damaged lines; the others are used", self.path, n_damaged)
        self.is_complete = content.startswith(b"\n") and not n_damaged
        is_large = len(content) > MAX_GROWTH * sum(map(len, last_lines.values())) + 1
        self.is_tidy = self.is_complete and content.endswith(b"\n") and not is_large
        self._written = _version(self.path.stat()) if self.is_tidy else None
        return batches

    def append(self, *batches: QueuedBatch) -> bool:
        """Append the states of batches; return False if the file is missing or another one, or its length has changed.

        Raises:
            OSError: the file cannot be written; it is as before.
        """
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            status = os.fstat(descriptor)
            if _version(status) != self._written:
                return False  # e.g. a partial line, which the next one would continue
            try:
                write_all(descriptor, _lines(batches))
                os.fsync(descriptor)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, status.st_size)  # the next line must not continue a partial one
                raise
            self._written = _version(os.fstat(descriptor))
        finally:
            os.close(descriptor)
        return True

    def rewrite(self, batches: Iterable[QueuedBatch]) -> None:
        """Raises an ``OSError`` if that fails."""
        replace_file(self.path, b"\n" + _lines(batches))
        self._written = _version(self.path.stat())

    def _set_aside(self) -> None:
        try:
            set_aside(self.path, self.path.with_name(f"{self.path.name}.damaged"))
        except OSError as exc:
            raise StoreError(f"{self.path} cannot be renamed: {exc}; move it away (no episode is lost)") from exc


def _version(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_size


def _read_lines(content: bytes) -> tuple[dict[str, QueuedBatch], dict[str, bytes], int]:
    batches: dict[str, QueuedBatch] = {}
    last_lines: dict[str, bytes] = {}
    n_damaged = 0
    for line in filter(None, content.split(b"\n")):
        try:
            batch = _decode(line)
        except (ValueError, RecursionError):
            n_damaged += 1
            continue
        if batch.has_ended or batch.batch_id not in batches or not batches[batch.batch_id].has_ended:
            batches[batch.batch_id], last_lines[batch.batch_id] = batch, line
    return batches, last_lines, n_damaged


def _decode(line: bytes) -> QueuedBatch:
    if len(line) > MAX_LINE_BYTES:
        raise ValueError("the line is too long")
    return check_batch(_DECODER.decode(line))


def _lines(batches: Iterable[QueuedBatch]) -> bytes:
    return b"".join(msgspec.json.encode(batch) + b"\n" for batch in batches)
