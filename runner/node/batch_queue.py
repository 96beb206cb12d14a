"""The queue of requested batches: in memory, and in a file with a line per change, which survives kills and power loss.

The last line of a batch in ``batches.jsonl`` is its state. While it plays, its episode files count those that finished,
and they also describe its result, its progress, and a batch of a lost file.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

from runner.batch.result import FINISHED, BatchResult, BatchStats, BatchStatus, one_per_plan, split_plan
from runner.batch.spec import INTEGER_LIMIT, MAX_CHOSEN, MAX_EPISODES, BatchSpec
from runner.batch.workspace import Workspace
from runner.errors import ConfigError, RunnerError, StoreError, catch_foreign, log_failure
from runner.events.live import QueueChanged, WaitingBatch
from runner.publish.outbox import EndedBattery
from runner.store import EpisodeRecord
from runner.types import MAX_WORKERS, BatchProgress, Outcome
from runner.util.clock import Clock, derive_ulid, is_ulid
from runner.util.files import read_file, replace_file, set_aside, write_all
from runner.util.resources import file_advice
from runner.util.sqlite import DAMAGED_SUFFIX

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
        extends: id of the ended batch whose numbering it continues; None: it begins its own. Without another battery,
            the two form one with that id.
    """

    batch_id: str
    battery_id: str | None
    spec: BatchSpec
    status: Status = "queued"
    n_done: int = 0
    held: bool = False
    place: int = 0
    interruption: str | None = None
    extends: str | None = None

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
            self._save(self._placed(batches))
        return True

    def change(self, specs: Mapping[str, BatchSpec], added: Sequence[QueuedBatch] = ()) -> None:
        """Give the batches among these that have not ended new specs, and append others that are not known yet.

        Raises ``QueueFull`` if too many batches would wait; then none is changed.
        """
        with self._lock:
            changed = [
                _changed(batch, spec=specs[batch.batch_id])
                for batch in self._batches.values()
                if batch.batch_id in specs and not batch.has_ended
            ]
            self._save([*changed, *self._placed([each for each in added if each.batch_id not in self._batches])])

    def _placed(self, batches: Sequence[QueuedBatch]) -> list[QueuedBatch]:
        last = max((batch.place for batch in self._batches.values()), default=0)
        return [_changed(batch, place=last + n) for n, batch in enumerate(batches, start=1)]

    def get(self, batch_id: str) -> QueuedBatch | None:
        return self._batches.get(batch_id)

    def extensions(self, batch_ids: Collection[str]) -> list[QueuedBatch]:
        """In the order in which they were added, or moved."""
        return self._select(lambda batch: batch.extends in batch_ids)

    def ids(self) -> set[str]:
        return set(self._batches)

    def in_battery(self, battery_id: str) -> list[QueuedBatch]:
        """In the order in which the batches were added, or moved."""
        return self._select(lambda batch: batch.battery_id == battery_id)

    def ended_batteries(self) -> dict[str, EndedBattery]:
        """Return the batteries whose batches have all ended, by id; a batch with its extensions is none."""
        batches = self._select(lambda batch: batch.battery_id is not None and batch.battery_id not in self._batches)
        unfinished = {batch.battery_id for batch in batches if not batch.has_ended}
        found: dict[str, EndedBattery] = {}
        for batch in batches:
            if batch.battery_id is not None and batch.battery_id not in unfinished:
                n_episodes, n_cancelled = found.get(batch.battery_id, (0, 0))
                counts = n_episodes + batch.n_done, n_cancelled + (batch.status == "cancelled")
                found[batch.battery_id] = EndedBattery(*counts)
        return found

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
        content, problem = b"\n", None
        if os.path.lexists(self._path):
            try:
                content = read_file(self._path)
            except StoreError as exc:
                problem = str(exc)
        elif not is_first:
            self._note_loss("is missing", is_first)
        batches, n_damaged = _read_lines(content)
        n_torn = _read_lines(content.rpartition(b"\n")[2])[1]
        if n_damaged > n_torn:
            problem = f"{n_damaged} damaged lines"
        elif n_torn:  # a kill or a power loss in the middle of a write that was not acknowledged
            logger.warning("%s has a damaged line at its end; the others are used", self._path)
        if problem is not None:
            try:
                set_aside(self._path, self._path.with_name(f"{FILE_NAME}.damaged"))
            except OSError as exc:
                raise StoreError(f"{self._path} cannot be renamed: {exc}; move it away (no episode is lost)") from exc
        elif not content.startswith(b"\n"):
            problem = "its first line is missing"
        if problem is not None:
            self._note_loss(f"was damaged: {problem}", is_first)
        return batches.values()

    def _note_loss(self, problem: str, is_first: bool) -> None:
        self.is_incomplete = not is_first
        self.notice = f"{self._path} {problem}. Lost batches without a stored episode are not listed"
        logger.warning("%s", self.notice)

    def _unusable(self, exc: OSError) -> StoreError:
        advice = file_advice(exc, "check for a full disk, and that it is a file")
        return StoreError(f"{self._path} cannot be written: {exc.strerror}; {advice}")


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


