"""Receives the requests of a service: rejects invalid ones at once, and answers the others fairly, one at a time.

Everyone on the bus can send requests, in any number and with any reply subject. So invalid requests are rejected in
the event loop and cost no thread, senders that wait are served in turn, and replies go to inboxes only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import NamedTuple

from nats.aio.msg import Msg

from runner.bus.reply_subjects import is_inbox, sender_of
from runner.bus.request_limits import FairQueue, LogThrottle, ReplyBudget
from runner.errors import catch_foreign, log_failure
from runner.util.display_text import one_line

logger = logging.getLogger(__name__)

MAX_WAITING_PER_SENDER = 100
MAX_WAITING = 300


class RequestHandler(NamedTuple):
    """Handles the requests of a service.

    Attributes:
        find_problem: returns why a request is invalid, or None; called in the event loop, so it takes microseconds.
        handle: returns the reply to a valid request; called in a worker thread.
    """

    find_problem: Callable[[bytes], BaseException | None]
    reject: Callable[[bytes, BaseException | None], bytes]
    handle: Callable[[bytes], bytes]


class RequestServer:
    """Takes the requests of a subscription and answers them.

    Args:
        reserved: inboxes that never receive a reply, because the service publishes other messages there.
    """

    def __init__(self, handler: RequestHandler, reserved: Collection[str] = ()) -> None:
        self._handler = handler
        self._reserved = frozenset(reserved)
        self._waiting: FairQueue[Msg] = FairQueue(max_per_sender=MAX_WAITING_PER_SENDER, max_total=MAX_WAITING)
        self._arrived = asyncio.Event()
        self._budget = ReplyBudget()
        self._ignored, self._unanswered = LogThrottle(), LogThrottle()

    async def on_message(self, message: Msg) -> None:
        """Add a request to the queue, reject it, or ignore it if its reply subject is not an inbox."""
        with catch_foreign(log_failure(logger, "receiving a request")):  # nats-py would swallow the exception
            if message.reply and (not is_inbox(message.reply) or message.reply in self._reserved):
                self._log_ignored(message.reply)
                return
            problem = self._handler.find_problem(message.data)
            if problem is not None:
                await self._reject(message, problem)
            elif (without_room := self._waiting.add(sender_of(message.reply), message)) is not None:
                await self._reject(without_room, None)
            self._arrived.set()

    async def run(self) -> None:
        while True:
            await self._arrived.wait()
            while self._waiting:
                with catch_foreign(log_failure(logger, "answering a request")):
                    await self._answer(self._waiting.pop())
            self._arrived.clear()

    async def _reject(self, message: Msg, problem: BaseException | None) -> None:
        if not self._budget.allows(sender_of(message.reply)):
            self._log_unanswered()
        elif message.reply:
            await message.respond(self._handler.reject(message.data, problem))

    async def _answer(self, message: Msg) -> None:
        reply = await asyncio.to_thread(self._handler.handle, message.data)
        if message.reply:
            await message.respond(reply)

    def _log_ignored(self, reply: str) -> None:
        if n_ignored := self._ignored.count():
            logger.warning(
                "control requests ignored: %d; the last reply subject, %s, is no inbox (see docs/events.md)",
                n_ignored,
                one_line(reply, 80),
            )

    def _log_unanswered(self) -> None:
        if n_unanswered := self._unanswered.count():
            logger.warning("control requests dropped without a reply: %d; their senders send too many", n_unanswered)
