"""Detects whether a path given on the command line is a folder, a log file or an episode file."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from runner.formats.format import Format

LOG_SUFFIXES: Final = (".jsonl", ".ndjson", ".log")
"""Suffixes of files that are shown line by line."""
JOURNAL_SUFFIX: Final = ".journal.jsonl"
"""Suffix of the journal of an unfinished episode; ``runner.store.journal`` takes long to import."""
ARCHIVE_SUFFIX: Final = ".zip"
"""Suffix of an archive of episodes."""
EPISODE_START: Final = b'{"schema":'
"""First bytes of an episode file."""
MANIFEST: Final = "manifest.json"
"""End of the names of the manifests of exports; ``runner.formats`` takes long to import."""
_FOREIGN_SUFFIXES: Final = (".json", ".jsonl", ".ndjson", ".eval", ".parquet")
_ID_NAME_LENGTH: Final = 26 + len(".json")
_HEAD_BYTES: Final = 64 << 10


def is_folder(path: Path) -> bool:
    """Return whether the path is a folder; False if missing permissions prevent the check."""
    try:
        return path.is_dir()
    except OSError:  # reading the path reports the cause
        return False


def is_log(path: Path) -> bool:
    """Return whether a path is a log file, which is shown line by line; else it is an episode file or a folder.

    A file with the suffix ``.jsonl``, ``.ndjson`` or ``.log`` is a log. A ``.json`` file is a log where its first line
    is a complete JSON value and more lines follow. A ``.zip`` file is an archive of episodes. A file with any other
    suffix is a log unless it starts like an episode file. A file of another tool's episodes is no log.
    """
    if is_folder(path) or path.name.endswith(ARCHIVE_SUFFIX) or foreign_format(path) is not None:
        return False
    if path.name.endswith(LOG_SUFFIXES):
        return True
    if not path.exists():
        return False
    head = _read_head(path)
    if path.suffix != ".json":
        return not head.startswith(EPISODE_START)
    first, _, rest = head.partition(b"\n")
    return bool(rest.strip()) and _is_json(first)


def foreign_format(path: Path) -> Format | None:
    """Return the format of a file or folder of another tool's episodes; None for anything else."""
    if not is_folder(path):
        head = _read_head(path).lstrip()
        if head.startswith(EPISODE_START) or not head.startswith((b"{", b"[", b"PK\3\4", b"PAR1", b"\xef\xbb\xbf")):
            return None
    from runner.formats.format import recognise  # slow to import

    return recognise(path)


def unknown_reason(path: Path) -> str | None:
    """Return why a file that does not begin like an episode file cannot be read; None for any other path."""
    head = _read_head(path)
    if not head or head.startswith(EPISODE_START):
        return None
    from runner.formats.format import unknown_format  # slow to import

    return unknown_format(path)


def foreign_names(folder: str, names: Sequence[str]) -> list[str]:
    """Return the names of a folder's files that may be files of other tools, or manifests.

    Of many files that are named by ids, as episode files and those of an ATIF export are, the first one is read and
    stands for the others.
    """
    named_by_id = [name for name in names if len(name) == _ID_NAME_LENGTH and name.endswith(".json")]
    others = [name for name in names if name.endswith(_FOREIGN_SUFFIXES)]
    if not named_by_id or foreign_format(Path(folder, named_by_id[0])) is not None:
        return others
    own = set(named_by_id)
    return [name for name in others if name not in own]


def _read_head(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError):
        return b""
    with os.fdopen(descriptor, "rb") as file, contextlib.suppress(OSError):
        return file.read(_HEAD_BYTES) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    return b""


def _is_json(text: bytes) -> bool:
    from msgspec import DecodeError
    from msgspec.json import decode

    try:
        decode(text)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
