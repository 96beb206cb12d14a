"""Files of the state directory: private, locked while in use, replaced as a whole, read within bounds."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from runner.errors import ConfigError, StoreError

MAX_FILE_BYTES = 256 * 1024 * 1024
"""The largest file that is read."""

TEMPORARY_SUFFIX = ".tmp"
"""Ends the name of a file that is still being written."""


class DamagedFile(msgspec.Struct, frozen=True):
    """A file that cannot be used as it is, and why."""

    path: Path
    reason: str


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents for this user alone, durably."""
    if path.is_dir():
        return
    make_folder(path.parent)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make what was created in or renamed into a folder survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def create_private(path: Path) -> int:
    """Open a new, empty, private file for appending; the caller closes the descriptor."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW, 0o600)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of ``data``, normally in one call."""
    written = os.write(descriptor, data)
    while written < len(data):
        written += os.write(descriptor, data[written:])


def replace_file(path: Path, data: bytes) -> None:
    """Put ``data`` under ``path``, durably, whole or not at all."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    descriptor = create_private(temporary)
    try:
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.rename(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()  # on a full disk there would be more and more of them
        raise
    sync_folder(path.parent)


def read_file(path: Path) -> bytes:
    """The content of a regular file.

    Raises:
        StoreError: when it is missing, unreadable, no regular file, or larger than ``MAX_FILE_BYTES``.
    """
    try:
        # Without O_NONBLOCK a pipe in the place of the file would be waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise StoreError(f"{path} is not a regular file; move it away")
            if status.st_size > MAX_FILE_BYTES:
                raise StoreError(
                    f"{path} has {status.st_size} bytes, more than the {MAX_FILE_BYTES} read; move it away"
                )
            return file.read(MAX_FILE_BYTES)
    except OSError as exc:
        raise StoreError(f"{path} cannot be read: {exc.strerror}; check that it exists and is yours") from exc


@contextlib.contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold the lock of a file or folder; yields False when it is gone or, without ``wait``, in use."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        yield False
        return
    try:
        yield _lock(descriptor, wait) and _is_still(descriptor, path)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, wait: bool) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_still(descriptor: int, path: Path) -> bool:
    """Whether ``path`` names the locked file: its last owner may have removed it before letting go."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False))
    except OSError:
        return False


MAX_SECRET_BYTES = 64 * 1024
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
            _check_secret(os.fstat(file.fileno()), path, what)
            return file.read(MAX_SECRET_BYTES).decode()
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


def _check_secret(status: os.stat_result, path: Path, what: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{what}: {path} is not a regular file")
    if status.st_mode & 0o077:
        raise ConfigError(f"{what}: {path} holds a secret and others may read it; run: chmod 600 {path}")
    if status.st_size > MAX_SECRET_BYTES:
        raise ConfigError(f"{what}: {path} has more than {MAX_SECRET_BYTES} bytes; is it the right file?")
