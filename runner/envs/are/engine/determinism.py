"""Removes chance from ARE: simulated time, seeded ids, fixed names of temporary files, and facts about files.

``install`` runs before ARE is imported, so that ARE's modules take over the replacements; ``reset_chance`` runs in
the fork that plays an episode, and gives every episode the same start.
"""

from __future__ import annotations

import datetime as real_datetime
import itertools
import os
import random
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable
from types import ModuleType
from typing import Any

_SEED = 0
DEFAULT_START = 1_735_689_600.0
"""Simulated time of a scenario that starts "now": 2025-01-01 00:00:00 UTC."""
_real_time = time.time
_loaded_at = _real_time()
"""When this module was loaded, so before any scenario: a scenario whose start is later starts "now"."""


class SimulatedClock:
    """The time that an episode sees: seconds since the epoch; None outside episodes, where the real time counts."""

    def __init__(self) -> None:
        self.now: float | None = None

    def time(self) -> float:
        return _real_time() if self.now is None else self.now

    def advance(self, seconds: float) -> None:
        self.now = self.time() + max(0.0, seconds)


CLOCK = SimulatedClock()
_ids = random.Random(_SEED)


def install() -> None:
    time.time = CLOCK.time
    uuid.uuid4 = lambda: uuid.UUID(int=_ids.getrandbits(128), version=4)


class SimulatedDatetime(real_datetime.datetime):
    """Stands for ``datetime`` in patched modules.

    There, ``isinstance(value, datetime)`` is False for a real one, such as a module that is not patched returns.
    """

    @classmethod
    def now(cls, tz: real_datetime.tzinfo | None = None) -> SimulatedDatetime:
        return cls.fromtimestamp(CLOCK.time(), tz)

    @classmethod
    def utcnow(cls) -> SimulatedDatetime:
        utc = real_datetime.timezone.utc  # noqa: UP017 - ARE also runs on Python 3.10
        return cls.fromtimestamp(CLOCK.time(), utc).replace(tzinfo=None)

    @classmethod
    def today(cls) -> SimulatedDatetime:
        return cls.fromtimestamp(CLOCK.time())


def patch_modules(packages: Iterable[str]) -> None:
    """Give the loaded modules of some top-level packages the simulated ``datetime``."""
    shim = ModuleType("datetime")
    vars(shim).update(vars(real_datetime))
    vars(shim)["datetime"] = SimulatedDatetime
    chosen = set(packages)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in chosen:
            for attribute, value in list(vars(module).items()):
                if value is real_datetime.datetime:
                    setattr(module, attribute, SimulatedDatetime)
                elif value is real_datetime:
                    setattr(module, attribute, shim)


def patch_time_manager(time_manager: Any) -> None:  # noqa: ANN401 - ARE's class
    """Give ARE's time manager the simulated time.

    Its pause stops the real time, which does not pass here; so it only sets the flag.
    """
    time_manager.add_offset = lambda self, offset: CLOCK.advance(offset)
    time_manager.pause = lambda self: setattr(self, "is_paused", True)
    time_manager.resume = lambda self: setattr(self, "is_paused", False)


def patch_file_system(file_system: Any) -> None:  # noqa: ANN401 - fsspec's class
    """Let fsspec's ``LocalFileSystem`` list files by name, and report nothing that depends on machine, user or time."""
    info, ls = file_system.info, file_system.ls

    def stable_info(self: Any, path: Any, **options: Any) -> dict[str, Any]:  # noqa: ANN401
        found: dict[str, Any] = info(self, path, **options)
        found |= {"created": DEFAULT_START, "mtime": DEFAULT_START, "uid": 0, "gid": 0, "ino": 0, "nlink": 1}
        return found | {"size": 0} if found["type"] == "directory" else found

    def sorted_ls(self: Any, path: Any, detail: bool = False, **options: Any) -> list[Any]:  # noqa: ANN401
        listed: list[Any] = ls(self, path, detail=detail, **options)
        return sorted(listed, key=lambda item: str(item["name"] if isinstance(item, dict) else item))

    file_system.info, file_system.ls = stable_info, sorted_ls


def simulated_start(start_time: float | None) -> float:
    """Return the start of a scenario: ``DEFAULT_START`` if it is the real time at which its class was defined."""
    start = float(start_time or 0)
    return DEFAULT_START if _loaded_at <= start <= _real_time() else start


def reset_chance(scratch: str) -> None:
    """Give this process the seeds, the time and the names of temporary files with which every episode starts.

    Temporary files are created in the folder ``scratch``.
    """
    os.umask(0o022)  # an agent sees the modes of new files, which would depend on the umask of the user
    _ids.seed(_SEED)
    random.seed(_SEED)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(_SEED)
    tempfile.tempdir = scratch
    tempfile._name_sequence = (f"{number:08d}" for number in itertools.count())  # type: ignore[attr-defined]
    CLOCK.now = DEFAULT_START
