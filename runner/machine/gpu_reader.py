"""The protocol of the readers of GPUs, and what they share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Protocol, TypeVar

from runner.errors import RunnerError, catch_foreign
from runner.types.machine import MAX_PROCESSES, GpuProcess, GpuState
from runner.util.display_text import one_line

MAX_NAME: Final = 80
"""Number of characters kept of a name that a driver or a process gives."""
_INITIAL_PID_NAMESPACE: Final = 0xEFFFFFFC
"""Inode of the first process namespace of a Linux kernel; every container has another one."""

_Value = TypeVar("_Value")


class GpuUnavailable(RunnerError):
    """No GPU can be read; the message is the cause, in words for the user."""


class GpuReader(Protocol):
    def read(self) -> list[GpuState]:
        """Return the present state of each GPU; a GPU that fails is ``lost`` and does not hide the others."""


def read_value(read: Callable[[], _Value]) -> _Value | None:
    values: list[_Value] = []
    with catch_foreign(lambda exc: None):  # the value is unknown
        values.append(read())
    return values[0] if values else None


def clean_name(name: object) -> str | None:
    """Return a name of a driver or process as one short line; None for an empty one."""
    text = name.decode(errors="replace") if isinstance(name, bytes) else str(name or "")
    return one_line(text[: 2 * MAX_NAME])[:MAX_NAME] or None


def largest(processes: Iterable[GpuProcess]) -> tuple[GpuProcess, ...]:
    return tuple(sorted(processes, key=lambda each: -(each.mem_used or 0))[:MAX_PROCESSES])


def process_name(pid: int) -> str | None:
    """Return the name of a process by an id of the driver.

    In a container, the driver's ids belong to the host, so they would name the wrong processes.
    """
    return clean_name(_name_of(pid)) if _sees_all_processes() else None


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def _sees_all_processes() -> bool:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == _INITIAL_PID_NAMESPACE
    except OSError:
        return False
