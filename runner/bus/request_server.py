"""Receives the requests of a service: rejects invalid ones at once, and answers the others fairly, one at a time.

Everyone on the bus can send requests, in any number and with any reply subject. So invalid requests are rejected in
the event loop and cost no thread, senders that wait are served in turn, and replies go to inboxes only.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from typing import Generic, NamedTuple, TypeVar

from nats.aio.msg import Msg

from runner.bus.connection import NatsConnection
from runner.errors import catch_foreign, log_failure

logger = logging.getLogger(__name__)

MAX_WAITING_PER_SENDER = 100
MAX_WAITING = 300
LOG_INTERVAL_S = 60.0
MAX_REPLY_CHARS = 255
"""Maximum length of a reply subject; inboxes of NATS clients have fewer than 60 characters."""

_T = TypeVar("_T")
_INBOX = re.compile(r"(?:_INBOX(?:_[A-Za-z0-9_-]+)?|_R_)(?:\.[!-)+-\-/-=?-~]+)+")
"""An inbox: a first token, then at least one token of visible ASCII characters without ``.``, ``*`` and ``>``.

Clients with private inboxes use the prefix ``_INBOX.<name>`` or ``_INBOX_<name>``. A nats-server replaces the reply
subject of a request from another account by ``_R_.<token>.<token>`` (its "service import"), and maps the reply back.
"""

_NUID_PREFIX_CHARS = 12
"""Length of the part of a NUID that is the same in all NUIDs of a process (nats-io/nuid)."""


def is_inbox(subject: str) -> bool:
    """Return whether a reply subject is an inbox, which no event, live item, control request or stream API uses.

    The sender of a request chooses its reply subject freely; a reply to another subject would be a message in the name
    of the service.
    """
    return len(subject) <= MAX_REPLY_CHARS and _INBOX.fullmatch(subject) is not None


def sender_of(reply: str) -> str:
    """Return a key for the connection that sent a request; "" for a request without a reply subject.

    NATS does not reveal the connection of a message. Clients derive their inboxes from one NUID per process, so the
    beginning of the reply subject is the same in all requests of a connection.
    """
    first, _, rest = reply.partition(".")
    return f"{first}.{rest[:_NUID_PREFIX_CHARS]}" if rest else ""


class RefusalBudget:
    """Permits the replies to requests that are refused: a number per second, of which a sender gets a part.

    Requests may pretend to come from many senders, so the total counts, too.
    """

    PER_SENDER, TOTAL = 50, 100

    def __init__(self) -> None:
        self._second = 0
        self._sent: Counter[str] = Counter()

    def allows(self, sender: str) -> bool:
        if (second := int(time.monotonic())) != self._second:
            self._second, self._sent = second, Counter()
        allowed = self._sent[sender] < self.PER_SENDER and self._sent.total() < self.TOTAL
        self._sent.update([sender] if allowed else [])
        return allowed


class FairQueue(Generic[_T]):
    """Bounded queue that serves the senders in turn: one with many waiting requests does not delay the others."""

    def __init__(self, *, max_per_sender: int, max_total: int) -> None:
        self._max_per_sender = max_per_sender
        self._max_total = max_total
        self._waiting: dict[str, deque[_T]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, sender: str, request: _T) -> _T | None:
        """Append a request; return the request that has no room, or None.

        It is the new one if its sender has too many waiting requests. If all senders together have too many, it is the
        next one: requests that pretend to come from many senders must not keep out a new one.
        """
        if len(self._waiting.get(sender, ())) >= self._max_per_sender:
            return request
        self._waiting.setdefault(sender, deque()).append(request)
        return self.pop() if len(self) > self._max_total else None

    def pop(self) -> _T:
        sender = next(iter(self._waiting))
        requests = self._waiting.pop(sender)
        request = requests.popleft()
        if requests:
            self._waiting[sender] = requests  # behind the others
        return request


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
    """Answers the requests of a subscription, but never on the ``reserved`` inboxes, where the service publishes."""

    def __init__(self, connection: NatsConnection, handler: RequestHandler, reserved: Collection[str] = ()) -> None:
        self._connection = connection
        self._handler = handler
        self._reserved = frozenset(reserved)
        self._waiting: FairQueue[Msg] = FairQueue(max_per_sender=MAX_WAITING_PER_SENDER, max_total=MAX_WAITING)
        self._arrived = asyncio.Event()
        self._budget = RefusalBudget()
        self._logged_at: dict[str, float] = {}

    async def on_message(self, message: Msg) -> None:
        """Add a request to the queue, reject it, or ignore it if its reply subject is not an inbox."""
        with catch_foreign(log_failure(logger, "receiving a request")):  # nats-py would swallow the exception
            if message.reply and (not is_inbox(message.reply) or message.reply in self._reserved):
                self._log("a control request was ignored: its reply subject is no inbox (see docs/data/events.md)")
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
                message = self._waiting.pop()
                with catch_foreign(log_failure(logger, "answering a request")):
                    reply = await asyncio.to_thread(self._handler.handle, message.data)
                    await self._connection.wait_connected()
                    await self._reply(message, reply)
            self._arrived.clear()

    async def _reject(self, message: Msg, problem: BaseException | None) -> None:
        if not self._budget.allows(sender_of(message.reply)):
            self._log("a control request was dropped without a reply: its sender sends too many")
        elif message.reply:
            await self._reply(message, self._handler.reject(message.data, problem))

    async def _reply(self, message: Msg, reply: bytes) -> None:
        if message.reply:
            await self._connection.client.publish(message.reply, reply)  # the request may have come by an earlier one

    def _log(self, text: str) -> None:
        """Log a line at most once a minute: anyone can send any number of requests."""
        now = time.monotonic()
        if now - self._logged_at.get(text, -math.inf) >= LOG_INTERVAL_S:
            self._logged_at[text] = now
            logger.warning("%s", text)
