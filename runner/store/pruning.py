"""Pruning of a batch: its episode files are moved into an archive, or deleted, so that no crash loses or doubles any.

An archive is complete and synced before the index names it and the files are deleted. After a crash in between, the
index takes the files, which precede archives, and the next pruning deletes those that an archive already has.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from runner.errors import StoreError
from runner.store.archive import (
    MAX_MEMBERS,
    MAX_WRITTEN_BYTES,
    SUFFIX,
    Source,
    episode_member,
    file_checksum,
    read_directory,
    read_member,
    tokens_member,
    trace_member,
    write_archive,
)
from runner.store.episode_store import EpisodeStore, stamp_of
from runner.store.index import EpisodeIndex
from runner.store.journal import JOURNAL_SUFFIX
from runner.util.clock import is_ulid, new_ulid
from runner.util.files import file_lock, make_folder, replace_file, sync_folder

_MOVE = "UPDATE episodes SET size = ?, mtime_ns = ? WHERE batch_id = ? AND episode_id = ?"
_DELETE = "DELETE FROM episodes WHERE batch_id = ? AND episode_id = ?"


class Pruned(NamedTuple):
    """What a pruning has done; ``n_freed`` are the bytes of files and trace, less those of the new ``archives``."""

    n_episodes: int = 0
    n_freed: int = 0
    archives: tuple[Path, ...] = ()


class BatchInUse(StoreError):
    """A process plays the batch, or a killed one left a journal, which the next start of the node turns into a file."""


def archive_episodes(store: EpisodeStore, index: EpisodeIndex, batch_id: str, episode_ids: Collection[str]) -> Pruned:
    """Move episode files into archives, and with the last ones the trace of the batch if it fits one.

    Raises ``BatchInUse``, or ``StoreError`` if a file cannot be read, written or deleted; no episode is lost.
    """
    with _locked(store, batch_id):
        sources = [Source(episode_member(batch_id, each), store.path(batch_id, each)) for each in sorted(episode_ids)]
        sources += _token_sources(store, batch_id, episode_ids)
        traces = _trace_source(store, batch_id, episode_ids)
        sources += [trace for trace in traces if _n_bytes(trace.path) <= MAX_WRITTEN_BYTES]
        places = _archived_before(store, batch_id, sources)
        new: list[Path] = []
        for part in _parts([source for source in sources if source.name not in places]):
            archive = store.runs / batch_id / f"{new_ulid()}{SUFFIX}"
            write_archive(archive, part)
            places |= {source.name: archive for source in part}
            new.append(archive)
        n_new_bytes = sum(map(_n_bytes, new))
        with index.transaction() as connection:
            for episode_id in episode_ids:
                # the row gets the stamp of its archive, so that the index finds it unchanged without the file
                stamp = stamp_of(places[episode_member(batch_id, episode_id)].stat())
                connection.execute(_MOVE, (*stamp, batch_id, episode_id))
        n_bytes = _unlink([source.path for source in sources])
        return Pruned(len(episode_ids), n_bytes - n_new_bytes, tuple(new))


def unpack_archive(store: EpisodeStore, batch_id: str, archive: Path) -> int:
    """Write the files of an archive of a batch back and remove the archive; return the number of episodes.

    The index has the files after its next ``reconcile``. Raises ``BatchInUse``, or ``StoreError`` if the archive cannot
    be read or removed, or a file cannot be written; no episode is lost.
    """
    n_episodes = 0
    with _locked(store, batch_id):
        for name, member in read_directory(archive).items():
            stem = Path(name).stem
            own = (trace_member(batch_id), episode_member(batch_id, stem), tokens_member(batch_id, stem))
            if not is_ulid(stem) or name not in own:
                continue  # an archive from elsewhere may have any names
            n_episodes += name.endswith(".json")
            if not os.path.lexists(path := store.data_dir / name):
                try:
                    make_folder(path.parent)
                    replace_file(path, read_member(archive, member))
                except OSError as exc:
                    raise StoreError(
                        f"{path} cannot be written: {exc}; check space and permissions, then try again"
                    ) from exc
        _unlink([archive])
    return n_episodes


def delete_episodes(
    store: EpisodeStore,
    index: EpisodeIndex,
    batch_id: str,
    episode_ids: Collection[str],
    remove: Callable[[Sequence[Path]], int] | None = None,
) -> Pruned:
    """Delete episode files, and with the last ones the trace of the batch; delete archives without other episodes.

    ``remove`` removes files and returns their size in bytes; None: they are deleted for good. Raises ``BatchInUse``, or
    ``StoreError`` if a file cannot be read or deleted.
    """
    with _locked(store, batch_id):
        archives, archived = _deletable_archives(store, batch_id, episode_ids)
        files = {each for each in episode_ids if os.path.lexists(store.path(batch_id, each))}
        deleted = files | archived
        paths = [store.path(batch_id, each) for each in sorted(files)]
        paths += [source.path for source in _token_sources(store, batch_id, files)]
        # Where all episodes are archived, a trace outside was too large for an archive; it goes with the last of them.
        is_last = bool(files) or 0 < len(archives) == len([*store.list_archives(batch_id)])
        trace = [source.path for source in _trace_source(store, batch_id, files)] if is_last else []
        n_bytes = (remove or _unlink)([*paths, *trace, *archives])
        with index.transaction() as connection:
            connection.executemany(_DELETE, [(batch_id, each) for each in deleted])
        with contextlib.suppress(OSError):  # it has other files
            (store.runs / batch_id).rmdir()
        return Pruned(len(deleted), n_bytes)


@contextlib.contextmanager
def _locked(store: EpisodeStore, batch_id: str) -> Iterator[None]:
    with file_lock(store.runs / batch_id, wait=False) as is_locked:
        if not is_locked or any(name.endswith(JOURNAL_SUFFIX) for name in _names(store.runs / batch_id)):
            raise BatchInUse(
                f"batch {batch_id} is being played or was cut off; try again after its end, or start the node"
            )
        yield


def _token_sources(store: EpisodeStore, batch_id: str, episode_ids: Collection[str]) -> list[Source]:
    paths = {each: store.tokens_path(batch_id, each) for each in sorted(episode_ids)}
    return [Source(tokens_member(batch_id, each), path) for each, path in paths.items() if _n_bytes(path)]


def _trace_source(store: EpisodeStore, batch_id: str, episode_ids: Collection[str]) -> list[Source]:
    """Return the trace of a batch if it keeps no other episode file."""
    kept = {name for name in _names(store.runs / batch_id) if name.endswith(".json")}
    trace = store.data_dir / trace_member(batch_id)
    if kept - {f"{episode_id}.json" for episode_id in episode_ids} or not _n_bytes(trace):
        return []
    return [Source(trace_member(batch_id), trace)]


def _archived_before(store: EpisodeStore, batch_id: str, sources: Sequence[Source]) -> dict[str, Path]:
    """Return the archives that already have the same files, by member name: an earlier pruning was interrupted."""
    places: dict[str, Path] = {}
    for archive in store.list_archives(batch_id):
        with contextlib.suppress(StoreError):
            members = read_directory(archive.path)
            for source in sources:
                member = members.get(source.name)
                if member is not None and _checksum(source.path) == (member.size, member.crc):
                    places[source.name] = archive.path
    return places


def _deletable_archives(
    store: EpisodeStore, batch_id: str, episode_ids: Collection[str]
) -> tuple[list[Path], set[str]]:
    """Return the archives that have only these episodes, their tokens and the trace, and the episodes in them."""
    archives: list[Path] = []
    archived: set[str] = set()
    names = {episode_member(batch_id, each): each for each in episode_ids}
    others = {trace_member(batch_id), *(tokens_member(batch_id, each) for each in episode_ids)}
    for archive in store.list_archives(batch_id):
        with contextlib.suppress(StoreError):
            members = read_directory(archive.path).keys() - others
            if members <= names.keys():
                archives.append(archive.path)
                archived |= {names[member] for member in members}
    return archives, archived


def _parts(sources: Sequence[Source]) -> Iterator[list[Source]]:
    part: list[Source] = []
    n_bytes = 0
    for source in sources:
        size = _n_bytes(source.path)
        if part and (len(part) == MAX_MEMBERS // 2 or n_bytes + size > MAX_WRITTEN_BYTES):
            yield part
            part, n_bytes = [], 0
        part.append(source)
        n_bytes += size
    if part:
        yield part


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


def _checksum(path: Path) -> tuple[int, int] | None:
    try:
        return file_checksum(path)
    except OSError:
        return None


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError as exc:
        raise StoreError(f"{folder} cannot be read: {exc.strerror}; check its permissions") from exc
