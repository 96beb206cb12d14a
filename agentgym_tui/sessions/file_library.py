"""Library of the episodes in opened files and folders, over an index like that of a state directory.

The index of many files lies in the cache, so that they are listed again without being read; opened folders stay as they
are. It is derived: dropped on any doubt, and made again from the files.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from heapq import nlargest
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec

from agentgym_tui.sessions.episode_files import (
    ARCHIVE_SUFFIX,
    JOURNAL_SUFFIX,
    LOG_SUFFIXES,
    MANIFEST,
    foreign_format,
    foreign_names,
    holds_episodes,
    is_folder,
    is_line,
    line_names,
    read_episode,
    record_from_bytes,
    unknown_reason,
)
from agentgym_tui.sessions.library import Library, TextSearch, TextSource
from agentgym_tui.state.episode_list import FoundLog, ReadProgress, UnreadableFile
from runner.errors import StoreError
from runner.store.archive import read_episodes
from runner.store.episode_store import EpisodeFile, stamp_of
from runner.store.index_schema import COLUMNS, EpisodeRow, episode_row, from_columns, to_columns
from runner.store.index_schema import SCHEMA as INDEX_SCHEMA
from runner.store.token_file import without_tokens
from runner.util.clock import digest_ulid
from runner.util.files import make_folder
from runner.util.safe_values import encode
from runner.util.sqlite import Database, Parameters, SqliteSchema

if TYPE_CHECKING:
    from runner.formats.drafts import Attempts
    from runner.formats.format import Format
    from runner.formats.reading import Place
    from runner.store import EpisodeRecord
    from runner.store.text_index import TextIndex

MAX_DEPTH: Final = 2  # number of folder levels that are searched; 1 is the named folder itself
MAX_FILES: Final = 200_000  # largest number of episode files read, and of episodes of other tools
MAX_LOGS: Final = 200  # largest number of logs listed of all folders; others can be opened by their paths
MAX_PROBLEMS: Final = 200  # malformed items of other tools that are listed; a last line has the number of the others
MIN_FILES: Final = 500  # number of files from which on their index is kept; fewer files are read in a moment
MAX_CACHE_BYTES: Final = 1 << 30  # of what is kept of all opened folders; that opened least recently is deleted first
N_FIRST_ROWS: Final = 200  # number of known rows that are shown before the files are found
KNOWN_PART_ROWS: Final = 2_000
FIRST_PART_FILES, PART_FILES = 50, 400  # the first part is small, so that the first rows appear soon
FIRST_PART_S, PART_S = 0.02, 0.25  # for which rows of other tools are collected: the first ones of a file, others

_INDEX, _TEXTS = "index.sqlite", "text.sqlite"
_COLUMNS: Final = f"{COLUMNS}, size, mtime_ns, settled, stamp, name, folder"
# Name and folder are bytes, as a file name need not be text; both are empty for episodes of other tools.
_SCHEMA: Final = SqliteSchema(
    version=INDEX_SCHEMA.version,
    tables=f"""
    BEGIN IMMEDIATE;
    CREATE TABLE episodes ({_COLUMNS}, PRIMARY KEY (episode_id)) WITHOUT ROWID;
    CREATE INDEX files ON episodes (name, folder);
    PRAGMA user_version = {INDEX_SCHEMA.version};
    COMMIT;
""",
    probes=(f"SELECT {_COLUMNS} FROM episodes LIMIT 0",),
    is_checked=False,
)
_INSERT: Final = f"INSERT OR IGNORE INTO episodes VALUES ({', '.join('?' * len(_COLUMNS.split(',')))})"
_FOUND: Final = """
    CREATE TEMP TABLE found (name, folder, size, mtime_ns, stamp, PRIMARY KEY (name, folder)) WITHOUT ROWID
"""
_GONE: Final = """
    FROM episodes WHERE NOT EXISTS (
        SELECT 1 FROM found WHERE found.name = episodes.name AND found.folder = episodes.folder
        AND found.stamp = episodes.stamp
    )
"""
_KNOWN: Final = (
    "DELETE FROM found WHERE EXISTS (SELECT 1 FROM episodes WHERE name = found.name AND folder = found.folder)"
)
_NEXT: Final = "SELECT * FROM found ORDER BY name DESC, folder DESC LIMIT ?"
_NEWEST: Final = f"""
    SELECT {COLUMNS} FROM episodes WHERE episode_id < ? AND name <> x'' ORDER BY episode_id DESC LIMIT ?
