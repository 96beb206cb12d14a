"""Library of the episodes in given files and folders; a cache lists many files again without reading them."""

from __future__ import annotations

import os
import re
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import merge
from itertools import islice, repeat
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agentgym_tui.logs.path_kind import (
    ARCHIVE_SUFFIX,
    JOURNAL_SUFFIX,
    LOG_SUFFIXES,
    MANIFEST,
    foreign_format,
    foreign_names,
    is_folder,
    unknown_reason,
)
from agentgym_tui.sessions.foreign_files import ForeignFiles
from agentgym_tui.sessions.text_search import FileTexts, TextSearch
from agentgym_tui.state.data_model import Episode
from agentgym_tui.state.episode_list import FoundLog, ReadProgress, UnreadableFile

if TYPE_CHECKING:
    from agentgym_tui.sessions.episode_summary import SummaryReader
    from agentgym_tui.sessions.row_cache import FoundFile, RowCache
    from agentgym_tui.sessions.row_table import RowTable
    from runner.formats.format import Format
    from runner.query.fields import Lookup
    from runner.results.summary import ResultSource
    from runner.store.index_schema import EpisodeRow
    from runner.types.notes import Note

MAX_DEPTH: Final = 2
"""Number of folder levels that are searched; 1 is the named folder itself."""
MAX_FILES: Final = 200_000
"""Largest number of episode files read."""

MAX_LOGS: Final = 200
"""Largest number of logs listed of all folders; others can be opened by their paths."""

N_FIRST_ROWS: Final = 200
"""Number of cached rows that are shown before the files are found."""

FIRST_PART_FILES: Final = 50
"""Number of files in the first part; small, so that the first rows appear soon."""
PART_FILES: Final = 400
"""Number of files in each later part."""

_NAME: Final = re.compile("[^/]+")


