"""Episode files in chunks, so that clients on other machines can read them over the bus."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from pathlib import Path

import msgspec

from runner.errors import StoreError
from runner.events.control import EpisodeChunk
from runner.store import EpisodeIndex, EpisodeStore
from runner.util.files import read_file

CHUNK_BYTES = 256 * 1024
MAX_CACHED_HASHES = 64
MAX_KEPT_BYTES = 16 << 20
"""Maximum size in bytes of the archived episode that is kept unpacked."""


class _CachedHash(msgspec.Struct, frozen=True):
    """Hash of a file, with the size and modification time that the file had when it was hashed."""

    stamp: tuple[int, int]
    sha256: str


class EpisodeFiles:
    """Reads episode files chunk by chunk; a file is read as a whole only when its hash is not cached."""

    def __init__(self, store: EpisodeStore, index: EpisodeIndex, *, max_cached_hashes: int = MAX_CACHED_HASHES) -> None:
        self._store = store
        self._index = index
        self._max_cached_hashes = max_cached_hashes
        self._hashes: OrderedDict[Path, _CachedHash] = OrderedDict()
        self._archived: tuple[Path | None, bytes] = (None, b"")
        self._lock = threading.Lock()

    def chunk(self, episode_id: str, offset: int) -> EpisodeChunk:
        """Return the file's size, its hash and at most ``CHUNK_BYTES`` bytes from ``offset``; no bytes beyond the end.

        Raises:
            StoreError: if the episode does not exist or its file cannot be read.
        """
        if not (rows := self._batch_of(episode_id)):
            raise StoreError(f"this node has no episode {episode_id!r}; check the id and the node")
        path = self._store.path(rows[0][0], episode_id)
        if not path.exists():
            return self._archived_chunk(path, offset)
        try:
            status = path.stat(follow_symlinks=False)
            stamp = status.st_size, status.st_mtime_ns
            with self._lock:
                cached = self._hashes.get(path)
            if cached is None or cached.stamp != stamp:
                return self._read_whole(path, stamp, offset)
            with path.open("rb") as file:
                file.seek(min(offset, stamp[0]))
                return EpisodeChunk(total=stamp[0], sha256=cached.sha256, data=file.read(CHUNK_BYTES))
        except OSError as exc:
            raise StoreError(
                f"{path} cannot be read: {exc.strerror}; check that it exists and that you may read it"
            ) from exc

    def has(self, episode_id: str) -> bool:
        """Raises a ``StoreError`` if the index cannot be read."""
        return bool(self._batch_of(episode_id))

    def _batch_of(self, episode_id: str) -> list[tuple[str]]:
        return self._index.select("SELECT batch_id FROM episodes WHERE episode_id = ? LIMIT 1", (episode_id,))

    def _archived_chunk(self, path: Path, offset: int) -> EpisodeChunk:
        """Return a chunk of an archived episode, whose content is kept for the next one unless it is large."""
        with self._lock:
            kept_path, data = self._archived
        if kept_path != path:
            data = self._store.read(path)
            with self._lock:
                self._archived = (path, data) if len(data) <= MAX_KEPT_BYTES else (None, b"")
        sha256 = hashlib.sha256(data).hexdigest()
        return EpisodeChunk(total=len(data), sha256=sha256, data=data[offset : offset + CHUNK_BYTES])

    def _read_whole(self, path: Path, stamp: tuple[int, int], offset: int) -> EpisodeChunk:
        data = read_file(path)
        sha256 = hashlib.sha256(data).hexdigest()
        with self._lock:
            self._hashes[path] = _CachedHash(stamp, sha256)
            if len(self._hashes) > self._max_cached_hashes:
                self._hashes.popitem(last=False)
        return EpisodeChunk(total=len(data), sha256=sha256, data=data[offset : offset + CHUNK_BYTES])