def extension_entry(ended: QueuedBatch, spec: BatchSpec, number: int) -> QueuedBatch:
    """Return the entry of the extension of an ended batch with this number, counted from 1."""
    return QueuedBatch(
        batch_id=derived_batch_id(ended.batch_id, f"extension {number}"),
        battery_id=ended.battery_id or ended.batch_id,
        spec=spec,
        extends=ended.batch_id,
    )


def battery_entry(battery_id: str, spec: BatchSpec, *, by_env: bool = False) -> QueuedBatch:
    """With ``by_env``, the battery has no other batch of the same environment."""
    name = spec.env if by_env else f"{spec.env}/{spec.model or ''}/{spec.task_index}"
    return QueuedBatch(batch_id=derived_batch_id(battery_id, name), battery_id=battery_id, spec=spec)


logger = logging.getLogger(__name__)

_PLANNED = "SELECT batch_id, episode_id, task_index, attempt FROM episodes ORDER BY batch_id, task_index, attempt"


class StoredBatches:
    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def episodes(self, batch_id: str) -> list[EpisodeRecord]:
        """Raises ``StoreError`` if the index or a file cannot be read."""
        rows = self._workspace.index.select("SELECT episode_id FROM episodes WHERE batch_id = ?", (batch_id,))
        return [self._workspace.store.load(self._workspace.store.path(batch_id, row[0])) for row in rows]

    def spec_of_errors(self, batch: QueuedBatch) -> BatchSpec | None:
        """Return the spec that plays again what ended with an error at its latest start; None if nothing did.

        Raises:
            StoreError: the index cannot be read.
            ConfigError: more than ``MAX_CHOSEN`` episodes ended with an error.
        """
        statement = "SELECT task_index, attempt, outcome FROM episodes WHERE batch_id = ? ORDER BY episode_id"
        rows = self._workspace.index.select(statement, (batch.batch_id,))
        latest = {(task_index, attempt): outcome for task_index, attempt, outcome in rows}
        errors = sorted(episode for episode, outcome in latest.items() if outcome == Outcome.ERROR)
        if len(errors) > MAX_CHOSEN:
            raise ConfigError(
                f"{len(errors)} episodes of batch {batch.batch_id} ended with an error; at most {MAX_CHOSEN} can be "
                "chosen, so play all of its episodes again"
            )
        return msgspec.structs.replace(batch.spec, chosen=tuple(errors), adaptive=None) if errors else None

    def done(self, batches: Sequence[QueuedBatch]) -> set[tuple[int, int]] | None:
        """Return (task index, attempt) of what these play or have played; None if that is all of their plans."""
        if all(batch.status != "cancelled" for batch in batches):
            return None
        query = f"SELECT task_index, attempt FROM episodes WHERE batch_id = ? AND {FINISHED}"
        played = set[tuple[int, int]]()
        for batch in batches:
            if batch.status == "cancelled":
                played |= {(row[0], row[1]) for row in self._workspace.index.select(query, (batch.batch_id,))}
            else:
                played |= {(each.task_index, each.attempt) for each in batch.spec.plan()}
        return played

    def lacks_episodes(self, queued: QueuedBatch) -> bool:
        """Return whether episodes of an ended batch were deleted; then it has no other result than its earlier one."""
        if queued.status == "completed":
            return self._workspace.n_finished(queued.batch_id) < queued.spec.n_planned
        query = "SELECT 1 FROM episodes WHERE batch_id = ? LIMIT 1"
        return queued.n_done > 0 and not self._workspace.index.select(query, (queued.batch_id,))

    def placement_kind(self, queued: QueuedBatch) -> tuple[str, str, str] | None:
        """Return the ``Placement.kind`` of a batch and all parts of its adaptive repeats; None: nothing is stored."""
        battery_id = None if queued.spec.adaptive is None else queued.battery_id
        rows = self._workspace.index.select(
            "SELECT transport, mode, data_label FROM episodes "
            "WHERE batch_id = ? OR (battery_id = ? AND env = ? AND model IS ?) LIMIT 1",
            (queued.batch_id, battery_id, queued.spec.env, queued.spec.model),
        )
        return (rows[0][0], rows[0][1], rows[0][2]) if rows else None

    def progress(self, queued: QueuedBatch, *, interruption: str | None = None) -> BatchProgress:
        """Its ``seq`` is 0. ``interruption`` is why the batch is interrupted, None if it is not."""
        stats, stored = BatchStats(), self.episodes(queued.batch_id)
        stats.add_stored(stored, split_plan(queued.spec, stored)[0])
        now = self._workspace.clock.now()
        progress = stats.progress(queued.batch_id, queued.spec.n_planned, at=now, seq=0)
        return msgspec.structs.replace(progress, interrupted=interruption is not None, interruption=interruption)

    def result(self, queued: QueuedBatch, status: BatchStatus) -> BatchResult:
        """Has no duration."""
        stats, stored = BatchStats(), self.episodes(queued.batch_id)
        stats.add_stored(stored, one_per_plan(stored))
        batch_id, battery_id = queued.batch_id, queued.battery_id
        return stats.result(
            queued.spec, batch_id=batch_id, battery_id=battery_id, status=status, data_label="", duration_s=0.0
        )


