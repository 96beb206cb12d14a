"""Cache of the list rows of opened episode files, so that a folder opened again is listed without reading its files."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, NamedTuple

import msgspec

from runner.store.index_schema import EpisodeRow

MIN_FILES: Final = 500
"""Number of files from which on rows are cached; fewer files are read in a moment."""

MAX_CACHES: Final = 20
"""Largest number of cache files; the oldest ones are deleted."""

MAX_LINE_BYTES: Final = 64 << 10
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
        """Return the file's status, without a ``Path``, which would take longer; raises ``OSError``."""
        return os.lstat(f"{self.folder}{os.sep}{self.name}")


class _Entry(NamedTuple):
    file: FoundFile
    size: int
    mtime_ns: int
    row: EpisodeRow


class RowCache:
    """Rows of the episode files below some paths, in descending order of the files.

    A file is recognized by its path, size and modification time. The cache is optional: where it cannot be read or
    written, files are read instead. It is streamed, because the rows of 100,000 files take 70 MB.

    Args:
        folder: the folder of all caches; created if necessary.
        paths: the opened files and folders.
    """

    def __init__(self, folder: Path, paths: Sequence[Path]) -> None:
        identity = repr((_VERSION, EpisodeRow.__struct_fields__, [os.path.realpath(path) for path in paths]))
        digest = hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()
        self._folder, self._path = folder, folder / f"rows-{digest[:32]}.jsonl"
        self._old, self._new = self._open_old(), self._open_new()
        self._has_changed = False
        self._line = b""
        self._entry = self._read_entry()

    def get(self, file: FoundFile, status: os.stat_result) -> EpisodeRow | None:
        """Return the row of a file and keep it in the cache; None if the file is new or has changed.

        Args:
            file: the file, greater than that of the next call.
            status: size and modification time of the file.
        """
        while (entry := self._entry) is not None and entry.file > file:
            self._has_changed = True  # a file is missing
            self._entry = self._read_entry()
        if entry is None or (entry.file, entry.size, entry.mtime_ns) != (file, *_stamp(status)):
            return None
        self._write(self._line)
        self._entry = self._read_entry()
        return entry.row

    def add(self, file: FoundFile, status: os.stat_result, row: EpisodeRow) -> None:
        """Add the row of a file for which ``get`` returned None."""
        self._has_changed = True
        with suppress(UnicodeEncodeError):
            self._write(_ENCODER.encode(_Entry(file, *_stamp(status), row)) + b"\n")

    def close(self, *, complete: bool) -> None:
        """Close the cache; replace it if ``complete`` is set and a file was new, changed or missing."""
        if self._old is not None:
            self._old.close()
        if self._new is None:
            return
        with suppress(OSError):
            self._new.close()
            if complete and (self._has_changed or self._entry is not None):
                Path(self._new.name).replace(self._path)
                self._delete_oldest()
        with suppress(OSError):
            Path(self._new.name).unlink(missing_ok=True)

    def _read_entry(self) -> _Entry | None:
        self._line = self._old.readline(MAX_LINE_BYTES) if self._old is not None else b""
        try:
            return _DECODER.decode(self._line) if self._line else None
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._has_changed = True
            return None

    def _write(self, line: bytes) -> None:
        if self._new is not None:
            try:
                self._new.write(line)
            except OSError:  # e.g. the disk is full
                self.close(complete=False)
                self._old = self._new = self._entry = None

    def _open_old(self) -> IO[bytes] | None:
        with suppress(OSError):
            return os.fdopen(os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
        return None

    def _open_new(self) -> IO[bytes] | None:
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return tempfile.NamedTemporaryFile("wb", dir=self._folder, prefix="rows-", delete=False)
        return None

    def _delete_oldest(self) -> None:
        caches = sorted(self._folder.glob("rows-*"), key=lambda path: path.lstat().st_mtime_ns)
        for path in caches[:-MAX_CACHES]:
            path.unlink(missing_ok=True)


def _stamp(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(_Entry)
