"""What the index lacks of the episode files; the folder of a batch that has not changed since then is not listed.

A folder changes whenever a file in it is created, renamed or deleted, and an episode file is never written in place.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from runner.errors import StoreError
from runner.store.episode_store import EpisodeFile, EpisodeStore
from runner.util.files import DamagedFile

Key: TypeAlias = tuple[str, str]  # batch id and episode id

TRUSTED_AGE_NS: Final = 2_000_000_000
"""Age of a folder's last change from which on a later one is sure to have another time."""
_BATCHES = """WITH RECURSIVE batches(id) AS (
    SELECT min(batch_id) FROM episodes
    UNION ALL SELECT (SELECT min(batch_id) FROM episodes WHERE batch_id > id) FROM batches WHERE id NOT NULL
) SELECT id FROM batches WHERE id NOT NULL"""
"""It jumps from batch to batch: a hundredth of the time of reading all rows."""
_KNOWN = "SELECT episode_id, size, mtime_ns FROM episodes WHERE batch_id = ?"


class Scan(NamedTuple):
    """New and changed episodes, those that are gone, and the stamps of the listed folders that may be trusted."""

    changed: list[EpisodeFile]
    gone: list[Key]
    stamps: dict[str, str]


def scan_folders(store: EpisodeStore, select: Callable[..., list[tuple[Any, ...]]], damaged: list[DamagedFile]) -> Scan:
    """Compare the folders with the tables that ``select`` reads; ``damaged`` receives what is in no table.

    A folder with something of that kind is listed each time. Raises ``StoreError`` if the folder of all batches or the
    tables cannot be read.
    """
    # The rows are read before the files: an episode saved in between would otherwise look deleted.
    rejected: defaultdict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
    for batch_id, episode_id, size, mtime_ns in select("SELECT batch_id, episode_id, size, mtime_ns FROM damaged"):
        rejected[batch_id][episode_id] = (size, mtime_ns)
    stamps = dict(select("SELECT batch_id, stamp FROM folders"))
    vanished = {batch_id for (batch_id,) in select(_BATCHES)} | rejected.keys() | stamps.keys()
    scan = Scan([], [], {})
    for batch_id in store.batch_ids(damaged):
        vanished.discard(batch_id)
        now_ns = time.time_ns()
        changed_at_ns, stamp = _stamp(store, batch_id)
        if stamps.get(batch_id) == stamp:
            continue
        known = {row[0]: (row[1], row[2]) for row in select(_KNOWN, (batch_id,))} | rejected[batch_id]
        n_damaged = len(damaged)
        for file in _list(store, batch_id, damaged):
            if known.pop(file.episode_id, None) != (file.size, file.mtime_ns):
                scan.changed.append(file)
        scan.gone.extend((batch_id, episode_id) for episode_id in known)
        if len(damaged) == n_damaged and now_ns - changed_at_ns > TRUSTED_AGE_NS:
            scan.stamps[batch_id] = stamp
    for batch_id in vanished:
        gone = {row[0] for row in select(_KNOWN, (batch_id,))} | rejected[batch_id].keys()
        scan.gone.extend((batch_id, episode_id) for episode_id in gone or {""})  # with its stamp, which has no episode
    return scan


def _stamp(store: EpisodeStore, batch_id: str) -> tuple[int, str]:
    """Return when a folder has changed, in nanoseconds, and what differs after each change, however old it looks."""
    try:
        status = (store.runs / batch_id).stat(follow_symlinks=False)
    except OSError:  # it has just been deleted
        return time.time_ns(), ""
    return max(status.st_mtime_ns, status.st_ctime_ns), f"{status.st_mtime_ns} {status.st_ctime_ns}"


def _list(store: EpisodeStore, batch_id: str, damaged: list[DamagedFile]) -> list[EpisodeFile]:
    try:
        return store.list_batch(batch_id, damaged)
    except (StoreError, OSError) as exc:
        damaged.append(DamagedFile(store.runs / batch_id, str(exc)))
        return []
