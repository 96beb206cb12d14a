"""Which rows of the index belong to archived episodes, and the rows of archives that the index does not have yet.

The row of an archived episode has the size and modification time of its archive in place of those of a file.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from runner.errors import StoreError
from runner.store.archive import Member, episode_member, read_directory, read_member
from runner.store.episode_file import decode_episode
from runner.store.episode_store import ArchiveFile, EpisodeFile, EpisodeStore
from runner.store.index_schema import episode_row, to_columns
from runner.util.clock import is_ulid
from runner.util.files import DamagedFile

Key: TypeAlias = tuple[str, str]
"""Batch id and episode id."""
Stamp: TypeAlias = tuple[int, int]
"""Size in bytes and modification time in nanoseconds of the file that a row was read from."""

_FOREIGN = "it has no episode of this batch; move it away, and open it with agentgym-tui open or import it"
_KNOWN = "INSERT INTO events (id) SELECT ?1 WHERE NOT EXISTS (SELECT 1 FROM events WHERE id = ?1)"
_SETTLED = "DELETE FROM marks WHERE n = (SELECT n FROM events WHERE id = ?)"


def keep_archived(
    store: EpisodeStore, archives: Iterable[ArchiveFile], without_file: MutableMapping[Key, Stamp]
) -> Iterator[ArchiveFile]:
    """Remove the keys that the archives contain from ``without_file``, and yield the archives that were not read yet.

    Args:
        without_file: the stamp of each row without an episode file.
    """
    keys: defaultdict[str, list[Key]] = defaultdict(list)
    for key in without_file:
        keys[key[0]].append(key)
    found: defaultdict[str, list[ArchiveFile]] = defaultdict(list)
    for archive in archives:
        found[archive.batch_id].append(archive)
    for batch_id in sorted({*keys, *found}):
        known = _remove_known(keys[batch_id], found[batch_id], without_file)
        if len(known) == len(found[batch_id]) and not any(key in without_file for key in keys[batch_id]):
            continue
        # an archive replaces files only after it was completed: what has no file now is in an archive that exists now
        with suppress(StoreError):  # the list of files reports the folder
            yield from list(store.list_archives(batch_id))


def _remove_known(
    keys: Iterable[Key], archives: Iterable[ArchiveFile], without_file: MutableMapping[Key, Stamp]
) -> set[Stamp]:
    stamps = {(archive.size, archive.mtime_ns) for archive in archives}
    known = set()
    for key in keys:
        if (stamp := without_file[key]) in stamps:
            known.add(stamp)
            del without_file[key]
    return known


def read_archive(
    store: EpisodeStore, archive: ArchiveFile, damaged: list[DamagedFile]
) -> tuple[list[list[object]], list[tuple[object, ...]]]:
    """Return the rows of the episodes in an archive that have no file, and those of its damaged members.

    Args:
        damaged: receives the archive or the members that cannot be read.
    """
    rows: list[list[object]] = []
    rejected: list[tuple[object, ...]] = []
    try:
        members = read_directory(archive.path)
    except StoreError as exc:
        damaged.append(DamagedFile(archive.path, str(exc)))
        return rows, rejected
    own = [(each, Path(each.name).stem) for each in members.values() if _is_of_batch(each, archive.batch_id)]
    if not own:
        damaged.append(DamagedFile(archive.path, _FOREIGN))
    for member, episode_id in own:
        path = store.path(archive.batch_id, episode_id)
        if path.exists():
            continue
        file = EpisodeFile(archive.batch_id, episode_id, archive.size, archive.mtime_ns)
        try:
            record = decode_episode(read_member(archive.path, member), path)
        except StoreError as exc:
            damaged.append(DamagedFile(archive.path, str(exc)))
            rejected.append((episode_id, archive.batch_id, archive.size, archive.mtime_ns, str(exc)))
        else:
            rows.append(to_columns(episode_row(record), file))
    return rows, rejected


def _is_of_batch(member: Member, batch_id: str) -> bool:
    stem = Path(member.name).stem
    return is_ulid(stem) and member.name == episode_member(batch_id, stem)


def add_settled_events(connection: sqlite3.Connection, episode_ids: Iterable[str]) -> None:
    """Add the events of episodes as delivered, unless they are known: of archived ones, and of imported ones."""
    for episode_id in episode_ids:
        event_id = f"episode:{episode_id}"
        if connection.execute(_KNOWN, (event_id,)).rowcount:
            connection.execute(_SETTLED, (event_id,))