"""
_AFTER_ALL: Final = "~"  # greater than each episode id

# Name and folder; files are read in descending order of their names, which begin with the time of the start.
_File: TypeAlias = tuple[bytes, bytes]
# Name, folder, size, time and stamp of a file; without a stamp if it cannot be looked at.
_Found: TypeAlias = tuple[bytes, bytes, int, int, str | None]


def _opened_table(path: Path | None) -> Database:
    return Database(path, _SCHEMA, advice="delete the file, which is made again from the opened files")


def row_table(rows: Iterable[EpisodeRow]) -> Database:
    table = _opened_table(None)
    with table.transaction() as connection:
        connection.executemany(_INSERT, map(_columns_of, rows))
    return table


def _columns_of(row: EpisodeRow, found: _Found = (b"", b"", 0, 0, None)) -> list[object]:
    name, folder, size, mtime_ns, stamp = found
    file = EpisodeFile(row.batch_id, row.episode_id, size, mtime_ns)
    return [*to_columns(row, file, settled=True), stamp, name, folder]


class FileLibrary(Library):
    """The episodes in given files and folders.

    ``scan`` finds the episodes; only one thread at a time may run it. The rows of the last time are known until then,
    if there are many files and a ``cache_folder``. ``unreadable`` has the logs (``FoundLog``), too.
    """

    def __init__(self, paths: Sequence[Path], cache_folder: Path | None = None) -> None:
        self.progress = ReadProgress(0, 0)
        self.texts = TextSearch(TextSource(self._open_texts, self.select, lambda: self._version, self.read))
        self._paths = paths
        identity = repr([os.path.realpath(path) for path in paths]).encode("utf-8", "surrogatepass")
        self._cache = cache_folder and cache_folder / f"opened-{hashlib.sha256(identity).hexdigest()[:32]}"
        self._unreadable: list[UnreadableFile] = []
        self._foreign = ForeignFiles(self._unreadable)
        self._lock, self._rescan_lock = threading.Lock(), threading.Lock()
        self._rows: dict[str, EpisodeRow] = {}
        self._version = (0, False)
        self._generation = 0
        is_kept = self._cache is not None and os.path.lexists(self._cache / _INDEX)
        self._table = _opened_table(self._cache_path(_INDEX) if is_kept else None)
        try:
            self._add(self._known(_AFTER_ALL, N_FIRST_ROWS))
        except StoreError:
            self._forget()
        self.first_rows = self.rows()

    def rows(self, *, check_files: bool = True) -> list[EpisodeRow]:
        with self._lock:
            return sorted(self._rows.values(), key=attrgetter("episode_id"), reverse=True)

    def result_source(self) -> FileLibrary:
        return self

    def select(self, query: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        found = self._table.select(query, parameters)
        with self._rescan_lock:
            if not self._version[1] or self._table.generation == self._generation:
                return found
            for _ in self.scan():  # another process has deleted or replaced the index
                pass
        return self._table.select(query, parameters)

    def unusable(self, exc: Exception) -> StoreError:
        return self._table.unusable(exc)

    def read(self, episode_id: str) -> bytes:
        if (record := self._foreign.load(episode_id)) is not None:
            return encode(record)
        if (path := self._file(episode_id)) is None:
            raise StoreError(f"the opened files have no episode {episode_id!r}")
        return read_episode(path)

    def path(self, episode_id: str) -> Path | None:
        path = self._foreign.path(episode_id) or self._file(episode_id)
        return path.parent if path is not None and is_line(path) else path

    def _file(self, episode_id: str) -> Path | None:
        query = "SELECT folder, name FROM episodes WHERE episode_id = ? AND name <> x''"
        with suppress(UnicodeEncodeError):
            for folder, name in self._table.select(query, (episode_id,)):
                return Path(os.fsdecode(folder), os.fsdecode(name))
        return None

    def close(self) -> None:
        self.texts.close()
        self._table.close()

    def scan(self) -> Iterator[list[EpisodeRow]]:
        """Find the files, and read the new and changed ones, the newest first; yield the rows of each part."""
        try:
            yield from self._scan()
        except StoreError:
            if self._table.path is None:
                raise
            self._forget()
            self._cache = None  # it may be full
            yield from self._scan()

    def _scan(self) -> Iterator[list[EpisodeRow]]:
        finder = FileFinder()
        self.unreadable = self._unreadable = finder.unreadable
        self._version = (self._version[0], False)
        listed = finder.find(self._paths)
        n_files = sum(len(names) for _, names in listed)
        if n_files >= MIN_FILES and self._table.path is None:
            self._table = _opened_table(self._cache_path(_INDEX))
        first = [] if self._rows else nlargest(FIRST_PART_FILES, _files(listed))  # before all others are looked at
        rows = self._read_files(map(_stamped, first))
        self.progress = ReadProgress(len(first), n_files)
        shown = {row.episode_id for row in rows}
        yield self._add(rows)
        n_left = self._compare(_files(listed), first)
        listed.clear()
        after = _AFTER_ALL
        while rows := self._known(after, KNOWN_PART_ROWS):
            after = rows[-1].episode_id
            if added := [row for row in rows if row.episode_id not in shown]:
                yield self._add(added)
        while n_left:
            with self._table.session() as connection:
                part: list[_Found] = connection.execute(_NEXT, (PART_FILES,)).fetchall()
                connection.execute("DELETE FROM found WHERE (name, folder) >= (?, ?)", part[-1][:2])
            rows = self._read_files(part)
            n_left -= len(part)
            self.progress = ReadProgress(n_files - n_left, n_files)
            yield self._add(rows)
        self._foreign = ForeignFiles(finder.unreadable)
        for rows in self._foreign.scan(finder.foreign):
            with self._table.transaction() as connection:
                connection.executemany(_INSERT, map(_columns_of, rows))
            yield self._add(rows)
        self._version = (self._version[0] + 1, True)

    def _compare(self, files: Iterable[_File], first: Iterable[_File]) -> int:
        """Remove the rows of changed and deleted files; put what is still to read into ``found``; return its number."""
        with self._table.transaction() as connection:
            self._generation = self._table.generation
            connection.execute("DROP TABLE IF EXISTS temp.found")
            connection.execute(_FOUND)
            connection.executemany("INSERT OR IGNORE INTO found VALUES (?, ?, ?, ?, ?)", map(_stamped, files))
            gone = connection.execute(f"SELECT episode_id {_GONE}").fetchall()
            connection.execute(f"DELETE {_GONE}")
            connection.execute(_KNOWN)
            connection.executemany("DELETE FROM found WHERE (name, folder) = (?, ?)", first)
            n_left = int(connection.execute("SELECT count(*) FROM found").fetchone()[0])
        with self._lock:
            for (episode_id,) in gone:
                self._rows.pop(episode_id, None)
        return n_left

    def _known(self, before: str, limit: int) -> list[EpisodeRow]:
        found = self._table.select(_NEWEST, (before, limit))
        try:
            return list(map(from_columns, found))
        except msgspec.ValidationError as exc:
            raise self._table.unusable(exc) from exc

    def _read_files(self, files: Iterable[_Found]) -> list[EpisodeRow]:
        read = [columns for found in files if (columns := self._read_columns(found)) is not None]
        with self._table.transaction() as connection:
            added = [columns for columns in read if connection.execute(_INSERT, columns).rowcount]
        n_columns = len(EpisodeRow.__struct_fields__)
        return [from_columns(tuple(columns[:n_columns])) for columns in added]  # with shared texts

    def _read_columns(self, found: _Found) -> list[object] | None:
        path = Path(os.fsdecode(found[1]), os.fsdecode(found[0]))
        try:
            return _columns_of(episode_row(record_from_bytes(read_episode(path), path)), found)
        except StoreError as exc:
            self._unreadable.append(UnreadableFile(path, unknown_reason(path) or str(exc)))
            return None

    def _add(self, rows: list[EpisodeRow]) -> list[EpisodeRow]:
        with self._lock:
            self._version = (self._version[0] + 1, self._version[1])
            self._rows.update((row.episode_id, row) for row in rows)
        return rows

    def _forget(self) -> None:
        """Delete an index that cannot be used, and go on in memory."""
        path = self._table.path
        self._table.close()
        self._table, self._rows = _opened_table(None), {}
        with suppress(OSError):
            if path is not None:
                path.unlink()

    def _open_texts(self) -> TextIndex:
        from runner.store.text_index import TextIndex

        if (path := self._cache_path(_TEXTS)) is None:
            temporary = tempfile.TemporaryDirectory(prefix="agentgym-text-")
            atexit.register(temporary.cleanup)
            path = Path(temporary.name, _TEXTS)
        return TextIndex(path, lambda batch_id, episode_id: self.read(episode_id))

    def _cache_path(self, name: str) -> Path | None:
        """Create the folder for what is kept, and delete those used least recently; None if there can be none."""
        with suppress(OSError):
            if self._cache is not None:
                make_folder(self._cache)
                if all(each.stat().st_uid == os.geteuid() for each in (self._cache, self._cache.parent)):
                    os.utime(self._cache)
                    _delete_oldest(self._cache.parent)
                    return self._cache / name
        return None


def _delete_oldest(root: Path) -> None:
    n_bytes = 0
    for folder in sorted(root.glob("opened-*"), key=lambda each: -each.stat().st_mtime_ns):
        n_bytes += sum(each.stat().st_size for each in folder.iterdir())
        if n_bytes > MAX_CACHE_BYTES:
            shutil.rmtree(folder, ignore_errors=True)


def _files(listed: Iterable[tuple[str, Sequence[str]]]) -> Iterator[_File]:
    return ((os.fsencode(name), os.fsencode(folder)) for folder, names in listed for name in names)


def _stamped(file: _File) -> _Found:
    """Return a file with its stamp: that of the archive or of the file with the line if it is no file of its own."""
    name, folder = file
    try:
        try:
            status = os.lstat(folder + b"/" + name)
        except NotADirectoryError:
            status = os.lstat(folder)
    except OSError:
        return name, folder, 0, 0, None
    size, mtime_ns = stamp_of(status)
    return name, folder, size, mtime_ns, f"{size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"


class FileFinder:
    def __init__(self) -> None:
        self.unreadable: list[UnreadableFile] = []  # and the logs
        self.foreign: list[tuple[Path, Format]] = []
        self._n_logs = 0

    def find(self, paths: Sequence[Path]) -> list[tuple[str, Sequence[str]]]:
        """Return folders with the names of their episode files; an archive or a file of lines is as a folder."""
        listed, n_left = [], MAX_FILES
        for folder, names in self._candidates(paths):
            listed.append((folder, names[:n_left]))
            n_left = max(n_left - len(names), 0)
        return listed

    def _candidates(self, paths: Sequence[Path]) -> Iterator[tuple[str, Sequence[str]]]:
        for path in paths:
            real = Path(os.path.realpath(path))
            if self._add_foreign(real):
                continue
            if is_folder(real):
                if is_state := is_folder(real / "runs"):
                    for folder in (real, real / "logs"):
                        with suppress(OSError):  # without the folder there are no logs
                            for log in sorted(folder.iterdir()):
                                self._add_log(log)
                yield from self._below(str(real / "runs" if is_state else real), MAX_DEPTH)
            elif real.name.endswith(ARCHIVE_SUFFIX):
                yield from self._archived(str(real))
            else:
                yield str(real.parent), [real.name]

    def _below(self, folder: str, depth: int) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield what is at and below a folder; do not follow links. ``Path`` objects would take five times as long."""
        try:
            with os.scandir(folder) as entries:
                is_dir = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
        except OSError as exc:
            self.unreadable.append(UnreadableFile(Path(folder), exc.strerror or str(exc)))
            return
        for name in foreign_names(folder, [name for name in is_dir if not is_dir[name]]):
            if name.endswith(MANIFEST) or self._add_foreign(Path(folder, name)):
                del is_dir[name]
        suffixes = (".json", JOURNAL_SUFFIX)
        yield folder, [name for name in is_dir if name.endswith(suffixes) and not is_dir[name]]
        for name, is_folder_below in is_dir.items():
            if is_folder_below and depth > 1:
                if not self._add_foreign(Path(folder, name)):
                    yield from self._below(f"{folder}{os.sep}{name}", depth - 1)
            elif name.endswith(ARCHIVE_SUFFIX):
                yield from self._archived(f"{folder}{os.sep}{name}")
            elif name.endswith(LOG_SUFFIXES) and not name.endswith(JOURNAL_SUFFIX):
                yield from self._lines_or_log(Path(folder, name))

    def _add_foreign(self, path: Path) -> bool:
        is_link = os.path.islink(path)  # noqa: PTH114 - Path.is_symlink raises for a long name, or where it may not search
        if is_link or (form := foreign_format(path)) is None:
            return False
        self.foreign.append((path, form))
        return True

    def _lines_or_log(self, path: Path) -> Iterator[tuple[str, Sequence[str]]]:
        if not holds_episodes(path):
            self._add_log(path)
            return
        try:
            yield str(path), list(islice(line_names(path), MAX_FILES))
        except StoreError as exc:
            self.unreadable.append(UnreadableFile(path, str(exc)))

    def _archived(self, archive: str) -> Iterator[tuple[str, Sequence[str]]]:
        try:
            yield archive, [*read_episodes(Path(archive))]
        except StoreError as exc:
            self.unreadable.append(UnreadableFile(Path(archive), str(exc)))

    def _add_log(self, path: Path) -> None:
        with suppress(OSError):
            status = path.lstat()
            if not path.name.endswith(LOG_SUFFIXES) or not stat.S_ISREG(status.st_mode):
                return
            self._n_logs += 1
            if self._n_logs <= MAX_LOGS:
                self.unreadable.append(FoundLog(path, f"{status.st_size:,} bytes"))
            elif self._n_logs == MAX_LOGS + 1:
                reason = f"there are more than {MAX_LOGS} logs; open the others by their paths"
                self.unreadable.append(UnreadableFile(path, reason))


