"""Output of an export: files that appear together, complete, with their sizes and hashes, or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import IO

import msgspec

from runner.errors import StoreError
from runner.util.files import TEMPORARY_SUFFIX, sync_folder

_BUFFER = 1 << 20


class WrittenFile(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    bytes: int
    sha256: str


class OutputFile:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.n_bytes = 0

    def write(self, data: bytes) -> int:
        """Returns the number of bytes, as binary files do."""
        self._hash.update(data)
        self.n_bytes += len(data)
        return self._file.write(data)

    def tell(self) -> int:
        return self.n_bytes

    def flush(self) -> None:
        """The output is synced at its end."""

    @property
    def closed(self) -> bool:
        """Libraries that write to files need to know."""
        return self._file.closed

    def described(self, path: str) -> WrittenFile:
        return WrittenFile(path=path, bytes=self.n_bytes, sha256=self._hash.hexdigest())


class Output:
    """The file or folder of an export, written beside its path and renamed at the end; a context manager.

    Entering it raises ``StoreError`` if ``path`` exists, or cannot be created.
    """

    def __init__(self, path: Path, *, is_folder: bool) -> None:
        self.path = path
        self._is_folder = is_folder
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
        self._parts: dict[str, OutputFile] = {}
        self._open = contextlib.ExitStack()
        self._added: list[WrittenFile] = []

    def __enter__(self) -> Output:
        if os.path.lexists(self.path):
            raise StoreError(f"{self.path} exists; choose another output, or remove it")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self._is_folder:
                self._temporary.mkdir(mode=0o700)
            else:
                self._parts[self.path.name] = OutputFile(self._open.enter_context(self._create(self._temporary)))
        except OSError as exc:
            raise StoreError(f"{self.path} cannot be written: {exc.strerror}; choose another output") from exc
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._publish()
            elif isinstance(exc, OSError):
                raise StoreError(f"{self.path} cannot be written: {exc.strerror}; choose another output") from exc
        finally:
            self._open.close()
            self._discard()

    @property
    def main(self) -> OutputFile:
        if self._is_folder:
            raise TypeError(f"{self.path} is a folder")
        return self._parts[self.path.name]

    def add(self, relative: str, data: bytes) -> None:
        """Write a whole file of a folder; ``relative`` consists of names that the format itself chose."""
        with self._create(self._below(relative)) as raw:
            file = OutputFile(raw)
            file.write(data)
        self._added.append(file.described(relative))

    def create(self, relative: str) -> OutputFile:
        """Return a new file of a folder, which stays open until the output is complete."""
        file = OutputFile(self._open.enter_context(self._create(self._below(relative))))
        self._parts[relative] = file
        return file

    def complete(self) -> list[WrittenFile]:
        self._open.close()
        return [*self._added, *(file.described(relative) for relative, file in self._parts.items())]

    def _below(self, relative: str) -> Path:
        path = self._temporary / relative
        if path.parent != self._temporary:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def _create(self, path: Path) -> IO[bytes]:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        return os.fdopen(descriptor, "wb", _BUFFER)

    def _publish(self) -> None:
        try:
            self._open.close()
            _sync(self._temporary)
            self._temporary.rename(self.path)
            sync_folder(self.path.parent)
        except OSError as exc:
            raise StoreError(f"{self.path} cannot be written: {exc.strerror}; free disk space") from exc

    def _discard(self) -> None:
        if self._temporary.is_dir():
            shutil.rmtree(self._temporary, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                self._temporary.unlink()


def _sync(path: Path) -> None:
    """Flush a file or a folder to the disk, with all that belongs to its file system if it has many files."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if path.is_dir():
        os.sync()
