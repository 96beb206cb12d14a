"""How far the clocks of those who send are from the server's."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from itertools import chain, islice
from typing import Final, NamedTuple

import msgspec

from agentgym_tui.state.limits import clip_name
from runner.subscribe.buffer import RawMessage

MAX_SENDERS: Final = 200
N_SAMPLES: Final = 20
MAX_CANDIDATES: Final = 50
"""Messages that are looked at for one sample."""

MAX_DECODED_BYTES: Final = 512 * 1024
"""Bytes of a message of live items; those of a node have no more."""

_LIVE_PREFIX: Final = "agentgym.live."
_GOLDEN_RATIO: Final = 0.618
"""Multiples of it are spread evenly, however few or many there are."""


class ClockSkew(NamedTuple):
    """By how many seconds a sender's clock is ahead of the server's; negative: it is behind, or all came late."""

    sender: str
    ahead_s: float


class _TimedItem(msgspec.Struct):
    at: datetime


class _LiveHeader(msgspec.Struct):
    node: str
    items: list[_TimedItem]


class ClockSkewEstimator:
    """What the messages that were looked at say; of a sender the one that took least time counts."""

    def __init__(self) -> None:
        """Nothing is known."""
        self._samples: dict[str, deque[float]] = {}
        self._n_calls = 0

    def sample(self, messages: Sequence[RawMessage]) -> None:
        """Look at one of some messages that a stream keeps and that says when it was sent.

        Each time it is one elsewhere among them: a sender may always be followed by another.
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
        """Of each sender, the largest first."""
        found = [ClockSkew(sender, max(samples)) for sender, samples in self._samples.items()]
        return sorted(found, key=lambda skew: -abs(skew.ahead_s))

    def _add(self, sender: str, ahead_s: float) -> None:
        if sender not in self._samples and len(self._samples) >= MAX_SENDERS:
            del self._samples[next(iter(self._samples))]
        self._samples.setdefault(sender, deque(maxlen=N_SAMPLES)).append(ahead_s)


def _sender_and_time(message: RawMessage) -> tuple[str, datetime | None]:
    """Who sent it when; raises ``ValueError`` and others for what does not say it."""
    if (sent := message.headers.get("ce-time")) is not None:
        return message.headers.get("ce-source", ""), datetime.fromisoformat(sent)
    if not message.subject.startswith(_LIVE_PREFIX) or len(message.payload) > MAX_DECODED_BYTES:
        return "", None
    batch = _DECODER.decode(message.payload)
    return batch.node, batch.items[-1].at if batch.items else None


_DECODER = msgspec.json.Decoder(_LiveHeader)
