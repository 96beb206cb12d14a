"""Folders of the console's own files, and a reader for files of limited size."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from errno import EFBIG, EINVAL
from pathlib import Path
from typing import Final

FOLDER_NAME: Final = "agentgym-console"
MAX_BYTES: Final = 64 * 1024
"""Maximum size of a file that is read, in bytes."""


def xdg_folder(environ: Mapping[str, str], variable: str, default: str) -> Path:
    """Return the console's folder inside an XDG base directory.

    Args:
        environ: environment variables.
        variable: name of the variable with the base directory; its value is ignored unless it is an absolute path.
        default: base directory relative to the home directory, used without a valid variable.
    """
    base, home = Path(environ.get(variable, "")), Path(environ.get("HOME", ""))
    return (base if base.is_absolute() else (home if home.is_absolute() else Path("/")) / default) / FOLDER_NAME


def read_small_file(path: Path, *, links: bool) -> bytes:
    """Read a regular file of at most ``MAX_BYTES`` bytes.

    Args:
        path: the file.
        links: whether ``path`` may be a symbolic link.

    Raises:
        OSError: the file is missing, unreadable, too large or not a regular file.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW)  # reading a pipe would block
    try:
        descriptor = os.open(path, flags)
    except ValueError as exc:  # the path contains a null byte or a surrogate
        raise OSError(EINVAL, "invalid path") from exc
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
            raise OSError(EFBIG, "not a small regular file")
        return file.read(MAX_BYTES)
