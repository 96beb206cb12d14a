"""Estimates how far the clocks of message senders are from the clock of the NATS server."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from itertools import chain, islice
from typing import Final, NamedTuple

import msgspec

from agentgym_tui.state.normalize import clip_name
from runner.subscribe.buffer import RawMessage

MAX_SENDERS: Final = 200
N_SAMPLES: Final = 20
MAX_CANDIDATES: Final = 50
"""Largest number of messages examined to find one that can be sampled."""

MAX_DECODED_BYTES: Final = 512 * 1024
"""Largest live message that is decoded, in bytes; a node sends no larger message."""

_LIVE_PREFIX: Final = "agentgym.live."
_GOLDEN_RATIO: Final = 0.618
"""Fractional part of the golden ratio; its multiples, modulo 1, are spread evenly between 0 and 1."""


class ClockSkew(NamedTuple):
    """Difference between the clock of a message sender and the clock of the NATS server.

    Attributes:
        sender: name of the sender.
        ahead_s: seconds by which the clock of the sender is ahead. A negative value means that the clock is behind,
            or that all sampled messages were delayed.
    """

    sender: str
    ahead_s: float


class _TimedItem(msgspec.Struct):
    at: datetime


class _LiveHeader(msgspec.Struct):
    node: str
    items: list[_TimedItem]


class ClockSkewEstimator:
    """Estimates the clock skew of each sender from the time stamps of its messages.

    A sample is the sender's time of a message minus the server's time. The estimate is the largest recent sample of
    the sender, because that message took the least time to arrive.
    """

    def __init__(self) -> None:
        self._samples: dict[str, deque[float]] = {}
        self._n_calls = 0

    def sample(self, messages: Sequence[RawMessage]) -> None:
        """Take one sample from the first suitable message: stored by a stream, and stamped by its sender.

        Each call starts its search at another position of ``messages``. Otherwise, where the messages of several
        senders always arrive in the same order, only the first sender would be sampled.
        """
        self._n_calls += 1
        first = int(self._n_calls * _GOLDEN_RATIO % 1 * len(messages))
        for message in islice(chain(messages[first:], messages[:first]), MAX_CANDIDATES):
            if message.time is None:
                continue
            with contextlib.suppress(ValueError, TypeError, OverflowError, RecursionError):
                sender, sent = _sender_and_time(message)
                if sent is not None:
                    self._add(clip_name(sender), (sent - message.time).total_seconds())
                    return

    @property
    def skews(self) -> list[ClockSkew]:
        """Clock skew of each sender, sorted by absolute value, the largest first."""
        skews = [ClockSkew(sender, max(samples)) for sender, samples in self._samples.items()]
        return sorted(skews, key=lambda skew: -abs(skew.ahead_s))

    def _add(self, sender: str, ahead_s: float) -> None:
        if sender not in self._samples and len(self._samples) >= MAX_SENDERS:
            del self._samples[next(iter(self._samples))]
        self._samples.setdefault(sender, deque(maxlen=N_SAMPLES)).append(ahead_s)


def _sender_and_time(message: RawMessage) -> tuple[str, datetime | None]:
    """Return the sender of a message and its sending time; the time is None if the message carries none.

    Raises:
        ValueError: the content cannot be decoded. ``TypeError``, ``OverflowError`` and ``RecursionError`` are possible
            for the same reason.
    """
    if (sent := message.headers.get("ce-time")) is not None:
        return message.headers.get("ce-source", ""), datetime.fromisoformat(sent)
    if not message.subject.startswith(_LIVE_PREFIX) or len(message.payload) > MAX_DECODED_BYTES:
        return "", None
    batch = _DECODER.decode(message.payload)
    return batch.node, batch.items[-1].at if batch.items else None


_DECODER = msgspec.json.Decoder(_LiveHeader)
