"""How a node stops: what is played ends, then what is not sent yet is sent; neither takes for ever."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from runner.errors import catch_foreign
from runner.node.batch_runner import BatchRunner
from runner.publish.publisher import Publisher

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 15.0
"""Seconds for the running steps to end, and then for the last events to be sent."""

STALL_TIMEOUT_S = 3.0
"""Seconds in which no event arrived anywhere, after which the rest is left to the next node."""

JOIN_POLL_S = 0.2


async def stop_batches(batch_runner: BatchRunner, is_draining: Callable[[], bool], immediate: asyncio.Event) -> None:
    """Play what is queued as long as ``is_draining`` says so, then let the running steps end, unless it is ``immediate``."""
    if is_draining():
        batch_runner.drain()
    stopped: float | None = None
    while True:
        if stopped is None and not is_draining():
            batch_runner.stop()
            stopped = time.monotonic()
        if await asyncio.to_thread(batch_runner.join, JOIN_POLL_S):
            return
        if stopped is not None and (immediate.is_set() or time.monotonic() - stopped > STOP_TIMEOUT_S):
            logger.warning("a step did not end in time; its episode is in the journal")
            return


async def publish_remaining(publisher: Publisher, immediate: asyncio.Event) -> None:
    """Wait for what is not sent yet, as long as something arrives; what does not waits in the outbox."""
    sending = asyncio.create_task(publisher.wait_until_drained(STOP_TIMEOUT_S, stall_timeout_s=STALL_TIMEOUT_S))
    interrupted = asyncio.create_task(immediate.wait())
    done, pending = await asyncio.wait({sending, interrupted}, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    for task in done:
        task.result()


RETRY_S = 1.0
"""Seconds until work that failed is begun again."""


async def run_with_restarts(name: str, create: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Do something until it is done, however often it fails; each failure is logged."""
    task = asyncio.current_task()
    done = False

    def report(exc: BaseException) -> None:
        while isinstance(exc, BaseExceptionGroup):
            exc = exc.exceptions[0]
        logger.warning("%s failed and begins again: %s: %s", name, type(exc).__name__, exc)

    while not done and not (task is not None and task.cancelling()):
        with catch_foreign(report):
            await asyncio.create_task(create())  # its own: a TaskGroup leaves marks of a cancellation on its task
            done = True
        if not done:
            await asyncio.sleep(RETRY_S)
