"""Files that hold secrets: written for this user alone, refused when others could read them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from runner.errors import ConfigError

MAX_BYTES = 64 * 1024
"""Larger files are no keys or credentials."""


def read_secret(path: Path, what: str) -> str:
    """The text of a file that only its owner can read.

    Args:
        path: a regular file, or a link to one.
        what: names the file in errors, e.g. the variable it was given by.

    Raises:
        ConfigError: when it is missing, unreadable, too large, no text, or open to others.
    """
    try:
        # Without O_NONBLOCK a pipe in the place of the file would be waited for.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            _check(os.fstat(file.fileno()), path, what)
            return file.read(MAX_BYTES).decode()
    except OSError as exc:
        raise ConfigError(f"{what}: {path} cannot be read: {exc.strerror}; check that it exists and is yours") from exc
    except UnicodeDecodeError:
        # The cause would quote bytes of the file.
        raise ConfigError(f"{what}: {path} is not a text file") from None


def write_secret(path: Path, data: bytes) -> None:
    """Put ``data`` under ``path``, readable by its owner only, whole or not at all."""
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.unlink(missing_ok=True)  # one that lies about could have another mode
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        temporary.rename(path)
    except OSError:  # a full disk, or a folder under that name
        temporary.unlink(missing_ok=True)
        raise


def _check(status: os.stat_result, path: Path, what: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{what}: {path} is not a regular file")
    if status.st_mode & 0o077:
        raise ConfigError(f"{what}: {path} holds a secret and others may read it; run: chmod 600 {path}")
    if status.st_size > MAX_BYTES:
        raise ConfigError(f"{what}: {path} has more than {MAX_BYTES} bytes; is it the right file?")
