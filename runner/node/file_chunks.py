"""Episode files in chunks, so that clients on other machines can read them over the bus."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from runner.errors import StoreError
from runner.events.control import EpisodeChunk
from runner.store import EpisodeIndex, EpisodeStore
from runner.util.files import read_file

CHUNK_BYTES = 256 * 1024


class EpisodeFiles:
    """Reads episode files chunk by chunk; for its hash, a file is read as a whole once."""

    def __init__(self, store: EpisodeStore, index: EpisodeIndex) -> None:
        self._store = store
        self._index = index

    def chunk(self, episode_id: str, offset: int) -> EpisodeChunk:
        """Return the file's size, its hash and at most ``CHUNK_BYTES`` bytes from ``offset``; no bytes beyond the end.

        Raises:
            StoreError: if the episode does not exist, is archived, or its file cannot be read.
        """
        if not (rows := self._batch_of(episode_id)):
            raise StoreError(f"this node has no episode {episode_id!r}; check the id and the node")
        path = self._store.path(rows[0][0], episode_id)
        try:
            status = path.stat(follow_symlinks=False)
            sha256 = _sha256(path, status.st_size, status.st_mtime_ns)
            with path.open("rb") as file:
                file.seek(min(offset, status.st_size))
                return EpisodeChunk(total=status.st_size, sha256=sha256, data=file.read(CHUNK_BYTES))
        except OSError as exc:
            if self._store.is_archived(path):  # in few words: the reply has only the beginning
                archive = self._store.archive_path(rows[0][0])
                raise StoreError(f"archived; on the node's machine, run: agentgym-tui open {archive}") from exc
            raise StoreError(
                f"{path} cannot be read: {exc.strerror}; check that it exists and that you may read it"
            ) from exc

    def has(self, episode_id: str) -> bool:
        """Raises a ``StoreError`` if the index cannot be read."""
        return bool(self._batch_of(episode_id))

    def _batch_of(self, episode_id: str) -> list[tuple[str]]:
        return self._index.select("SELECT batch_id FROM episodes WHERE episode_id = ? LIMIT 1", (episode_id,))


@lru_cache(maxsize=64)
def _sha256(path: Path, _size: int, _mtime_ns: int) -> str:
    return hashlib.sha256(read_file(path)).hexdigest()
