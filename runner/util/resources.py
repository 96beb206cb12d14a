"""Limits of this process: its open files, and exceptions that show that files, memory or threads ran out."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import sys
import threading
from typing import Final, Literal, TypeAlias, TypeGuard, get_args

from runner.errors import ConfigError, RunnerError, catch_foreign

Resource: TypeAlias = Literal["open files", "open files of the machine", "memory", "threads"]
_RESOURCES: Final = frozenset(get_args(Resource))
RESOURCES: Final = "resources"
"""``error.type`` of an episode that ended because files, memory or threads ran out."""
MAX_OPEN_FILES: Final = 1 << 20
"""Limit of open files that is set where the hard limit is higher or infinite.

Some programs close every descriptor that the limit allows before they start another program. The environment servers
of a node inherit the limit, and a billion descriptors would take them minutes.
"""
_LOWER_LIMITS: Final = (65_536, 10_240, 4_096)
"""Limits to try next; macOS refuses more than ``kern.maxfilesperproc``, whatever the hard limit is."""
_ERRNOS: Final[dict[int, Resource]] = {
    errno.EMFILE: "open files",
    errno.ENFILE: "open files of the machine",
    errno.ENOMEM: "memory",
}
_FORKING_MODULES: Final = frozenset({"subprocess", "multiprocessing.popen_fork", "multiprocessing.util"})
"""Modules whose ``BlockingIOError`` shows that the system starts no more processes."""
_LOADER_TEXTS: Final[dict[str, Resource]] = {
    "failed to map segment from shared object": "memory",
    **{os.strerror(number): shortage for number, shortage in _ERRNOS.items()},
}
"""Parts of the message of an ``ImportError`` from the loader of compiled modules, which gives no error number."""
_ADVICE: Final[dict[Resource, str]] = {
    "open files": "raise it with ulimit -n",
    "open files of the machine": "end other programs",
    "memory": "free memory",
    "threads": "raise the limits of processes with ulimit -u and of memory with ulimit -v",
}
_NO_THREAD: Final = "can't start new thread"
_MAX_CHAIN: Final = 100
"""Maximum number of linked exceptions to look at."""


class ResourceShortage(RunnerError):
    def __init__(self, resource: Resource, message: str) -> None:
        super().__init__(message)
        self.resource: Resource = resource


def open_file_limit() -> int:
    """Return the soft limit of open files of this process; ``sys.maxsize`` if there is none."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def raise_open_file_limit() -> int:
    """Raise the soft limit of open files to the hard one, at most to ``MAX_OPEN_FILES``; return the limit that applies.

    The limit is never lowered, and a system that refuses to raise it is no error.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    for limit in (highest, *_LOWER_LIMITS):
        if soft != resource.RLIM_INFINITY and soft < limit <= highest:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
                break
    return open_file_limit()


def require_open_files(needed: int, what: str) -> int:
    """Raise the limit of open files (``raise_open_file_limit``) and return it; ``what`` opens them.

    Raises ``ConfigError`` if the limit is below ``needed``.
    """
    limit = raise_open_file_limit()
    if limit < needed:
        raise ConfigError(f"{what} needs {needed} open files and the limit is {limit}; {_ADVICE['open files']}")
    return limit


def find_shortage(exc: BaseException) -> Resource | None:
    """Return what ran out according to an exception or one that led to it; None if nothing did. Never raises.

    A suppressed context (``raise … from None``) counts, too: it names the origin of the exception all the same.
    """
    found: list[Resource] = []
    with catch_foreign(lambda failure: None):
        pending, seen = [exc], set[int]()
        while pending and not found and len(seen) < _MAX_CHAIN:
            current = pending.pop()
            if id(current) in seen:
                continue
            seen.add(id(current))
            found += filter(None, [_shortage_of(current)])
            pending += [linked for linked in (current.__context__, current.__cause__) if linked is not None]
            pending += current.exceptions if isinstance(current, BaseExceptionGroup) else ()
    return found[0] if found else None


def _shortage_of(exc: BaseException) -> Resource | None:
    if isinstance(exc, ResourceShortage):
        return exc.resource
    if isinstance(exc, BlockingIOError):
        return "threads" if _raising_module(exc) in _FORKING_MODULES else None
    if isinstance(exc, OSError):
        return _ERRNOS.get(exc.errno or 0)
    if isinstance(exc, ImportError):
        return next((shortage for text, shortage in _LOADER_TEXTS.items() if text in str(exc)), None)
    if isinstance(exc, RuntimeError) and exc.args == (_NO_THREAD,):
        return "threads"
    return "memory" if isinstance(exc, MemoryError) else None


def _raising_module(exc: BaseException) -> str:
    name, trace = "", exc.__traceback__
    while trace is not None:
        name, trace = str(trace.tb_frame.f_globals.get("__name__")), trace.tb_next
    return name


def is_resource(text: str | None) -> TypeGuard[Resource]:
    """The text is from another process."""
    return text in _RESOURCES


def describe_shortage(shortage: Resource) -> str:
    limit = f" (the limit is {open_file_limit()})" if shortage == "open files" else ""
    return f"no more {shortage}{limit}; {_ADVICE[shortage]}, or lower the concurrency"


def file_advice(exc: BaseException, otherwise: str) -> str:
    """Return the next step after a file could not be used: ``otherwise`` unless open files or memory ran out.

    SQLite does not give the reason, so this checks whether another file can be opened.
    """
    shortage = find_shortage(exc)
    if shortage is None and not isinstance(exc, OSError):
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as failure:
            shortage = find_shortage(failure)
    return otherwise if shortage is None else describe_shortage(shortage)


class SpareResources:
    """Descriptors and memory kept for the moment at which they run out: after ``release``, results can be stored.

    There are fewer than ``n_files`` and ``n_bytes`` where the limits do not allow more.
    """

    def __init__(self, n_files: int, n_bytes: int = 0) -> None:
        self._lock = threading.Lock()
        self._descriptors: list[int] = []
        self._memory: bytes | None = None
        with contextlib.suppress(OSError, MemoryError):
            self._memory = bytes(n_bytes)  # zeroed pages use no memory of the machine until they are written
            for _ in range(n_files):
                self._descriptors.append(os.open(os.devnull, os.O_RDONLY))

    def release(self) -> None:
        """A second call does nothing."""
        with self._lock:
            self._memory = None
            while self._descriptors:
                os.close(self._descriptors.pop())


def usable_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
