"""The queue of requested batches: in memory, and in a file with a line per change, which survives kills and power loss.

The last line of a batch in ``batches.jsonl`` is its state. While it plays, its episode files count those that finished.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

from runner.batch.spec import INTEGER_LIMIT, MAX_EPISODES, BatchSpec
from runner.errors import RunnerError, StoreError, catch_foreign, log_failure
from runner.events.live import QueueChanged, WaitingBatch
from runner.types import MAX_WORKERS
from runner.util.clock import Clock, derive_ulid, is_ulid
from runner.util.files import read_file, replace_file, set_aside, write_all
from runner.util.resources import file_advice

logger = logging.getLogger(__name__)

Status: TypeAlias = Literal["queued", "running", "completed", "cancelled", "interrupted"]

FILE_NAME: Final = "batches.jsonl"
ENDED: Final[tuple[Status, ...]] = ("completed", "cancelled")
"""The statuses that a batch keeps for good."""
MAX_LINE_BYTES = 128 * 1024
"""Maximum length of a line; the request that starts a batch is smaller."""
MAX_QUEUED = 1000
MAX_WAITING = 200
"""Maximum number of batches in a ``queue`` item."""
MAX_GROWTH = 4
"""A file that has this many times as many lines as batches is written again, at the next change."""
MIN_LINES = 1000
"""Lines that a file may have in any case."""


class QueueFull(RunnerError):
    pass


class QueuedBatch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A requested batch with its current status.

    Attributes:
        held: whether the batch, which waits, does not start before it is released.
        place: the batches that wait start in this order.
        interruption: why the batch was interrupted; None if it was not, on request, or by the end of its node.
    """

    batch_id: str
    battery_id: str | None
    spec: BatchSpec
    status: Status = "queued"
    n_done: int = 0
    held: bool = False
    place: int = 0
    interruption: str | None = None

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    def described(self, kind: type[msgspec.Struct]) -> dict[str, Any]:
        """Return the fields of this batch and of its spec that a struct has, too."""
        shown = msgspec.structs.asdict(self.spec) | msgspec.structs.asdict(self) | {"n_planned": self.spec.n_planned}
        return {name: value for name, value in shown.items() if name in kind.__struct_fields__}


_DECODER = msgspec.json.Decoder(QueuedBatch)
PLACE = attrgetter("place")


