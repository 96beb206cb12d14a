"""How a node stops: what is played ends, then what is not sent yet is sent; neither takes for ever."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from runner.node.batch_runner import Player
from runner.publish.publisher import Publisher

logger = logging.getLogger(__name__)

STOP_S = 15.0
"""Seconds for the running steps to end, and then for the last events to be sent."""

STUCK_S = 3.0
"""Seconds in which no event arrived anywhere, after which the rest is left to the next node."""

JOIN_S = 0.2


async def end_playing(player: Player, drains: Callable[[], bool], at_once: asyncio.Event) -> None:
    """Play what is queued as long as ``drains`` says so, then let the running steps end, unless it is ``at_once``."""
    if drains():
        player.drain()
    stopped: float | None = None
    while True:
        if stopped is None and not drains():
            player.stop()
            stopped = time.monotonic()
        if await asyncio.to_thread(player.join, JOIN_S):
            return
        if stopped is not None and (at_once.is_set() or time.monotonic() - stopped > STOP_S):
            logger.warning("a step did not end in time; its episode is in the journal")
            return


async def send_rest(publisher: Publisher, at_once: asyncio.Event) -> None:
    """Wait for what is not sent yet, as long as something arrives; what does not waits in the outbox."""
    sending = asyncio.create_task(publisher.drained(STOP_S, patience_s=STUCK_S))
    told = asyncio.create_task(at_once.wait())
    done, pending = await asyncio.wait({sending, told}, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    for task in done:
        task.result()
