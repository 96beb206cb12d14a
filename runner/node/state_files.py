"""Keeps the files by which clients find a node: a deleted or changed file is written again while the node runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from runner.errors import RunnerError

logger = logging.getLogger(__name__)

CHECK_INTERVAL_S = 2.0
"""Seconds between two checks, as between two heartbeats."""


async def keep_files(restore: Mapping[str, Callable[[], bool]], *, interval_s: float = CHECK_INTERVAL_S) -> None:
    """Restore files periodically until cancelled; a failure is logged once, until the file has been restored.

    Args:
        restore: by file name, a function that writes the file if it is missing or changed, and returns whether it did.
        interval_s: seconds between two checks.
    """
    failures: dict[str, str] = {}
    while True:
        await asyncio.to_thread(_restore_all, restore, failures)
        await asyncio.sleep(interval_s)


def _restore_all(restore: Mapping[str, Callable[[], bool]], failures: dict[str, str]) -> None:
    for name, restore_file in restore.items():
        try:
            restored = restore_file()
        except (OSError, RunnerError) as exc:
            _report(failures, name, str(exc))
        else:
            failures.pop(name, None)
            if restored:
                logger.warning("%s was deleted or changed while the node runs; it was written again", name)


def _report(failures: dict[str, str], name: str, reason: str) -> None:
    if failures.get(name) != reason:
        failures[name] = reason
        logger.warning("%s was deleted or changed and cannot be written: %s; make room or fix its folder", name, reason)