def recover_queue(queue: BatchQueue, workspace: Workspace, ended_ids: Collection[str]) -> None:
    """List the batches of a lost queue again, count the episodes of interrupted ones, and end those that have ended.

    A process may have died before it saved a status, or the file may be an older copy. The index of ``workspace`` must
    have been updated from the files.
    """
    if queue.is_incomplete:
        _restore_from_episodes(queue, workspace)
        queue.set_complete()
    for batch in queue.with_status("interrupted"):
        n_done = workspace.n_finished(batch.batch_id)
        is_complete = n_done >= batch.spec.n_planned
        if is_complete or batch.batch_id in ended_ids:
            logger.warning("batch %s has ended according to its episodes and events", batch.batch_id)
            queue.set_status(batch.batch_id, "completed" if is_complete else "cancelled", n_done=n_done)
        elif n_done != batch.n_done:  # a killed node has not saved the count of its last episodes
            queue.set_status(batch.batch_id, "interrupted", n_done=n_done, interruption=batch.interruption)


def _restore_from_episodes(queue: BatchQueue, workspace: Workspace) -> None:
    known, batches = queue.ids(), list[QueuedBatch]()
    for batch_id, rows in groupby(workspace.index.select(_PLANNED), key=lambda row: str(row[0])):
        if batch_id not in known and (batch := _batch_of(workspace, batch_id, list(rows))) is not None:
            batches.append(batch)
    if not batches:
        return
    queue.add(*batches)
    queue.notice = (
        f"batches.jsonl was lost or damaged (a damaged file ends with {DAMAGED_SUFFIX}). Batches that it still had: "
        f"{len(known)}; batches that are listed again as far as their episodes describe them: {len(batches)}"
    )
    logger.warning("%s", queue.notice)


def _batch_of(workspace: Workspace, batch_id: str, rows: Sequence[tuple[str, str, int, int]]) -> QueuedBatch | None:
    """Return the batch of these episodes, which are ordered by task; None if they do not describe their batch."""
    newest_id = max(row[1] for row in rows)  # earlier ones do not have what was planned since
    try:
        newest = workspace.store.load(workspace.store.path(batch_id, newest_id))
    except StoreError:
        return None
    if newest.n_planned is None:
        return None
    played = {(task_index, attempt) for _, _, task_index, attempt in rows}
    n_attempts = max(attempt for _, attempt in played) + 1
    n_attempts = n_attempts if newest.n_planned % n_attempts == 0 else 1
    spec = BatchSpec(
        env=newest.env,
        agent=newest.agent,
        model=newest.model,
        repeat=newest.n_planned // n_attempts,
        attempts=n_attempts,
        task_index=rows[0][2],
        seed=(newest.seed or 0) - newest.attempt,
        mode=newest.mode,
    )
    if not played <= {(planned.task_index, planned.attempt) for planned in spec.plan()}:
        # single episodes were chosen: those that were not played are unknown, and no others may be played
        spec = msgspec.structs.replace(spec, chosen=tuple(sorted(played)))
    n_done = workspace.n_finished(batch_id)  # saved here and not one by one, because each save is synced
    status: Status = "completed" if n_done >= spec.n_planned else "interrupted"
    return QueuedBatch(batch_id=batch_id, battery_id=newest.battery_id, spec=spec, status=status, n_done=n_done)
