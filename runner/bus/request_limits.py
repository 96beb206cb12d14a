"""Limits of a service: replies to invalid requests per sender, waiting requests per sender, and repeated log lines."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")

MAX_SENDERS = 1000
"""Maximum number of senders that a budget remembers; the one that was inactive for the longest time is forgotten."""


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
