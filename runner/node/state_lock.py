"""Ownership of a state directory: locks that end with the owning process, and the files by which clients find a node.

The folder itself is locked in addition to ``node.lock``, because that file may be deleted while its node runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path

import msgspec

from runner.errors import ConfigError, RunnerError, StoreError
from runner.util.clock import is_ulid, new_ulid, ulid_milliseconds
from runner.util.files import make_folder, read_secret, replace_file, sync_folder, try_lock

logger = logging.getLogger(__name__)

FILE_CHECK_INTERVAL_S = 2.0
"""Seconds between two checks of the files for clients, as between two heartbeats."""
LOCK_ATTEMPTS = 4
LOCK_RETRY_S = 0.03
"""Seconds between two attempts to lock; ``is_node_alive`` of another process holds the lock for a moment."""
MAX_ULID_MS = 2**48 - 1
DIGEST_KEY_FILE = "node.key"
"""File with the random key of ``variable_digests``, 256 bits in hex, for the current user only."""


class NodeFile(msgspec.Struct, kw_only=True):
    """Contents of ``node.json``, which clients read to find a node; ``is_node_alive`` shows whether the node runs.

    Attributes:
        profile_digest: SHA-256 of the profile's file when the node read it, in hex.
        variables: ``variable_digests`` of the variables that the profile's model endpoints read.
    """

    node: str
    boot: str
    pid: int
    url: str
    credential_file: str
    started_at: datetime
    version: str
    profile: str = ""
    profile_path: str = ""
    profile_digest: str = ""
    variables: dict[str, str] = {}


class StateLock:
    """Exclusive lock of a state directory, held until ``release`` or the end of the process.

    Attributes:
        boot: id of this process, a ULID that sorts after those of all earlier nodes of the directory, even if the clock
            was set back in the meantime.

    Raises:
        StoreError: the directory is unusable, or locked by another node, whose pid the message names.
    """

    def __init__(self, data_dir: Path) -> None:
        self._file = data_dir / "node.json"
        self._content: bytes | None = None
        self._writing = threading.Lock()
        path = data_dir / "node.lock"
        try:
            make_folder(data_dir)
            with contextlib.suppress(OSError):  # the parent may be another file system, or unreadable
                sync_folder(data_dir.parent)  # the console or a killed node may have created the folder without a sync
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise StoreError(f"{path} cannot be opened: {exc.strerror}; choose another folder with --data-dir") from exc
        self._folder = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        is_locked, node_file = self._lock(), None
        lines = os.pread(self._descriptor, 64, 0).decode("ascii", "replace").split()
        with contextlib.suppress(OSError, ValueError):
            node_file = msgspec.json.decode(self._file.read_bytes(), type=NodeFile)
        if not is_locked:
            pid = lines[0] if lines else "unknown" if node_file is None else node_file.pid
            self.release()
            raise StoreError(
                f"{data_dir} belongs to the node with pid {pid}; use that one, stop it, or name another --data-dir"
            )
        # the lock file may have been deleted
        self.boot = _next_boot(*lines[1:2], "" if node_file is None else node_file.boot)
        try:
            os.pwrite(self._descriptor, content := f"{os.getpid()}\n{self.boot}\n".encode(), 0)
            os.ftruncate(self._descriptor, len(content))
        except OSError as exc:
            self.release()
            raise StoreError(f"{path} cannot be written: {exc.strerror}; check that its disk is not full") from exc

    def _lock(self) -> bool:
        for _ in range(LOCK_ATTEMPTS):
            if try_lock(self._descriptor) and _try_lock_folder(self._folder):
                return True
            time.sleep(LOCK_RETRY_S)
        return False

    def write_node_file(self, node_file: NodeFile) -> None:
        """Write ``node.json`` atomically; if its disk has just become full, ``keep_files`` writes it later."""
        with self._writing:
            self._content = msgspec.json.encode(node_file)
            with contextlib.suppress(OSError):
                replace_file(self._file, self._content)

    def restore_node_file(self) -> bool:
        """Return whether the file was missing, changed or readable by others; raises ``OSError``."""
        with self._writing:
            if self._content is None:
                return False
            with contextlib.suppress(ConfigError):  # clients reject a file that others can read
                if read_secret(self._file, "node.json").encode() == self._content:
                    return False
            replace_file(self._file, self._content)
            return True

    def digest_variables(self, names: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
        """Return the ``variable_digests``; create their key if it is missing, damaged or readable by others."""
        data_dir = self._file.parent
        try:
            return variable_digests(data_dir, names, environ)
        except ConfigError:
            replace_file(data_dir / DIGEST_KEY_FILE, secrets.token_hex(32).encode())
            return variable_digests(data_dir, names, environ)

    def release(self) -> None:
        """Release the locks; keep ``node.json``, because clients may wait for the next node."""
        os.close(self._folder)
        os.close(self._descriptor)


def _next_boot(*previous: str) -> str:
    boot = new_ulid()
    for last in filter(is_ulid, previous):
        if last >= boot:
            boot = new_ulid(min(ulid_milliseconds(last) + 1, MAX_ULID_MS))
    return boot


def variable_digests(data_dir: Path, names: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return a digest per environment variable; "" for one that is not set or has only spaces.

    Another process of this user sees by them whether it has the same values. Without the state directory's key they
    show nothing, not even that two variables are equal.

    Raises:
        ConfigError: the key is missing, damaged or readable by others.
    """
    import hmac  # imported late: only a node and its console need it

    text = read_secret(path := data_dir / DIGEST_KEY_FILE, DIGEST_KEY_FILE)
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise ConfigError(f"{path} is damaged; the next node replaces it")
    values = {name: os.fsencode(environ.get(name, "").strip()) for name in names}
    key = bytes.fromhex(text)
    return {
        name: hmac.digest(key, b"%b=%b" % (os.fsencode(name), value), "sha256").hex() if value else ""
        for name, value in values.items()
    }


def is_node_alive(data_dir: Path) -> bool:
    return any(_is_locked(path) for path in (data_dir / "node.lock", data_dir))


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _try_lock_folder(descriptor, shared=True)
    finally:
        os.close(descriptor)


def _try_lock_folder(descriptor: int, *, shared: bool = False) -> bool:
    try:
        return try_lock(descriptor, shared=shared)
    except OSError:  # a network file system may not lock folders
        return True


async def keep_files(restore: Mapping[str, Callable[[], bool]]) -> None:
    """Restore files periodically until cancelled; a failure is logged once, until the file has been restored.

    Each function of ``restore`` writes its file if that is missing or changed, and returns whether it did.
    """
    failures: dict[str, str] = {}
    while True:
        for name, restore_file in restore.items():
            try:
                restored = await asyncio.to_thread(restore_file)
            except (OSError, RunnerError) as exc:
                if failures.get(name) != str(exc):
                    failures[name] = str(exc)
                    problem = "was deleted or changed and cannot be written"
                    logger.warning("%s %s: %s; make room or fix its folder", name, problem, exc)
            else:
                failures.pop(name, None)
                if restored:
                    logger.warning("%s was deleted or changed while the node runs; it was written again", name)
        await asyncio.sleep(FILE_CHECK_INTERVAL_S)