class FileLibrary:
    """Library of the episodes in given files and folders; see ``Library``.

    ``scan`` finds the episodes; only one thread at a time may run it. A row of ``first_rows`` is known until ``scan``
    reaches its place: there it is replaced by the row of its file, and removed if the file is gone.

    Args:
        paths: files, and folders to search for episode files.
        cache_folder: where the rows of many files are kept for the next time; None: nowhere.

    Attributes:
        unreadable: files found that cannot be read, and the logs (``FoundLog``).
        progress: how many of the files found ``scan`` has read.
    """

    def __init__(self, paths: Sequence[Path], cache_folder: Path | None = None) -> None:
        self._unreadable: list[UnreadableFile] = []
        self._n_logs = 0
        self.unreadable: Sequence[UnreadableFile] = self._unreadable
        self.progress = ReadProgress(0, 0)
        self.texts = TextSearch(FileTexts(self, cache_folder, paths).source)
        self.notes_state: object = None
        self._named_paths, self._cache_folder = paths, cache_folder
        self._foreign, self._foreign_paths = ForeignFiles(self._unreadable), list["tuple[Path, Format]"]()
        self._lock = threading.Lock()
        self._rows: dict[str, EpisodeRow] = {}
        self._folders: dict[str, str] = {}
        self._renamed: dict[str, Path] = {}
        self._unchecked: dict[str, FoundFile] = {}
        self._table: RowTable | None = None
        self._n_parts = 0
        self._is_complete = False
        if (cache := self._open_cache()) is not None:
            cached = list(islice(cache.entries(), N_FIRST_ROWS))
            cache.close(complete=False)
            self._add(cached, None)
            self._unchecked = {row.episode_id: file for file, row in cached}
        self.first_rows: Sequence[EpisodeRow] = self.rows()

    def lookups(self) -> Mapping[str, Lookup]:
        """Return what finds episodes by their texts; files have no notes."""
        return {"text": self.texts.lookup}

    def notes(self, episode_id: str) -> Sequence[Note]:
        """Return nothing: files have no notes."""
        return ()

    def rows(self, *, check_files: bool = True) -> list[EpisodeRow]:
        """Return the known rows, the newest episode first; only ``scan`` reads files."""
        with self._lock:
            return sorted(self._rows.values(), key=attrgetter("episode_id"), reverse=True)

    def result_source(self) -> ResultSource:
        """Return a table of the known rows; it is kept until further rows are known."""
        from agentgym_tui.sessions.row_table import RowTable

        with self._lock:
            if self._table is not None:
                return self._table
            rows, n_parts = list(self._rows.values()), self._n_parts
        table = RowTable(rows)
        with self._lock:
            self._table = table if n_parts == self._n_parts else None
        return table

    def load(self, episode_id: str) -> tuple[Episode, bytes]:
        """Return an episode and the content of its file; raises ``StoreError``."""
        from agentgym_tui.sessions.episode_library import episode_from_bytes, episode_from_record
        from runner.util.safe_values import encode

        if (record := self._foreign.load(episode_id)) is not None:
            return episode_from_record(record), encode(record)
        data = self.read(episode_id)
        return episode_from_bytes(data, self._path(episode_id) or Path(episode_id)), data

    def close(self) -> None:
        """Close the full-text index."""
        self.texts.close()

    def read(self, episode_id: str) -> bytes:
        """Return the content of an episode's file, or of an episode of another tool as such a file.

        Raises:
            StoreError: the file is gone, has changed or cannot be read.
        """
        from agentgym_tui.sessions.episode_lines import read_episode
        from runner.errors import StoreError
        from runner.util.safe_values import encode

        if (record := self._foreign.load(episode_id)) is not None:
            return encode(record)
        if (path := self._path(episode_id)) is None:
            raise StoreError(f"the opened files have no episode {episode_id!r}")
        return read_episode(path)

    @property
    def version(self) -> tuple[int, bool]:
        """A number that grows with the known rows, and whether all files have been read."""
        return self._n_parts, self._is_complete

    def path(self, episode_id: str) -> Path | None:
        """Return the path of the file that has an episode; None if it is not known."""
        from agentgym_tui.sessions.episode_lines import is_line

        if (foreign := self._foreign.path(episode_id)) is not None:
            return foreign
        path = self._path(episode_id)
        return path.parent if path is not None and is_line(path) else path

    def _path(self, episode_id: str) -> Path | None:
        with self._lock:
            if (row := self._rows.get(episode_id)) is None:
                return None
            return self._renamed.get(episode_id) or Path(self._folders[row.batch_id], f"{episode_id}.json")

    def scan(self) -> Iterator[list[EpisodeRow]]:
        """Read the episode files in descending order of their names, then the files of other tools.

        Yields:
            The new list rows of each part.
        """
        from agentgym_tui.sessions.episode_summary import SummaryReader
        from agentgym_tui.sessions.row_cache import MIN_FILES

        n_files, files = self._find_files()
        n_read, reader = 0, SummaryReader()
        cache = self._open_cache() if n_files >= MIN_FILES else None
        try:
            while True:
                part = list(islice(files, PART_FILES if n_read else FIRST_PART_FILES))
                found = [(file, row) for file in part if (row := self._read(file, reader, cache)) is not None]
                n_read += len(part)
                self.progress = ReadProgress(n_read, n_files)
                yield self._add(found, part[-1] if n_read < n_files else None)
                if n_read == n_files:
                    break
        finally:
            if cache is not None:
                cache.close(complete=n_read == n_files)
        for rows in self._foreign.scan(self._foreign_paths):
            with self._lock:
                self._table, self._n_parts = None, self._n_parts + 1
                self._rows.update((row.episode_id, row) for row in rows)
            yield rows
        self._is_complete, self._n_parts = True, self._n_parts + 1

    def _add(self, found: Sequence[tuple[FoundFile, EpisodeRow]], last: FoundFile | None) -> list[EpisodeRow]:
        """Add the rows of the next files, except episodes that an earlier file has; return the added rows.

        Args:
            found: files with their rows.
            last: the last file that was reached; None if no files are left.
        """
        added = []
        with self._lock:
            self._table, self._n_parts = None, self._n_parts + 1
            for reached in [known for known, file in self._unchecked.items() if last is None or file >= last]:
                del self._unchecked[reached], self._rows[reached]
            for file, row in found:
                episode_id = row.episode_id
                if episode_id in self._rows and episode_id not in self._unchecked:
                    continue
                self._unchecked.pop(episode_id, None)
                self._rows[episode_id] = row
                self._renamed.pop(episode_id, None)
                folder = self._folders.setdefault(row.batch_id, file.folder)
                if (file.name, file.folder) != (f"{episode_id}.json", folder):
                    self._renamed[episode_id] = file.path
                added.append(row)
        return added

    def _open_cache(self) -> RowCache | None:
        from agentgym_tui.sessions.row_cache import RowCache

        if self._cache_folder is None or not self._named_paths:
            return None
        return RowCache(self._cache_folder, self._named_paths)

    def _find_files(self) -> tuple[int, Iterator[FoundFile]]:
        """Return the number of the files, and an iterator of the files in descending order.

        The names of a folder are kept in one text: 100,000 objects would take 8 MB more, which were not reused before
        all of them are freed.
        """
        from agentgym_tui.sessions.row_cache import FoundFile

        found: dict[str, set[str]] = {}
        n_left = MAX_FILES
        for folder, names in self._candidates():
            found.setdefault(folder, set()).update(names[:n_left])
            n_left = max(n_left - len(names), 0)
        n_files = sum(map(len, found.values()))
        listed = [(folder, "/".join(sorted(found.pop(folder), reverse=True))) for folder in [*found]]
        iterators = [
            map(FoundFile, (match[0] for match in _NAME.finditer(names)), repeat(folder)) for folder, names in listed
        ]
        return n_files, merge(*iterators, reverse=True)

    def _candidates(self) -> Iterator[tuple[str, Sequence[str]]]:
        for path in self._named_paths:
            real = Path(os.path.realpath(path))
            if self._add_foreign(real):
                continue
            if is_folder(real):
                if is_state := is_folder(real / "runs"):
                    self._add_logs_of(real)
                    self._add_logs_of(real / "logs")
                yield from self._below(str(real / "runs" if is_state else real), MAX_DEPTH)
            elif real.name.endswith(ARCHIVE_SUFFIX):
                yield from self._archived(str(real))
            else:
                yield str(real.parent), [real.name]

    def _below(self, folder: str, depth: int) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield the folders at and below a folder, each with the names of its episode files; do not follow links.

        ``Path`` objects would take five times as long.

        Args:
            folder: the folder.
            depth: number of folder levels to search; 1 for only the folder itself.
        """
        try:
            with os.scandir(folder) as entries:
                is_dir = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
        except OSError as exc:
            self._add_unreadable(Path(folder), exc.strerror or str(exc))
            return
        for name in foreign_names(folder, [name for name in is_dir if not is_dir[name]]):
            if name.endswith(MANIFEST) or self._add_foreign(Path(folder, name)):
                del is_dir[name]
        suffixes = (".json", JOURNAL_SUFFIX)
        yield folder, [name for name in is_dir if name.endswith(suffixes) and not is_dir[name]]
        for name, is_folder_below in is_dir.items():
            if is_folder_below and depth > 1 and self._add_foreign(Path(folder, name)):
                continue
            if is_folder_below and depth > 1:
                yield from self._below(f"{folder}{os.sep}{name}", depth - 1)
            elif name.endswith(ARCHIVE_SUFFIX):
                yield from self._archived(f"{folder}{os.sep}{name}")
            elif name.endswith(LOG_SUFFIXES) and not name.endswith(JOURNAL_SUFFIX):
                yield from self._lines_or_log(Path(folder, name))

    def _add_foreign(self, path: Path) -> bool:
        """Add a file or folder of another tool to those that are read last; return whether it is one."""
        if path.is_symlink() or (form := foreign_format(path)) is None:
            return False
        self._foreign_paths.append((path, form))
        return True

    def _lines_or_log(self, path: Path) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield a file whose lines are episodes, as if it was a folder; list any other file as a log."""
        from agentgym_tui.sessions.episode_lines import holds_episodes, line_names
        from runner.errors import StoreError

        if not holds_episodes(path):
            self._add_log(path)
            return
        try:
            yield str(path), list(islice(line_names(path), MAX_FILES))
        except StoreError as exc:
            self._add_unreadable(path, str(exc))

    def _add_logs_of(self, folder: Path) -> None:
        with suppress(OSError):  # without the folder there are no logs
            for path in sorted(folder.iterdir()):
                if path.name.endswith(LOG_SUFFIXES):
                    self._add_log(path)

    def _add_log(self, path: Path) -> None:
        try:
            status = path.lstat()
        except OSError:
            return
        if not stat.S_ISREG(status.st_mode):
            return
        self._n_logs += 1
        if self._n_logs <= MAX_LOGS:
            self._unreadable.append(FoundLog(path, f"{status.st_size:,} bytes"))
        elif self._n_logs == MAX_LOGS + 1:
            self._add_unreadable(path, f"there are more than {MAX_LOGS} logs; open the others by their paths")

    def _archived(self, archive: str) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield an archive, as if it was a folder, with the names of its episode files."""
        from runner.errors import StoreError
        from runner.store.archive import read_episodes

        try:
            yield archive, [*read_episodes(Path(archive))]
        except StoreError as exc:
            self._add_unreadable(Path(archive), str(exc))

    def _read(self, file: FoundFile, reader: SummaryReader, cache: RowCache | None) -> EpisodeRow | None:
        from runner.errors import StoreError

        try:
            return _read_row(file, reader, cache)
        except StoreError as exc:
            self._add_unreadable(file.path, unknown_reason(file.path) or str(exc))
            return None

    def _add_unreadable(self, path: Path, reason: str) -> None:
        self._unreadable.append(UnreadableFile(path, reason))


def _read_row(file: FoundFile, reader: SummaryReader, cache: RowCache | None) -> EpisodeRow:
    """Return the row of an episode file from the cache, else from the file; raises ``StoreError``."""
    from agentgym_tui.sessions.episode_lines import read_episode

    status = None
    if cache is not None:
        with suppress(OSError):
            status = file.status()  # before reading: the file may be replaced meanwhile
    if cache is None or status is None:
        return reader.row(read_episode(file.path), file.path)
    if (known := cache.get(file, status)) is not None:
        return reader.share_values(known)
    row = reader.row(read_episode(file.path), file.path)
    cache.add(file, status, row)
    return row
