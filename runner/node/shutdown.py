"""Stop of a node: end its batches and publish the remaining events in limited time. Also: restart of services."""

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
"""Maximum seconds to wait for the running steps, and separately for publishing the remaining events."""

STALL_TIMEOUT_S = 3.0
"""Seconds without a delivered event after which publishing ends; the outbox keeps the remaining events."""

JOIN_POLL_S = 0.2

RETRY_S = 1.0
"""Seconds until a failed service restarts."""


async def stop_batches(batch_runner: BatchRunner, is_draining: Callable[[], bool], immediate: asyncio.Event) -> None:
    """Let the batch runner stop, and wait until it has.

    While ``is_draining()`` is true, it continues to run the queued batches. After that it has ``STOP_TIMEOUT_S``
    seconds to end the running steps, or no time if ``immediate`` is set.
    """
    if is_draining():
        batch_runner.drain()
    stopped_at: float | None = None
    while True:
        if stopped_at is None and not is_draining():
            batch_runner.stop()
            stopped_at = time.monotonic()
        if await asyncio.to_thread(batch_runner.join, JOIN_POLL_S):
            return
        if stopped_at is not None and (immediate.is_set() or time.monotonic() - stopped_at > STOP_TIMEOUT_S):
            logger.warning("a step did not end in time; its episode is recovered from the journal at the next start")
            return


async def publish_remaining(
    publisher: Publisher,
    immediate: asyncio.Event,
    *,
    timeout_s: float = STOP_TIMEOUT_S,
    stall_timeout_s: float = STALL_TIMEOUT_S,
) -> None:
    """Publish the events in the outbox until it is empty or ``immediate`` is set, for at most ``timeout_s`` seconds.

    Publishing also ends after ``stall_timeout_s`` seconds without a delivery. Undelivered events stay in the outbox.
    """
    sending = asyncio.create_task(publisher.wait_until_drained(timeout_s, stall_timeout_s=stall_timeout_s))
    interrupted = asyncio.create_task(immediate.wait())
    done, pending = await asyncio.wait({sending, interrupted}, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    for task in done:
        task.result()


async def run_with_restarts(
    name: str, create: Callable[[], Coroutine[Any, Any, None]], *, retry_s: float = RETRY_S
) -> None:
    """Log each exception and restart the service ``retry_s`` seconds later."""
    task = asyncio.current_task()
    done = False

    def report(exc: BaseException) -> None:
        while isinstance(exc, BaseExceptionGroup):
            exc = exc.exceptions[0]
        logger.warning("%s failed and restarts: %s: %s", name, type(exc).__name__, exc)

    while not done and not (task is not None and task.cancelling()):
        with catch_foreign(report):
            # A separate task, because a TaskGroup leaves its cancellation state on the task that runs it.
            await asyncio.create_task(create())
            done = True
        if not done:
            await asyncio.sleep(retry_s)