class BatchQueue:
    """The batches of a node, first in, first out; thread-safe within the node that owns the file.

    A change is on the disk when its method returns. Batches that an earlier node left
    unfinished become ``interrupted``; held ones stay queued and held.

    Args:
        data_dir: the folder of the file.

    Attributes:
        notice: what the file had lost, for people; None if nothing was.
        is_incomplete: whether batches may be missing: the file was damaged or deleted. Not before the first node of the
            folder, because a node does not list the batches of foreground runs.
        on_change: called after batches were added, moved or changed their status; must return quickly.

    Raises:
        StoreError: the file cannot be used.
    """

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / FILE_NAME
        self._lock = threading.Lock()
        self.notice: str | None = None
        self.is_incomplete = False
        self.on_change: Callable[[], object] = lambda: None
        self._n_lines = 0
        self._batches: dict[str, QueuedBatch] = {}
        for batch in self._read():
            is_left = batch.status == "running" or (batch.status == "queued" and not batch.held)
            self._batches[batch.batch_id] = _changed(batch, status="interrupted") if is_left else batch
        self._written = self._rewrite(self._batches)

    def report_to(self, report: Callable[[QueueChanged], object], clock: Clock) -> None:
        """Report the waiting batches after each change; the last report is never outdated."""
        lock = threading.Lock()

        def report_queue() -> None:
            with lock, catch_foreign(log_failure(logger, "reporting the queue")):  # what changed it has succeeded
                waiting = self.with_status("queued")
                shown = [WaitingBatch(**each.described(WaitingBatch), paused=each.held) for each in waiting]
                report(QueueChanged(at=clock.now(), batches=shown[:MAX_WAITING], n_waiting=len(waiting)))

        self.on_change = report_queue

    def add(self, *batches: QueuedBatch) -> bool:
        """Append all batches, or none and return False, because the queue already has one of the ids.

        Raises ``QueueFull`` if too many batches would wait.
        """
        with self._lock:
            if any(batch.batch_id in self._batches for batch in batches):
                return False
            last = max((batch.place for batch in self._batches.values()), default=0)
            self._save([_changed(batch, place=last + n) for n, batch in enumerate(batches, start=1)])
        return True

    def get(self, batch_id: str) -> QueuedBatch | None:
        return self._batches.get(batch_id)

    def ids(self) -> set[str]:
        return set(self._batches)

    def in_battery(self, battery_id: str) -> list[QueuedBatch]:
        """In the order in which the batches were added, or moved."""
        return self._select(lambda batch: batch.battery_id == battery_id)

    def ended_batteries(self) -> dict[str, int]:
        """Return the number of finished episodes of each battery whose batches have all ended, by its id."""
        batches = self._select(lambda batch: batch.battery_id is not None)
        unfinished = {batch.battery_id for batch in batches if not batch.has_ended}
        n_done: Counter[str] = Counter()
        for batch in batches:
            if batch.battery_id is not None and batch.battery_id not in unfinished:
                n_done[batch.battery_id] += batch.n_done
        return n_done

    def with_status(self, *statuses: Status) -> list[QueuedBatch]:
        """Those that wait are in the order in which they will run."""
        return self._select(lambda batch: batch.status in statuses)

    def ready(self) -> list[QueuedBatch]:
        """Batches that wait and are not held, in the order in which they will run."""
        return self._select(lambda batch: batch.status == "queued" and not batch.held)

    def listed(self, *, n_waiting: int, n_others: int) -> list[QueuedBatch]:
        """Return the batches that matter most, the newest first: what runs, what runs next, and the newest others."""
        others = self._select(lambda batch: batch.status != "queued")[::-1]
        others.sort(key=lambda batch: batch.status != "running")
        return sorted([*self.with_status("queued")[:n_waiting], *others[:n_others]], key=PLACE, reverse=True)

    def hold(self, batch_id: str, *, held: bool = True) -> bool:
        """Keep a batch that waits from starting, even after a restart, or let it; return False if it does not wait.

        A batch that is not held cannot be released.
        """
        with self._lock:
            batch = self._batches.get(batch_id)
            if batch is None or batch.status != "queued" or (not held and not batch.held):
                return False
            self._save([_changed(batch, held=held)] if batch.held != held else [])
        return True

    def set_status(
        self,
        batch_id: str,
        status: Status,
        *,
        n_done: int | None = None,
        interruption: str | None = None,
        only: tuple[Status, ...] = (),
    ) -> bool:
        """Set the status of a batch and, if given, the number of its finished episodes; return whether they were set.

        ``only`` are the statuses that it may have before; empty: any.
        """
        with self._lock:
            batch = self._batches.get(batch_id)
            if batch is None or (only and batch.status not in only):
                return False
            n_done = batch.n_done if n_done is None else n_done
            self._save([_changed(batch, status=status, n_done=n_done, interruption=interruption, held=False)])
        return True

    def queue_again(self, specs: Mapping[str, BatchSpec]) -> None:
        """Queue the interrupted batches among these again, with new specs that have the same episodes.

        Raises ``QueueFull`` if too many batches would wait; then none is changed.
        """
        with self._lock:
            found = [batch for batch in self.with_status("interrupted") if batch.batch_id in specs]
            self._save(
                [_changed(batch, status="queued", interruption=None, spec=specs[batch.batch_id]) for batch in found]
            )

    def move(self, batch_ids: Collection[str], to: int) -> bool:
        """Move the queued batches among these so that ``to`` others run before them; return False if none is queued."""
        with self._lock:
            waiting = self.with_status("queued")
            moved = [batch for batch in waiting if batch.batch_id in batch_ids]
            others = [batch for batch in waiting if batch.batch_id not in batch_ids]
            order = zip([*others[:to], *moved, *others[to:]], waiting, strict=True)
            self._save([_changed(batch, place=old.place) for batch, old in order if batch.place != old.place])
        return bool(moved)

    def set_complete(self) -> None:
        """Record that all batches were restored: a node may be killed while it reads its episodes."""
        with self._lock:
            self.is_incomplete = False
            self._written = self._rewrite(self._batches)

    def _select(self, condition: Callable[[QueuedBatch], bool]) -> list[QueuedBatch]:
        return sorted(filter(condition, list(self._batches.values())), key=PLACE)

    def _save(self, changed: Sequence[QueuedBatch]) -> None:
        """Write changes to the disk, then apply them; raises ``QueueFull`` or ``StoreError`` and changes nothing."""
        batches = self._batches | {batch.batch_id: batch for batch in changed}
        n_queued = sum(batch.status == "queued" for batch in batches.values())
        if n_queued > MAX_QUEUED and any(batch.status == "queued" for batch in changed):
            raise QueueFull(f"the request makes {n_queued} batches wait; this node queues at most {MAX_QUEUED}")
        if changed:
            is_long = self._n_lines > max(MIN_LINES, MAX_GROWTH * len(batches))
            self._written = (None if is_long else self._append(changed)) or self._rewrite(batches)
        self._batches = batches
        self.on_change()

    def _append(self, batches: Sequence[QueuedBatch]) -> tuple[int, int] | None:
        """Append lines and return the version of the file; None if it is another one than that which was written last.

        A file that cannot be written has what it had, because the next line must not continue a part of one.
        """
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise self._unusable(exc) from exc
        try:
            status = os.fstat(descriptor)
            if _version(status) != self._written:
                return None
            try:
                write_all(descriptor, _lines(batches))
                os.fsync(descriptor)
            except OSError as exc:
                with suppress(OSError):  # else the next change finds another version, and writes the file again
                    os.ftruncate(descriptor, status.st_size)
                raise self._unusable(exc) from exc
            self._n_lines += len(batches)
            return _version(os.fstat(descriptor))
        finally:
            os.close(descriptor)

    def _rewrite(self, batches: Mapping[str, QueuedBatch]) -> tuple[int, int]:
        try:
            # The empty first line shows that no batch is missing; an empty file may be what a power loss has left.
            replace_file(self._path, b"\n" * (not self.is_incomplete) + _lines(batches.values()))
            self._n_lines = len(batches)
            return _version(self._path.stat())
        except OSError as exc:
            raise self._unusable(exc) from exc

    def _read(self) -> Iterable[QueuedBatch]:
        """Return the last state of each batch; a file that may have lost batches is kept beside the new one."""
        is_first = not self._path.with_name("nats").is_dir()
        if not os.path.lexists(self._path):
            if not is_first:
                self._note_loss("is missing", is_first)
            return ()
        try:
            content = read_file(self._path)
        except StoreError as exc:
            self._note_loss(f"was damaged: {exc}", is_first)
            self._set_aside()
            return ()
        batches, n_damaged = _read_lines(content)
        n_torn = _read_lines(content.rpartition(b"\n")[2])[1]
        if n_damaged > n_torn:
            self._note_loss(f"was damaged: {n_damaged} damaged lines", is_first)
            self._set_aside()
        elif n_torn:  # a kill or a power loss in the middle of a write that was not acknowledged
            logger.warning("%s has a damaged line at its end; the others are used", self._path)
        if not content.startswith(b"\n") and self.notice is None:
            self._note_loss("was damaged: its first line is missing", is_first)
        return batches.values()

    def _note_loss(self, problem: str, is_first: bool) -> None:
        self.is_incomplete = not is_first
        self.notice = f"{self._path} {problem}. Lost batches without a stored episode are not listed"
        logger.warning("%s", self.notice)

    def _set_aside(self) -> None:
        try:
            set_aside(self._path, self._path.with_name(f"{FILE_NAME}.damaged"))
        except OSError as exc:
            raise StoreError(f"{self._path} cannot be renamed: {exc}; move it away (no episode is lost)") from exc

    def _unusable(self, exc: OSError) -> StoreError:
        advice = file_advice(exc, "check for a full disk, and that it is a file")
        return StoreError(f"{self._path} cannot be written: {exc}; {advice}")


