"""Files and folders: durable and atomic writes, bounded reads, locks, secrets, and where the state directory is.

All files and folders are created for the current user only (0600 and 0700).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Final, NamedTuple

import msgspec

from runner.errors import ConfigError, StoreError
from runner.util.display_text import one_line

LOCK_TICK_S = 0.02
MAX_FILE_BYTES = 256 * 1024 * 1024
"""Maximum size in bytes of a file for ``read_file``."""
MAX_SECRET_BYTES = 64 * 1024
"""Maximum size in bytes of a file for ``read_secret``; keys and credentials are smaller."""
TEMPORARY_SUFFIX = ".tmp"
"""Suffix of a file that is still being written."""
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


class DamagedFile(msgspec.Struct, frozen=True):
    path: Path
    reason: str


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, mode 0700, and fsync them."""
    if os.path.isdir(path):  # noqa: PTH112 - half the time of Path.is_dir, twice per episode
        return
    make_folder(path.parent)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if not path.is_dir():
            raise
    with contextlib.suppress(PermissionError):  # a folder may be writable and not readable
        sync_folder(path.parent)


def world_writable_problem(folder: Path) -> str | None:
    """Return a warning if every user of the machine can create and rename files in a folder, else None."""
    try:
        is_open = bool(folder.stat().st_mode & stat.S_IWOTH)
    except OSError:
        return None
    return f"{folder} can be changed by every user of this machine; run: chmod o-w {folder}" if is_open else None


def sync_folder(path: Path) -> None:
    """Fsync a folder, so that files created in it or renamed into it survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def create_private(path: Path) -> int:
    """Create or empty a file, mode 0600, and return a descriptor for appending; the caller closes the descriptor."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW, 0o600)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of ``data``, normally in one system call."""
    written = os.write(descriptor, data)
    while written < len(data):
        written += os.write(descriptor, data[written:])


def replace_file(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path``, mode 0600, atomically and durably; raises as ``replacing_file``."""
    with replacing_file(path) as file:
        write_all(file.fileno(), data)


@contextlib.contextmanager
def replacing_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file, mode 0600, that becomes ``path`` at the end of the block, atomically and durably.

    After an ``OSError``, ``path`` has its previous or its new content, never a part of it.
    """
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        descriptor = os.open(temporary, _CREATE, 0o600)
    except FileExistsError:
        temporary.unlink()  # a leftover could have another mode
        descriptor = os.open(temporary, _CREATE, 0o600)
    is_complete = False
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield file
            file.flush()
            os.fsync(descriptor)
        temporary.rename(path)
        is_complete = True
    finally:
        if not is_complete:
            with contextlib.suppress(OSError):
                temporary.unlink()  # on a full disk, leftovers would accumulate
    sync_folder(path.parent)


def set_aside(path: Path, target: Path) -> None:
    """Rename a damaged file or a folder; ``target`` is replaced if both are files, and else gets a unique suffix."""
    if os.path.lexists(target) and (path.is_dir() or target.is_dir()):
        target = target.with_name(f"{target.name}.{time.time_ns()}")
    path.rename(target)


def read_regular(path: Path, max_bytes: int, *, links: bool = True) -> tuple[bytes, os.stat_result]:
    """Return the content and the status of a regular file, which may be a symbolic link unless ``links`` is False.

    Raises ``OSError`` if the file is missing, unreadable, not regular, or larger than ``max_bytes``.
    """
    # Without O_NONBLOCK, opening a named pipe would block.
    flags = os.O_RDONLY | os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except ValueError as exc:  # a null byte or a lone surrogate
        raise OSError(errno.EINVAL, f"its path is invalid ({exc})") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            if stat.S_ISDIR(status.st_mode):
                raise OSError(errno.EISDIR, "it is not a regular file but a directory")
            raise OSError(errno.EINVAL, "it is not a regular file")
        if status.st_size > max_bytes:
            raise OSError(errno.EFBIG, f"it is larger than {max_bytes} bytes")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(status.st_size or max_bytes), status  # reading reserves memory of the given size
    finally:
        os.close(descriptor)


def read_file(path: Path) -> bytes:
    """Raises ``StoreError`` if the file is missing, unreadable, not regular, or larger than ``MAX_FILE_BYTES``."""
    try:
        return read_regular(path, MAX_FILE_BYTES, links=False)[0]
    except OSError as exc:
        raise StoreError(f"{path} cannot be read: {exc.strerror}; check that it exists and that you own it") from exc


@contextlib.contextmanager
def file_lock(path: Path, *, wait_s: float = 0.0, create: bool = False) -> Iterator[bool]:
    """Hold the lock of a file or folder; yield False if it cannot be opened, or another process keeps its lock."""
    flags = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError:
        yield False
        return
    try:
        yield _lock(descriptor, wait_s) and _is_same_file(descriptor, path)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, wait_s: float) -> bool:
    try:
        deadline_s = time.monotonic() + wait_s
        while not (is_locked := try_lock(descriptor)) and time.monotonic() < deadline_s:
            time.sleep(LOCK_TICK_S)
    except OSError:
        return False
    return is_locked


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file or folder until its descriptor is closed; return False if another process has locked it.

    Raises ``OSError`` if its file system does not lock.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:  # the previous owner of the lock may have removed or replaced the file before it released the lock
        return os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False))
    except OSError:
        return False


