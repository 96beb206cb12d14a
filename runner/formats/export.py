"""Exports stored episodes in a format, with a manifest and a report of what was left out and why."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import IO

import msgspec

from runner import __version__
from runner.errors import ConfigError, StoreError
from runner.formats.format import MANIFEST, EpisodeWriter, Format, LeftOut
from runner.formats.selection import Candidate
from runner.store.episode_store import EpisodeStore
from runner.util.files import TEMPORARY_SUFFIX, replace_file, sync_folder
from runner.util.safe_values import encode

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

    Raises:
        StoreError: ``path`` exists, or cannot be created.
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
        """Closes the files."""
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


UNREADABLE = "its file is missing or damaged"
"""Reason for each file and archive that could not be read, whether or not the query would have selected it."""


class Manifest(msgspec.Struct, kw_only=True):
    """What an export has: for people, and for checking the files.

    Attributes:
        format: name of the format, and ``format_version`` its title.
        left_out: number of episodes that are not in the files, by reason.
    """

    format: str
    format_version: str
    version: str
    created_at: datetime
    query: str
    filters: list[str]
    n_selected: int = 0
    n_written: int = 0
    left_out: dict[str, int] = {}
    files: list[WrittenFile] = []


def export_episodes(
    store: EpisodeStore,
    candidates: Iterable[Candidate],
    left_out: Counter[str],
    target: Format,
    path: Path,
    *,
    query: str,
    filters: list[str],
    now: datetime,
) -> Manifest:
    """Write episodes one at a time to ``path``, which must not exist, and the manifest; return the manifest.

    Args:
        candidates: the episodes, in the order of the files.

    Raises:
        ConfigError: the format cannot be written.
        StoreError: the output cannot be written, or exists.
    """
    if target.open_writer is None:
        raise ConfigError(f"{target.title} can be read, but not written")
    reasons = Counter(left_out)
    n_read = n_written = 0
    with Output(path, is_folder=not target.suffix) as output:
        writer = target.open_writer(output)
        for candidate in candidates:
            n_written += _write(store, candidate, writer, reasons)
            n_read += 1
        unused = Counter(writer.finish())
        reasons += unused
        manifest = Manifest(
            format=target.name,
            format_version=target.title,
            version=__version__,
            created_at=now,
            query=query,
            filters=filters,
            n_selected=n_read + left_out.total(),
            n_written=n_written - unused.total(),
            left_out=dict(reasons.most_common()),
            files=output.complete(),
        )
        data = msgspec.json.format(encode(manifest), indent=1) + b"\n"
        if not target.suffix:
            output.add(MANIFEST, data)
    if target.suffix:
        beside = path.with_name(f"{path.name}.{MANIFEST}")
        try:
            replace_file(beside, data)
        except OSError as exc:
            raise StoreError(f"{path} is written, but not {beside.name}: {exc.strerror}") from exc
    return manifest


def _write(store: EpisodeStore, candidate: Candidate, writer: EpisodeWriter, reasons: Counter[str]) -> bool:
    try:
        writer.write(store.load_with_tokens(store.path(candidate.batch_id, candidate.episode_id)))
    except LeftOut as exc:
        reasons[str(exc)] += 1
    except StoreError:
        reasons[UNREADABLE] += 1
    else:
        return True
    return False
