"""Faults of the test endpoint: their kinds and frequency, and the random choice of affected requests."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from typing import Self

import msgspec

from runner.errors import ConfigError
from runner.util.display_text import one_line

FAULT_KINDS = {
    "drop": "close the connection after the headers",
    "drip": "send the reply byte by byte",
    "empty-choices": "send a completion without choices",
    "hang": "send nothing until the client disconnects",
    "huge": "send 10 MB of text",
    "invalid-json": "send malformed JSON",
    "truncated": "close the connection after half of the reply",
    "wrong-type": "send a web page",
}
"""Kinds of faults and their meaning. A status from 400 to 599 is also a kind; 429 and 503 have ``Retry-After``."""

_STATUS = re.compile(r"[45][0-9]{2}")
_SPEC = re.compile(r"(?P<kind>[a-z0-9-]+?)(?::(?P<share>[0-9]*\.?[0-9]+))?(?:x(?P<times>[1-9][0-9]{0,6}))?")


class Fault(msgspec.Struct, frozen=True):
    """A kind of fault, the share of requests that it affects (0 to 1), and the maximum number of them (None: all)."""

    kind: str
    share: float = 1.0
    times: int | None = None

    @classmethod
    def parse(cls, spec: str) -> Self:
        """Parse a fault of the command line: ``KIND``, ``KIND:SHARE``, ``KINDxTIMES`` or ``KIND:SHARExTIMES``.

        Raises:
            ConfigError: the text has another form, or the kind is unknown.
        """
        match = _SPEC.fullmatch(spec)
        share = float(match["share"] or 1) if match else 2.0
        if match is None or share > 1:
            raise ConfigError(
                f"{one_line(spec)!r} is not a valid fault; examples: 429:0.1 (a share), 500x2 (the first two), hang"
            )
        check_fault_kind(match["kind"])
        return cls(match["kind"], share, int(match["times"]) if match["times"] else None)


class Behavior(msgspec.Struct, frozen=True, kw_only=True):
    """Delays and faults of the test endpoint.

    Attributes:
        latency_s: seconds before each reply.
        token_latency_s: seconds between the tokens of a streamed reply.
        faults: possible faults; a request gets the first fault that the random choice hits, or no fault.
        seed: random seed for the choice of the affected requests.
        retry_after_s: seconds in the ``Retry-After`` header of errors with status 429 or 503.
        drip_s: seconds between two bytes of a reply with the fault ``drip``.
    """

    latency_s: float = 0.0
    token_latency_s: float = 0.0
    faults: tuple[Fault, ...] = ()
    seed: int = 0
    retry_after_s: float = 1.0
    drip_s: float = 1.0


class FaultInjector:
    """Chooses at random which requests get which fault."""

    def __init__(self, faults: Iterable[Fault], seed: int) -> None:
        """Create an injector; with the same seed and faults, it makes the same choices."""
        self._remaining = [(fault, fault.times) for fault in faults]
        self._random = random.Random(seed)

    def next_fault(self) -> str | None:
        """Return the kind of fault for the next request; None if the request gets no fault."""
        for index, (fault, remaining) in enumerate(self._remaining):
            if remaining != 0 and self._random.random() < fault.share:
                self._remaining[index] = (fault, None if remaining is None else remaining - 1)
                return fault.kind
        return None


def fault_status(kind: str) -> int | None:
    """Return the HTTP status if the kind of fault is a status, such as ``503``; else None."""
    return int(kind) if _STATUS.fullmatch(kind) else None


def check_fault_kind(kind: str) -> None:
    """Check that a kind of fault exists.

    Raises:
        ConfigError: the kind is unknown; the message lists the known kinds.
    """
    if kind not in FAULT_KINDS and fault_status(kind) is None:
        raise ConfigError(
            f"{one_line(kind)!r} is not a kind of fault; valid: a status from 400 to 599, {', '.join(FAULT_KINDS)}"
        )
