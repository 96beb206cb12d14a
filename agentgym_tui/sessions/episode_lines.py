"""Episodes that are no files of their own: journals of unfinished episodes, and lines of JSON Lines files.

A JSON Lines file of episodes is listed as if it was a folder, with one name per line: the position of the line.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final

from agentgym_tui.logs.path_kind import ARCHIVE_SUFFIX, JOURNAL_SUFFIX, is_folder
from runner.errors import StoreError
from runner.util.files import MAX_FILE_BYTES, read_file

LINES_SUFFIXES: Final = (".jsonl", ".ndjson")
"""Suffixes of files whose lines can be episodes."""

UNFINISHED: Final = "still running, or its node died; the node completes the episode when it starts again"

_EPISODE_START: Final = b'{"schema":'
_NAME: Final = re.compile(r"(\d{1,18})-(\d{1,18})")


def read_episode(path: Path) -> bytes:
    """Return the content of an episode file, in an archive, on a line or unfinished, too; raises ``StoreError``."""
    from runner.store.archive import read_episodes, read_member

    if path.name.endswith(JOURNAL_SUFFIX):
        return read_unfinished(path)
    if is_line(path) and not is_folder(path.parent):
        return read_line(path)
    if not path.parent.name.endswith(ARCHIVE_SUFFIX) or is_folder(path.parent):
        return read_file(path)
    if (member := read_episodes(path.parent).get(path.name)) is None:
        raise StoreError(f"{path.parent} has no file {path.name!r} any more; reload it")
    return read_member(path.parent, member)


def holds_episodes(path: Path) -> bool:
    """Return whether a file is regular, has the suffix of JSON Lines, and begins like an episode file."""
    if not path.name.endswith(LINES_SUFFIXES):
        return False
    try:
        with _open(path) as file:
            return file.read(len(_EPISODE_START)) == _EPISODE_START
    except (OSError, ValueError):
        return False


def line_names(path: Path) -> Iterator[str]:
    """Yield a name for each line that is not empty.

    Raises:
        StoreError: the file cannot be read, or has a line of more than ``MAX_FILE_BYTES``.
    """
    try:
        with _open(path) as file:
            start = 0
            while line := file.readline(MAX_FILE_BYTES + 1):
                if len(line) > MAX_FILE_BYTES:
                    raise StoreError(f"{path} has a line of more than {MAX_FILE_BYTES >> 20} MiB at byte {start}")
                if line.strip():
                    yield f"{start:018}-{len(line)}"
                start += len(line)
    except OSError as exc:
        raise StoreError(f"{path} cannot be read: {exc.strerror or exc}") from exc


def is_line(path: Path) -> bool:
    """Return whether a path is that of a line, as opposed to a file."""
    return path.parent.name.endswith(LINES_SUFFIXES) and _NAME.fullmatch(path.name) is not None


def read_line(path: Path) -> bytes:
    """Return the line that has a name of ``line_names``; raises ``StoreError``."""
    if (match := _NAME.fullmatch(path.name)) is None:
        raise StoreError(f"{path.name!r} is no line of {path.parent}")
    start, size = int(match[1]), min(int(match[2]), MAX_FILE_BYTES)
    try:
        with _open(path.parent) as file:
            file.seek(start)
            line = file.read(size)
    except (OSError, ValueError) as exc:
        raise StoreError(f"{path.parent} cannot be read: {exc}") from exc
    if len(line) < size:
        raise StoreError(f"{path.parent} is shorter than before; reload it")
    return line


def read_unfinished(path: Path) -> bytes:
    """Return the readable part of a journal as the content of an episode file.

    Raises:
        StoreError: the journal or its header is unreadable.
    """
    from runner.store.journal import read_journal, unfinished_record
    from runner.types import ErrorInfo, Outcome
    from runner.util.safe_values import encode

    journal = read_journal(path, was_moved=True)
    try:
        ended_at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except (OSError, ValueError, OverflowError):
        ended_at = journal.header.started_at
    reason = UNFINISHED if journal.damage is None else f"{UNFINISHED}; {journal.damage}"
    error = ErrorInfo(type="Unfinished", message=reason, traceback="")
    return encode(unfinished_record(journal, Outcome.INTERRUPTED, ended_at=ended_at, error=error))


def _open(path: Path) -> BinaryIO:
    """Open a regular file without following a link; raises ``OSError`` or ``ValueError``."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is no regular file")
    return os.fdopen(descriptor, "rb")
