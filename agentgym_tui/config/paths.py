"""Where the console's own files are, and how they are read: small, and regular files only."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from errno import EFBIG, EINVAL
from pathlib import Path
from typing import Final

FOLDER_NAME: Final = "agentgym-console"
MAX_BYTES: Final = 64 * 1024
"""Larger files are none of ours."""


def xdg_folder(environ: Mapping[str, str], variable: str, default: str) -> Path:
    """The console's folder below the one a variable names, else below the home; what is not absolute does not count."""
    named, home = Path(environ.get(variable, "")), Path(environ.get("HOME", ""))
    return (named if named.is_absolute() else (home if home.is_absolute() else Path("/")) / default) / FOLDER_NAME


def read_small_file(path: Path, *, links: bool) -> bytes:
    """The content of a file.

    Args:
        path: where it should be.
        links: whether it may be reached by a symbolic link.

    Raises:
        OSError: when it is missing, unreadable, too large, or no regular file.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW)  # a pipe would be waited for
    try:
        descriptor = os.open(path, flags)
    except ValueError as exc:  # a variable of the environment with a null byte cannot be, one with a surrogate can
        raise OSError(EINVAL, "no path") from exc
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
            raise OSError(EFBIG, "no small file")
        return file.read(MAX_BYTES)