class _Source(NamedTuple):
    form: Format
    place: Place
    batch_id: str
    attempt: int


class ForeignFiles:
    """Reads files of other tools, and each episode again by its place; ``unreadable`` receives the malformed items."""

    def __init__(self, unreadable: list[UnreadableFile]) -> None:
        self._found: dict[str, _Source] = {}
        self._unreadable = unreadable
        self._n_problems = 0

    def scan(self, paths: Sequence[tuple[Path, Format]]) -> Iterator[list[EpisodeRow]]:
        from runner.formats.drafts import Attempts

        attempts = Attempts()
        for path, form in paths:
            rows: list[EpisodeRow] = []
            shown_at, part_s = time.monotonic(), FIRST_PART_S
            for row in self._read(path, form, attempts):
                rows.append(row)
                if time.monotonic() - shown_at > part_s:
                    yield rows
                    rows, shown_at, part_s = [], time.monotonic(), PART_S
            yield rows
        if self._n_problems > MAX_PROBLEMS:
            text = f"{self._n_problems - MAX_PROBLEMS:,} further items cannot be read"
            self._unreadable.append(UnreadableFile(paths[-1][0], text))

    def load(self, episode_id: str) -> EpisodeRecord | None:
        """Return an episode without token ids, read again; None if none has this id; raises ``StoreError``."""
        from runner.formats.importing import ReadEpisode, episodes_of, modified_time
        from runner.formats.reading import LIMITS, Item

        if (known := self._found.get(episode_id)) is None:
            return None
        item = Item(known.place, known.form.read(known.place, LIMITS))
        for each in episodes_of(item, known.form, LIMITS, modified_time(known.place.path)):
            if isinstance(each, ReadEpisode) and each.record.episode_id == episode_id:
                each.record.attempt, each.record.batch_id = known.attempt, known.batch_id
                return without_tokens(each.record)
        raise StoreError(f"{known.place.path} has changed; reload it")

    def path(self, episode_id: str) -> Path | None:
        return self._found[episode_id].place.path if episode_id in self._found else None

    def _read(self, path: Path, form: Format, attempts: Attempts) -> Iterator[EpisodeRow]:
        from runner.formats import importing
        from runner.formats.format import Source
        from runner.formats.reading import Malformed

        try:
            milliseconds = max(0, round(importing.modified_time(path).timestamp() * 1000))
            batch_id = digest_ulid(milliseconds, hashlib.sha256(os.fsencode(path)).digest()[:10])
            for found in importing.read_episodes(Source(path, form)):
                if isinstance(found, Malformed):
                    self._add_problem(found.place.path, f"{found.place.unit} {found.place.number}: {found.reason}")
                elif len(self._found) < MAX_FILES and found.record.episode_id not in self._found:
                    record = found.record
                    attempts.number(record, found.draft)
                    record.batch_id = batch_id
                    self._found[record.episode_id] = _Source(form, found.place, batch_id, record.attempt)
                    yield episode_row(record)
        except StoreError as exc:
            self._add_problem(path, str(exc))

    def _add_problem(self, path: Path, reason: str) -> None:
        self._n_problems += 1
        if self._n_problems <= MAX_PROBLEMS:
            self._unreadable.append(UnreadableFile(path, reason))