def queued_ids(data_dir: Path, *, unfinished: bool = False) -> set[str]:
    """Return the ids of all or the ``unfinished`` batches of a folder, to whose file a running node may append."""
    path = data_dir / FILE_NAME
    if not path.exists():
        return set()
    content = read_file(path)
    batches, n_damaged = _read_lines(content)
    if n_damaged > (not content.endswith(b"\n")) or not content.startswith(b"\n"):
        raise StoreError(f"{path} has {n_damaged} damaged lines; the next node restores it (no episode is lost)")
    return {batch.batch_id for batch in batches.values() if not (unfinished and batch.has_ended)}


def check_batch(batch: QueuedBatch) -> QueuedBatch:
    """Raise a ``ValueError`` if no node can have written the batch."""
    spec, ids = batch.spec, (batch.batch_id, batch.battery_id or batch.batch_id)
    numbers = [batch.n_done, batch.place, spec.seed, spec.task_index]
    numbers += [*chain.from_iterable(spec.chosen or ()), *(spec.tasks or ())]
    if spec.adaptive is not None:
        numbers += [spec.adaptive.task_index, spec.adaptive.repeat]
    is_planned = min(spec.repeat, spec.attempts, spec.n_planned) > 0 and spec.n_planned <= MAX_EPISODES
    is_planned = is_planned and (spec.tasks is None or len(set(spec.tasks)) == spec.repeat)
    is_planned = is_planned and (not isinstance(spec.workers, int) or 0 <= spec.workers <= MAX_WORKERS)
    if not (all(map(is_ulid, ids)) and is_planned and all(abs(number) < INTEGER_LIMIT for number in numbers)):
        raise ValueError("a batch has an invalid id or number")
    return batch


