"""What a node does beside playing, which never ends it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from runner.errors import boundary

logger = logging.getLogger(__name__)

RETRY_S = 1.0
"""Seconds until work that failed is begun again."""


async def kept_going(what: str, begin: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Do something until it is done, however often it fails; each failure is logged."""
    task = asyncio.current_task()
    done = False

    def report(exc: BaseException) -> None:
        while isinstance(exc, BaseExceptionGroup):
            exc = exc.exceptions[0]
        logger.warning("%s failed and begins again: %s: %s", what, type(exc).__name__, exc)

    while not done and not (task is not None and task.cancelling()):
        with boundary(report):
            await asyncio.create_task(begin())  # its own: a TaskGroup leaves marks of a cancellation on its task
            done = True
        if not done:
            await asyncio.sleep(RETRY_S)
