"""What it is that somebody names: a folder, a log, or an episode."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

_LOG_SUFFIXES: Final = (".jsonl", ".ndjson", ".log")
_HEAD_BYTES: Final = 64 << 10


def is_folder(path: Path) -> bool:
    """Whether it is one, as far as one may know."""
    try:
        return path.is_dir()
    except OSError:  # reading it will say what is wrong
        return False


def is_log(path: Path) -> bool:
    """Whether what somebody names is shown line by line, and not as an episode or a folder of them.

    What is named ``.json`` is an episode unless its first line is whole JSON and others follow; what has another
    name is a log unless it begins like an episode.
    """
    if is_folder(path):
        return False
    if path.name.endswith(_LOG_SUFFIXES):
        return True
    if not path.exists():
        return False
    head = _read_head(path)
    if path.suffix != ".json":
        return not head.startswith(b'{"schema":')
    first, _, rest = head.partition(b"\n")
    return bool(rest.strip()) and _is_json(first)


def _read_head(path: Path) -> bytes:
    """The beginning of a regular file, nothing of others."""
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
