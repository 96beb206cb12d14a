"""Exports stored episodes in a format, with a manifest and a report of what was left out and why.

The files of an export appear together, complete, or not at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import IO
from uuid import uuid4

import msgspec

from runner import __version__
from runner.errors import ConfigError, StoreError
from runner.formats.format import MANIFEST, EncodeEpisode, EpisodeWriter, Format, LeftOut
from runner.formats.selection import Candidate
from runner.store.episode_file import EpisodeRecord
from runner.store.episode_store import EpisodeStore
from runner.util.files import TEMPORARY_SUFFIX, replace_file, sync_folder
from runner.util.safe_values import encode

UNREADABLE = "its file is missing or damaged"
"""Reason for each file and archive that could not be read, whether or not the query would have selected it."""
_BUFFER = 1 << 20


class WrittenFile(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    bytes: int
    sha256: str


class Manifest(msgspec.Struct, kw_only=True):
    """What an export has, for people and for checking the files; ``left_out`` are numbers of episodes by reason."""

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


class Output:
    """The new file or folder of an export, at a temporary path until it is complete."""

    def __init__(self, temporary: Path, name: str) -> None:
        self.files = contextlib.ExitStack()
        self._path, self._name = temporary, name
        self._names: list[str] = []

    def create(self, relative: str = "") -> IO[bytes]:
        """Return the only file, or a new one of the folder, which stays open until the output is complete.

        ``relative`` consists of names that the format itself chose.
        """
        return self.files.enter_context(self._create(relative))

    def add(self, relative: str, data: bytes) -> None:
        """Write a whole file of a folder."""
        with self._create(relative) as file:
            file.write(data)

    def complete(self) -> list[WrittenFile]:
        self.files.close()
        return [self._described(name) for name in self._names]

    def _create(self, relative: str) -> IO[bytes]:
        path = self._path / relative
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        self._names.append(relative)
        return os.fdopen(descriptor, "wb", _BUFFER)

    def _described(self, name: str) -> WrittenFile:
        with (self._path / name).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return WrittenFile(path=name or self._name, bytes=file.tell(), sha256=digest)


@contextlib.contextmanager
def new_output(path: Path, *, is_folder: bool) -> Iterator[Output]:
    """Write beside a path, and rename at the end; raises ``StoreError`` if the path exists, or cannot be written."""
    if os.path.lexists(path):
        raise StoreError(f"{path} exists; choose another output, or remove it")
    temporary = path.with_name(f".{path.name}.{uuid4().hex[:8]}{TEMPORARY_SUFFIX}")
    output = Output(temporary, path.name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if is_folder:
            temporary.mkdir(mode=0o700)
        with output.files:
            yield output
        _sync(temporary)
        temporary.rename(path)
        sync_folder(path.parent)
    except OSError as exc:
        reason = f"{exc.strerror}; free disk space or choose another output"
        raise StoreError(f"{path} cannot be written: {reason}") from exc
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                temporary.unlink()


def _sync(path: Path) -> None:
    """Flush a file or a folder to the disk, with all that belongs to its file system if it has many files."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if path.is_dir():
        os.sync()


class _ItemWriter:
    """Writes a line, an element of an array or a file for each episode, see ``Format``."""

    def __init__(self, encode_episode: EncodeEpisode, target: Format, output: Output) -> None:
        self._encode, self._output = encode_episode, output
        self._file = output.create(target.file) if target.suffix or target.file else None
        is_array = (target.suffix or target.file).endswith(".json")
        self._start, self._separator, self._end = (b"[\n", b",\n", b"\n]\n") if is_array else (b"", b"\n", b"\n")
        self._is_empty = True

    def write(self, episode: EpisodeRecord) -> None:
        data = encode(self._encode(episode))
        if self._file is None:
            self._output.add(f"{episode.episode_id}.json", data + b"\n")
        else:
            self._file.write((self._start if self._is_empty else self._separator) + data)
        self._is_empty = False

    def finish(self) -> Mapping[str, int]:
        if self._file is not None:
            self._file.write(self._end if not self._is_empty else b"[]\n" if self._start else b"")
        return {}


def open_writer(target: Format, output: Output) -> EpisodeWriter:
    """Return the writer of a format on an output that has nothing yet.

    Raises ``ConfigError`` if the format cannot be written, or a package that it needs is missing.
    """
    if target.open_writer is not None:
        return target.open_writer(output.create(target.file))
    if target.encode is None:
        raise ConfigError(f"{target.title} can be read, but not written")
    return _ItemWriter(target.encode, target, output)


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
    """Write episodes in their order, one at a time, to ``path``, which must not exist, and return the manifest.

    The manifest is written, too. Raises like ``open_writer``, and ``StoreError`` if the output cannot be written or
    exists.
    """
    reasons = Counter(left_out)
    n_read = n_written = 0
    with new_output(path, is_folder=not target.suffix) as output:
        writer = open_writer(target, output)
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