def read_secret(path: Path, source: str) -> str:
    """Return the text of a secret file, a regular file or a link to one, which only its owner may access.

    ``source`` is the prefix of error messages, e.g. the variable that names the file. Raises ``ConfigError`` if the
    file is missing, unreadable, too large, not text, or accessible to other users.
    """
    try:
        content, status = read_regular(path, MAX_SECRET_BYTES)
        if status.st_mode & 0o077:
            raise ConfigError(f"{source}: {path} holds a secret but other users can read it; run: chmod 600 {path}")
        return content.decode()
    except OSError as exc:
        is_other = exc.errno in (errno.EFBIG, errno.EINVAL)
        hint = "check that it is the right file" if is_other else "check that it exists and that you own it"
        raise ConfigError(f"{source}: {path} cannot be read: {exc.strerror}; {hint}") from exc
    except UnicodeDecodeError:
        # The original exception would quote bytes of the secret.
        raise ConfigError(f"{source}: {path} is not a text file") from None


FOLDER_NAME: Final = "agentgym-console"
_STATE_FILES: Final = ("node.lock", "index.sqlite", "outbox.sqlite")
_ULID_LENGTH: Final = 26
_PACKAGE = Path(__file__).parents[1]


class DataDir(NamedTuple):
    """A state directory; ``notice`` is what the user should know about the choice, "" if nothing."""

    path: Path
    notice: str = ""


def resolve_path(path: str, environ: Mapping[str, str], cwd: Path) -> Path:
    home = environ.get("HOME")
    if home and (path == "~" or path.startswith("~/")):
        path = home + path[1:]
    return cwd.absolute() / path


def deleted_folder_problem(environ: Mapping[str, str]) -> str | None:
    try:
        Path.cwd()
    except FileNotFoundError:
        name = one_line(environ.get("PWD", ""), 500)
        return (
            f"the current folder{name and ' '}{name} has been deleted; change to another folder with cd and try again"
        )
    return None


def xdg_folder(environ: Mapping[str, str], variable: str, default: str) -> Path:
    """Return the folder of this program inside an XDG base directory.

    The value of ``variable`` is ignored unless it is an absolute path; ``default`` is relative to the home directory.
    """
    base, home = Path(environ.get(variable, "")), Path(environ.get("HOME", ""))
    return (base if base.is_absolute() else (home if home.is_absolute() else Path("/")) / default) / FOLDER_NAME


def default_data_dir(environ: Mapping[str, str], cwd: Path) -> DataDir:
    """Return the state directory that applies if none is named.

    In a checkout of this repository it is the checkout's ``data``. Elsewhere it is the platform's folder for data of
    applications, unless ``./data`` already is a state directory.
    """
    local = cwd.absolute() / "data"
    if (checkout := _find_checkout(cwd.absolute())) is not None and (checkout / "data" == local or not _is_used(local)):
        return DataDir(checkout / "data")
    default = _platform_folder(environ, cwd)
    if not _is_used(local):
        return DataDir(default)
    return DataDir(
        local,
        f"the state directory is {local}, because it has been used before; "
        f"without it, it would be {default} (--data-dir or AGENTGYM_DATA_DIR names another one)",
    )


def require_named_folder(option: str | None, data_dir: Path) -> None:
    """Check the state directory of a command that only reads.

    Raises ``ConfigError`` if ``--data-dir`` names no folder. Without the option, a folder that does not exist yet has
    no episodes.
    """
    if option and not data_dir.is_dir():
        raise ConfigError(f"There is no folder {data_dir}; check --data-dir")
    if option and not (data_dir / "runs").is_dir() and _has_batches(data_dir):
        raise ConfigError(f"{data_dir} has batches or episodes, but no folder runs; name the folder above runs")


def unwritable_reason(data_dir: Path) -> str:
    """Return why files cannot be written into a folder, or why it cannot be created; "" if they probably can."""
    folder = data_dir
    while not exists(folder) and folder != folder.parent:
        folder = folder.parent
    name = "it" if folder == data_dir else folder
    if not folder.is_dir():
        return f"{name} is not a folder"
    return "" if os.access(folder, os.W_OK | os.X_OK) else f"{name} cannot be written"


def _find_checkout(cwd: Path) -> Path | None:
    marks = ("pyproject.toml", "runner/util/files.py", "agentgym_tui/cli.py")
    return next((each for each in (cwd, *cwd.parents) if all(exists(each / mark) for mark in marks)), None)


def _is_used(folder: Path) -> bool:
    """Return whether a folder holds the state of a node or the episodes of a run; other projects have ``data``, too."""
    if any(exists(folder / name) for name in _STATE_FILES):
        return True
    return _has_batches(folder / "runs")


def _has_batches(folder: Path) -> bool:
    try:
        return any(len(entry.stem) == _ULID_LENGTH for entry in folder.iterdir())
    except OSError:
        return False


def _platform_folder(environ: Mapping[str, str], cwd: Path) -> Path:
    names_base = environ.get("XDG_DATA_HOME", "").startswith("/")
    if names_base or (sys.platform == "linux" and environ.get("HOME", "").startswith("/")):
        return xdg_folder(environ, "XDG_DATA_HOME", ".local/share")
    from platformdirs import user_data_path  # its import takes a tenth of the CPU of a short command

    return cwd.absolute() / user_data_path(FOLDER_NAME, appauthor=False)


def exists(path: Path) -> bool:
    return os.path.exists(path)  # noqa: PTH110 - Path.exists raises for a long name, or where it may not search


def package_resource(*parts: str) -> Path:
    """Return a shipped file or folder, e.g. ``package_resource("data", "wordle", "words.txt")``.

    In a wheel the shipped files are inside the package; in a checkout they are beside the package.
    """
    packaged = _PACKAGE / "shipped"
    return (packaged if packaged.is_dir() else _PACKAGE.parent).joinpath(*parts)