def _read_lines(content: bytes) -> tuple[dict[str, QueuedBatch], int]:
    """Return the last state of each batch, and the number of damaged lines.

    A batch that has ended stays so, whatever the order of its lines.
    """
    batches: dict[str, QueuedBatch] = {}
    n_damaged = 0
    for line in filter(None, content.split(b"\n")):
        try:
            if len(line) > MAX_LINE_BYTES:
                raise ValueError("the line is too long")
            batch = check_batch(_DECODER.decode(line))
        except (ValueError, RecursionError):
            n_damaged += 1
            continue
        if batch.has_ended or batch.batch_id not in batches or not batches[batch.batch_id].has_ended:
            batches[batch.batch_id] = batch
    return batches, n_damaged


def _lines(batches: Iterable[QueuedBatch]) -> bytes:
    return b"".join(msgspec.json.encode(batch) + b"\n" for batch in batches)


def _version(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_size


def _changed(batch: QueuedBatch, **fields: object) -> QueuedBatch:
    return msgspec.structs.replace(batch, **fields)


def derived_batch_id(battery_id: str, name: str) -> str:
    """The id is a ULID derived only from the arguments."""
    return derive_ulid(battery_id, hashlib.blake2b(f"{battery_id}/{name}".encode(), digest_size=10).digest())


def queue_entries(requested_id: str, specs: Sequence[BatchSpec]) -> list[QueuedBatch]:
    """Return the entries of a request: one with the requested id, or several in a battery with that id.

    An adaptive run is always a battery, because further batches follow.
    """
    if len(specs) == 1 and specs[0].adaptive is None:
        return [QueuedBatch(batch_id=requested_id, battery_id=None, spec=specs[0])]
    one_per_env = len({spec.env for spec in specs}) == len(specs)
    return [battery_entry(requested_id, spec, by_env=one_per_env and spec.adaptive is None) for spec in specs]


def battery_entry(battery_id: str, spec: BatchSpec, *, by_env: bool = False) -> QueuedBatch:
    """With ``by_env``, the battery has no other batch of the same environment."""
    name = spec.env if by_env else f"{spec.env}/{spec.model or ''}/{spec.task_index}"
    return QueuedBatch(batch_id=derived_batch_id(battery_id, name), battery_id=battery_id, spec=spec)
