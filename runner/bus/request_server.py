"""Receives the requests of a service: rejects invalid ones at once, and answers the others fairly, one at a time.

Everyone on the bus can send requests, in any number and with any reply subject. So invalid requests are rejected in
the event loop and cost no thread, senders that wait are served in turn, and replies go to inboxes only.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from typing import Generic, NamedTuple, TypeVar

from nats.aio.msg import Msg

from runner.errors import catch_foreign, log_failure
from runner.util.display_text import one_line

logger = logging.getLogger(__name__)

MAX_WAITING_PER_SENDER = 100
MAX_WAITING = 300
MAX_SENDERS = 1000
"""Maximum number of senders that a budget remembers; the one that was inactive for the longest time is forgotten."""
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


class TokenBucket:
    """Permits ``burst`` events at once and ``per_s`` events per second in the long run."""

    def __init__(self, burst: float, per_s: float, now: float) -> None:
        self._burst, self._per_s = burst, per_s
        self._tokens, self._updated_at = burst, now

    def take(self, now: float) -> bool:
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._updated_at) * self._per_s)
        self._updated_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class ReplyBudget:
    """Permits replies to invalid requests: a few per sender, and a limited number for all senders together.

    The limit for all senders holds for requests that pretend to come from many senders.
    """

    SENDER_BURST, SENDER_PER_S = 50, 10
    TOTAL_BURST, TOTAL_PER_S = 500, 100

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._total = TokenBucket(self.TOTAL_BURST, self.TOTAL_PER_S, monotonic())
        self._senders: OrderedDict[str, TokenBucket] = OrderedDict()

    def allows(self, sender: str) -> bool:
        now = self._monotonic()
        bucket = self._senders.pop(sender, None) or TokenBucket(self.SENDER_BURST, self.SENDER_PER_S, now)
        self._senders[sender] = bucket
        if len(self._senders) > MAX_SENDERS:
            self._senders.popitem(last=False)
        return bucket.take(now) and self._total.take(now)


class FairQueue(Generic[_T]):
    """Bounded queue that serves the senders in turn: one with many waiting requests does not delay the others."""

    def __init__(self, *, max_per_sender: int, max_total: int) -> None:
        self._max_per_sender = max_per_sender
        self._max_total = max_total
        self._waiting: OrderedDict[str, deque[_T]] = OrderedDict()
        self._n_waiting = 0

    def __len__(self) -> int:
        return self._n_waiting

    def add(self, sender: str, request: _T) -> _T | None:
        """Append a request; return the request that has no room, or None.

        It is the new one if its sender has too many waiting requests. If all senders together have too many, it is the
        next one: requests that pretend to come from many senders must not keep out a new one.
        """
        if len(self._waiting.get(sender, ())) >= self._max_per_sender:
            return request
        self._waiting.setdefault(sender, deque()).append(request)
        self._n_waiting += 1
        return self.pop() if self._n_waiting > self._max_total else None

    def pop(self) -> _T:
        sender, requests = next(iter(self._waiting.items()), ("", deque[_T]()))
        request = requests.popleft()
        self._n_waiting -= 1
        del self._waiting[sender]
        if requests:
            self._waiting[sender] = requests
        return request


class LogThrottle:
    def __init__(self, interval_s: float = 60.0, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._monotonic = monotonic
        self._n_events = 0
        self._logged_at: float | None = None

    def count(self) -> int:
        """Count an event; return the number of events since the last log line if one is due, else 0."""
        self._n_events += 1
        now = self._monotonic()
        if self._logged_at is not None and now - self._logged_at < self._interval_s:
            return 0
        n_events, self._n_events, self._logged_at = self._n_events, 0, now
        return n_events


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
