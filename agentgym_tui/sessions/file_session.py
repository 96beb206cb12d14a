"""Session that reads the episode files and log files named on the command line; it writes only a cache of rows."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agentgym_tui.logs.log_file import LogFile
from agentgym_tui.logs.path_kind import is_folder, is_log
from agentgym_tui.sessions.episode_library import episode_from_record, record_from_bytes
from agentgym_tui.sessions.input_priority import InputPriority
from agentgym_tui.sessions.protocols import Control, ControlRequestError, Library
from agentgym_tui.state.data_model import BusLink, Episode, ReadProgress
from agentgym_tui.state.episode_list import UnreadableFile
from agentgym_tui.state.run_store import RunStore

if TYPE_CHECKING:
    from agentgym_tui.sessions.episode_summary import SummaryReader
    from agentgym_tui.sessions.event_source import EventSource
    from agentgym_tui.sessions.row_cache import FoundFile, RowCache
    from runner.store import EpisodeRow


MAX_DEPTH: Final = 2
"""Number of folder levels that are searched; 1 is the named folder itself."""

MAX_FILES: Final = 200_000
"""Largest number of episode files read."""

FIRST_PART_FILES: Final = 50
"""Number of files in the first part; small, so that the first rows appear soon."""

PART_FILES: Final = 400
"""Number of files in each later part."""


class FileLibrary:
    """Library of the episodes in given files and folders; see ``Library``.

    ``scan`` finds the episodes; only one thread at a time may run it.

    Args:
        paths: files, and folders to search for episode files.
        cache_folder: where the rows of many files are kept for the next time; None: nowhere.

    Attributes:
        progress: how many of the files found ``scan`` has read.
    """

    def __init__(self, paths: Sequence[Path], cache_folder: Path | None = None) -> None:
        self._unreadable: list[UnreadableFile] = []
        self.unreadable: Sequence[UnreadableFile] = self._unreadable
        self.progress = ReadProgress(0, 0)
        self._named_paths, self._cache_folder = paths, cache_folder
        self._lock = threading.Lock()
        self._rows: dict[str, EpisodeRow] = {}
        self._folders: dict[str, str] = {}
        self._renamed: dict[str, Path] = {}

    def rows(self) -> list[EpisodeRow]:
        """Return the rows that ``scan`` has read, the newest episode first."""
        with self._lock:
            return [self._rows[episode_id] for episode_id in sorted(self._rows, reverse=True)]

    def load(self, episode_id: str) -> tuple[Episode, bytes]:
        """Return an episode and the content of its file; raises ``StoreError``."""
        from runner.errors import StoreError
        from runner.util.files import read_file

        with self._lock:
            folder = self._folders.get(episode_id)
        if folder is None:
            raise StoreError(f"the opened files have no episode {episode_id!r}")
        path = self._renamed.get(episode_id) or Path(folder, f"{episode_id}.json")
        data = read_file(path)
        return episode_from_record(record_from_bytes(data, path)), data

    def scan(self) -> Iterator[list[EpisodeRow]]:
        """Read the episode files in descending order of their names, and yield the list rows of each part."""
        from agentgym_tui.sessions.episode_summary import SummaryReader

        files = sorted(set(islice(self._candidates(), MAX_FILES)))
        reader, n_files, n = SummaryReader(), len(files), FIRST_PART_FILES
        cache = self._open_cache(n_files)
        try:
            while files:
                part = files[: -n - 1 : -1]
                del files[-n:]
                n = PART_FILES
                rows = [row for file in part if (row := self._read(file, reader, cache)) is not None]
                self.progress = ReadProgress(n_files - len(files), n_files)
                yield rows
        finally:
            if cache is not None:
                cache.close(complete=not files)

    def _open_cache(self, n_files: int) -> RowCache | None:
        from agentgym_tui.sessions.row_cache import MIN_FILES, RowCache

        if self._cache_folder is None or n_files < MIN_FILES:
            return None
        return RowCache(self._cache_folder, self._named_paths)

    def _candidates(self) -> Iterator[FoundFile]:
        from agentgym_tui.sessions.row_cache import FoundFile

        for path in self._named_paths:
            real = Path(os.path.realpath(path))
            if is_folder(real):
                yield from self._below(str(real / "runs" if is_folder(real / "runs") else real), MAX_DEPTH)
            else:
                yield FoundFile(real.name, str(real.parent))

    def _below(self, folder: str, depth: int) -> Iterator[FoundFile]:
        """Yield the episode files below a folder, without following links.

        ``Path`` objects would take five times as long.

        Args:
            folder: the folder.
            depth: number of folder levels to search; 1 for only the folder itself.
        """
        from agentgym_tui.sessions.row_cache import FoundFile

        try:
            with os.scandir(folder) as entries:
                listed = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        except OSError as exc:
            self._add_unreadable(Path(folder), exc.strerror or str(exc))
            return
        for name, is_folder_below in listed:
            if is_folder_below and depth > 1:
                yield from self._below(f"{folder}{os.sep}{name}", depth - 1)
            elif not is_folder_below and name.endswith(".json"):
                yield FoundFile(name, folder)
            elif name.endswith(".journal.jsonl"):
                self._add_unreadable(
                    Path(folder, name),
                    "still running, or its node died; the node completes the episode when it starts again",
                )

    def _read(self, file: FoundFile, reader: SummaryReader, cache: RowCache | None) -> EpisodeRow | None:
        from runner.errors import StoreError

        try:
            row = _read_row(file, reader, cache)
        except StoreError as exc:
            self._add_unreadable(file.path, str(exc))
            return None
        with self._lock:
            if row.episode_id in self._rows:
                return None
            self._rows[row.episode_id], self._folders[row.episode_id] = row, file.folder
            if file.name != f"{row.episode_id}.json":
                self._renamed[row.episode_id] = file.path
        return row

    def _add_unreadable(self, path: Path, reason: str) -> None:
        self._unreadable.append(UnreadableFile(path, reason))


def _read_row(file: FoundFile, reader: SummaryReader, cache: RowCache | None) -> EpisodeRow:
    """Return the row of an episode file from the cache, else from the file; raises ``StoreError``."""
    from runner.util.files import read_file

    status = None
    if cache is not None:
        with suppress(OSError):
            status = file.status()  # before reading: the file may be replaced meanwhile
    if cache is None or status is None:
        return reader.row(read_file(file.path), file.path)
    if (known := cache.get(file, status)) is not None:
        return reader.share_texts(known)
    row = reader.row(read_file(file.path), file.path)
    cache.add(file, status, row)
    return row


FILES_ONLY: Final = "files only: nothing can be started here; use `agentgym-tui launch`"


class FileSession:
    """Session that shows episode files and log files without a bus; see ``Session``.

    Args:
        paths: log files, episode files, and folders to search for episode files.
        cache_folder: see ``FileLibrary``.
    """

    def __init__(self, paths: Sequence[Path], cache_folder: Path | None = None) -> None:
        self.title = ", ".join(map(str, paths))
        self.read_only = FILES_ONLY
        self.store, self.input_priority = RunStore(), InputPriority()
        logs = dict.fromkeys(path for path in paths if is_log(path))
        self.logs: Sequence[LogFile] = [LogFile(path) for path in logs]
        self._files = FileLibrary([path for path in paths if path not in logs], cache_folder)
        self.library: Library | None = self._files
        self.control: Control | None = None
        self.events: EventSource | None = None
        self.data_dir: Path | None = None

    async def start_node(self) -> None:
        """Raise ``ControlRequestError``: files have no node."""
        raise ControlRequestError(FILES_ONLY)

    async def run(self) -> None:
        """Read the episode files; add the rows of each part to the store as soon as the part is read."""
        parts = self._files.scan()
        self.store.set_link(BusLink("none", "reading files"))
        while (rows := await asyncio.to_thread(next, parts, None)) is not None:
            self.store.read_progress = self._files.progress
            self.store.apply_stored(rows)
        self.store.read_progress = None
        self.store.set_link(BusLink("none", "files"))

    async def close(self) -> None:
        """Close the log files."""
        for log in self.logs:
            log.close()
