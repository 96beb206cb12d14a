"""Pruning of a batch: its episode files are moved into its archive, or deleted, so that no crash loses or doubles any.

An archive is complete and synced before the index names it and the files are deleted. After a crash in between, the
index takes the files, which precede the archive, and the next pruning deletes those that it already has.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from runner.errors import StoreError
from runner.store.archive import (
    Member,
    Source,
    episode_member,
    file_checksum,
    read_directory,
    tokens_member,
    trace_member,
    write_archive,
)
from runner.store.episode_store import EpisodeStore
from runner.store.index import EpisodeIndex
from runner.util.files import file_lock, sync_folder

MAX_TRACE_BYTES: Final = 1 << 30
"""Size up to which the trace of a batch is archived; a larger one stays until its last episode is deleted."""
_MOVE = "UPDATE episodes SET size = ?, mtime_ns = ? WHERE batch_id = ? AND episode_id = ?"
_DELETE = "DELETE FROM episodes WHERE batch_id = ? AND episode_id = ?"


class BatchInUse(StoreError):
    """A process plays the batch, or a killed one left a journal, which the next start of the node turns into a file."""


def archive_episodes(store: EpisodeStore, index: EpisodeIndex, batch_id: str, episode_ids: Collection[str]) -> int:
    """Move episode files into the archive of their batch, with the last ones its trace, too; return the bytes freed.

    Raises ``BatchInUse``, or ``StoreError`` if a file cannot be read, written or deleted; no episode is lost.
    """
    with _locked(store, batch_id):
        archive = store.archive_path(batch_id)
        sources = [Source(episode_member(batch_id, each), store.path(batch_id, each)) for each in sorted(episode_ids)]
        sources += _tokens(store, batch_id, episode_ids)
        if not _other_files(store, batch_id, episode_ids):
            trace = Source(trace_member(batch_id), store.data_dir / trace_member(batch_id))
            sources += [trace] if 0 < _n_bytes(trace.path) <= MAX_TRACE_BYTES else []
        before, members = _n_bytes(archive), _members(archive)
        new = [source for source in sources if not _is_archived(source, members)]
        if new:
            write_archive(archive, new, without=members.keys() & {source.name for source in new})
        grown, members = _n_bytes(archive) - before, _members(archive)
        with index.transaction() as connection:
            # with the size and checksum of its member, the index finds the row unchanged without the file
            stamps = [(each, members[episode_member(batch_id, each)]) for each in episode_ids]
            connection.executemany(_MOVE, [(member.size, member.crc, batch_id, each) for each, member in stamps])
        # the episodes last: after a crash, the next pruning begins with those that have a file
        return _unlink([source.path for source in reversed(sources)]) - grown


def delete_episodes(store: EpisodeStore, index: EpisodeIndex, batch_id: str, episode_ids: Collection[str]) -> int:
    """Delete episodes, also from the archive of their batch, and with the last ones its trace; return the bytes freed.

    Raises ``BatchInUse``, or ``StoreError`` if a file cannot be read, written or deleted.
    """
    with _locked(store, batch_id):
        archive, trace = store.archive_path(batch_id), trace_member(batch_id)
        members = _members(archive).keys()
        doomed = {name(batch_id, each) for each in episode_ids for name in (episode_member, tokens_member)} & members
        is_last = members <= {*doomed, trace} and not _other_files(store, batch_id, episode_ids)
        paths = [store.data_dir / trace, archive] if is_last else []
        paths += [source.path for source in _tokens(store, batch_id, episode_ids)]
        paths += [store.path(batch_id, each) for each in sorted(episode_ids)]
        n_freed = _unlink([path for path in paths if os.path.lexists(path)])
        if doomed and not is_last:
            before = _n_bytes(archive)
            write_archive(archive, [], without=doomed)
            n_freed += before - _n_bytes(archive)
        with index.transaction() as connection:
            connection.executemany(_DELETE, [(batch_id, each) for each in episode_ids])
        with contextlib.suppress(OSError):  # it has other files
            (store.runs / batch_id).rmdir()
        return n_freed


@contextlib.contextmanager
def _locked(store: EpisodeStore, batch_id: str) -> Iterator[None]:
    with file_lock(store.runs / batch_id) as is_locked:
        if not is_locked or store.has_journal(batch_id):
            raise BatchInUse(
                f"batch {batch_id} is being played or was cut off; try again after its end, or start the node"
            )
        yield


def _members(archive: Path) -> Mapping[str, Member]:
    return read_directory(archive) if os.path.lexists(archive) else {}


def _tokens(store: EpisodeStore, batch_id: str, episode_ids: Collection[str]) -> list[Source]:
    paths = {each: store.tokens_path(batch_id, each) for each in sorted(episode_ids)}
    return [Source(tokens_member(batch_id, each), path) for each, path in paths.items() if _n_bytes(path)]


def _other_files(store: EpisodeStore, batch_id: str, episode_ids: Collection[str]) -> bool:
    try:
        names = {name for name in os.listdir(store.runs / batch_id) if name.endswith(".json")}  # noqa: PTH208
    except OSError as exc:
        raise StoreError(f"{store.runs / batch_id} cannot be read: {exc.strerror}; check its permissions") from exc
    return bool(names - {f"{episode_id}.json" for episode_id in episode_ids})


def _unlink(paths: Sequence[Path]) -> int:
    """Delete files durably; return their size in bytes."""
    n_bytes = sum(map(_n_bytes, paths))
    try:
        for path in paths:
            path.unlink(missing_ok=True)
        for folder in {path.parent for path in paths}:
            sync_folder(folder)
    except OSError as exc:
        raise StoreError(
            f"{exc.filename or paths[0]} cannot be deleted: {exc.strerror}; check its permissions"
        ) from exc
    return n_bytes


def _n_bytes(path: Path) -> int:
    """Return the size of a file; 0 for what is missing or no regular file."""
    try:
        status = path.stat(follow_symlinks=False)
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _is_archived(source: Source, members: Mapping[str, Member]) -> bool:
    """Return whether an archive has the same file, because an earlier pruning was interrupted."""
    member = members.get(source.name)
    with contextlib.suppress(OSError):
        return member is not None and file_checksum(source.path) == (member.size, member.crc)
    return False
