"""Cache of the list rows of opened episode files, so that a folder opened again is listed without reading its files."""

from __future__ import annotations

import atexit
import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, NamedTuple

import msgspec

from runner.store.episode_file import SCHEMA
from runner.store.index_schema import EpisodeRow

MIN_FILES: Final = 500
"""Number of files from which on rows are cached; fewer files are read in a moment."""

MAX_CACHES: Final = 20
"""Largest number of cache files; the oldest ones are deleted."""

MAX_BYTES: Final = 500_000_000
"""Largest size of all cache files together; the oldest ones are deleted."""

MAX_TEMPORARY_AGE_S: Final = 86_400
"""Age from which on the temporary file of a console that was killed is deleted."""

MAX_LINE_BYTES: Final = 64 << 10
_PART_BYTES: Final = 1 << 20
_VERSION: Final = 1
"""Increased when a row has other values for the same file."""


class FoundFile(NamedTuple):
    """An episode file; files are read in descending order of their names, which begin with the time of the start."""

    name: str
    folder: str

    @property
    def path(self) -> Path:
        """Path of the file."""
        return Path(self.folder, self.name)

    def status(self) -> os.stat_result:
        """Return the status of the file, or of its archive, without a slow ``Path``; raises ``OSError``."""
        try:
            return os.lstat(f"{self.folder}{os.sep}{self.name}")
        except NotADirectoryError:
            return os.lstat(self.folder)


class _Entry(NamedTuple):
    file: FoundFile
    stamp: tuple[int, int, int]
    row: EpisodeRow


class RowCache:
    """Rows of the episode files below some paths, in descending order of the files.

    A file is recognized by its path, its size and the times of its last changes. The cache is optional: where it cannot
    be read or written, files are read instead. It is streamed, because the rows of 100,000 files take 70 MB, and
    rewritten only from the first change on.

    Args:
        folder: the folder of all caches; created if necessary, and not used if it belongs to another user.
        paths: the opened files and folders.
    """

    def __init__(self, folder: Path, paths: Sequence[Path]) -> None:
        real_paths = [os.path.realpath(path) for path in paths]
        identity = repr((_VERSION, SCHEMA, EpisodeRow.__struct_fields__, real_paths))
        self._folder, self._path = folder, folder / f"rows-{_digest(identity)}.jsonl"
        self._old = self._open_old()
        self._new: IO[bytes] | None = None
        self._has_changed = False
        self._n_kept_bytes = 0
        self._line = b""
        self._entry = self._read_entry()

    def entries(self) -> Iterator[tuple[FoundFile, EpisodeRow]]:
        """Yield the cached rows without a check of their files; afterwards, only ``close`` may be called."""
        while (entry := self._entry) is not None:
            yield entry.file, entry.row
            self._entry = self._read_entry()

    def get(self, file: FoundFile, status: os.stat_result) -> EpisodeRow | None:
        """Return the row of a file and keep it in the cache; None if the file is new or has changed.

        Args:
            file: the file, greater than that of the next call.
            status: size and times of the file.
        """
        while (entry := self._entry) is not None and entry.file > file:
            self._begin_change()  # a file is missing
            self._entry = self._read_entry()
        if entry is None or (entry.file, entry.stamp) != (file, _stamp(status)):
            return None
        if self._has_changed:
            self._write(self._line)
        else:
            self._n_kept_bytes += len(self._line)
        self._entry = self._read_entry()
        return entry.row

    def add(self, file: FoundFile, status: os.stat_result, row: EpisodeRow) -> None:
        """Add the row of a file for which ``get`` returned None, unless the row is too long."""
        with suppress(UnicodeEncodeError):
            line = _ENCODER.encode(_Entry(file, _stamp(status), row)) + b"\n"
            if len(line) <= MAX_LINE_BYTES:
                self._begin_change()
                self._write(line)

    def close(self, *, complete: bool) -> None:
        """Close the cache; replace it if ``complete`` is set and a file was new, changed or missing."""
        if complete and self._entry is not None:
            self._begin_change()
        if self._old is not None:
            self._old.close()
        if self._new is None:
            return
        with suppress(OSError):
            self._new.close()
            if complete:
                Path(self._new.name).replace(self._path)
                self._delete_oldest()
        with suppress(OSError):
            Path(self._new.name).unlink(missing_ok=True)

    def _read_entry(self) -> _Entry | None:
        while self._old is not None:
            try:
                self._line = self._old.readline(MAX_LINE_BYTES)
                return _DECODER.decode(self._line) if self._line else None
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self._begin_change()  # without the damaged line
            except OSError:
                self._begin_change()
                break
        return None

    def _begin_change(self) -> None:
        if not self._has_changed:
            self._has_changed = True
            self._new = self._open_new()
            self._copy_kept()

    def _copy_kept(self) -> None:
        if self._old is None:
            return
        try:
            position = self._old.tell()
            self._old.seek(0)
            while self._n_kept_bytes and (part := self._old.read(min(self._n_kept_bytes, _PART_BYTES))):
                self._n_kept_bytes -= len(part)
                self._write(part)
            self._old.seek(position)
        except OSError:
            self._give_up()

    def _write(self, line: bytes) -> None:
        if self._new is not None:
            try:
                self._new.write(line)
            except OSError:  # e.g. the disk is full
                self._give_up()

    def _give_up(self) -> None:
        self.close(complete=False)
        self._old = self._new = self._entry = None

    def _open_old(self) -> IO[bytes] | None:
        with suppress(OSError):
            if _is_own(self._folder.stat()):
                descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                status = os.fstat(descriptor)
                if stat.S_ISREG(status.st_mode) and _is_own(status):
                    return os.fdopen(descriptor, "rb")
                os.close(descriptor)
        return None

    def _open_new(self) -> IO[bytes] | None:
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _is_own(self._folder.stat()):
                return tempfile.NamedTemporaryFile("wb", dir=self._folder, prefix="new-", delete=False)
        return None

    def _delete_oldest(self) -> None:
        n_bytes = 0
        caches = [(path, path.lstat()) for path in self._folder.glob("rows-*")]
        for n_newer, (path, status) in enumerate(sorted(caches, key=lambda cache: -cache[1].st_mtime_ns)):
            n_bytes += status.st_size
            if n_newer >= MAX_CACHES or n_bytes > MAX_BYTES:
                path.unlink(missing_ok=True)
        for path in self._folder.glob("new-*"):
            if time.time() - path.lstat().st_mtime > MAX_TEMPORARY_AGE_S:
                path.unlink(missing_ok=True)


def text_cache(folder: Path | None, paths: Sequence[Path]) -> Path:
    """Return the place for the full-text index of some files and folders; indexes not used for long are deleted.

    Args:
        folder: the folder of all caches; created if necessary. If it is None or cannot be used, the place is a new
            folder, which is deleted when the process ends.
        paths: the opened files and folders.
    """
    with suppress(OSError):
        if folder is not None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = folder / f"text-{_digest(repr([os.path.realpath(path) for path in paths]))}.sqlite"
            if _is_own(folder.stat()):
                path.touch(mode=0o600)
                caches = sorted(folder.glob("text-*.sqlite"), key=lambda cache: -cache.stat().st_mtime_ns)
                for old in caches[MAX_CACHES:]:
                    for side in folder.glob(f"{old.stem}.*"):
                        side.unlink(missing_ok=True)
                return path
    temporary = tempfile.TemporaryDirectory(prefix="agentgym-text-")
    atexit.register(temporary.cleanup)
    return Path(temporary.name, "text.sqlite")


def _digest(identity: str) -> str:
    return hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _is_own(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid()


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(_Entry)
