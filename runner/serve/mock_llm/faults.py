"""What can be made to go wrong with replies, how often, and which reply it hits."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from typing import Self

import msgspec

from runner.errors import ConfigError
from runner.util.text import one_line

FAULT_KINDS = {
    "drop": "the connection is closed after the headers",
    "drip": "the reply comes byte by byte",
    "empty-choices": "a completion without choices",
    "hang": "nothing comes until the client leaves",
    "huge": "10 MB of text",
    "invalid-json": "what should be JSON is cut in two and continued with something else",
    "truncated": "the connection is closed after half of the reply",
    "wrong-type": "a web page",
}
"""Beside these, a status from 400 to 599 is an error of OpenAI's form; 429 and 503 come with ``Retry-After``."""

_STATUS = re.compile(r"[45][0-9]{2}")
_SPEC = re.compile(r"(?P<kind>[a-z0-9-]+?)(?::(?P<share>[0-9]*\.?[0-9]+))?(?:x(?P<times>[1-9][0-9]{0,6}))?")


class Fault(msgspec.Struct, frozen=True):
    """A fault of ``kind`` for a ``share`` of the requests (0 to 1), and for ``times`` of them at most."""

    kind: str
    share: float = 1.0
    times: int | None = None

    @classmethod
    def read(cls, spec: str) -> Self:
        """A fault as the command line names it: ``KIND``, ``KIND:SHARE``, ``KINDxTIMES`` or ``KIND:SHARExTIMES``.

        Raises:
            ConfigError: with what can be given.
        """
        match = _SPEC.fullmatch(spec)
        share = float(match["share"] or 1) if match else 2.0
        if match is None or share > 1:
            raise ConfigError(f"{one_line(spec)!r} is no fault; as in 429:0.1 (a share), 500x2 (the first two), hang")
        check_fault_kind(match["kind"])
        return cls(match["kind"], share, int(match["times"]) if match["times"] else None)


class Behavior(msgspec.Struct, frozen=True, kw_only=True):
    """How the endpoint answers, whatever it answers.

    Attributes:
        latency_s: seconds before each reply.
        token_latency_s: seconds between the tokens of a streamed reply.
        faults: at most one hits a request: the first of them that comes up.
        seed: decides which requests are hit.
        retry_after_s: what the ``Retry-After`` of 429 and 503 says.
        drip_s: seconds between the bytes of a dripping reply.
    """

    latency_s: float = 0.0
    token_latency_s: float = 0.0
    faults: tuple[Fault, ...] = ()
    seed: int = 0
    retry_after_s: float = 1.0
    drip_s: float = 1.0


class FaultInjector:
    """Decides which requests are hit."""

    def __init__(self, faults: Iterable[Fault], seed: int) -> None:
        """Begin to count."""
        self._left = [(fault, fault.times) for fault in faults]
        self._random = random.Random(seed)

    def next(self) -> str | None:
        """The kind of fault that hits the next request, None where none does."""
        for index, (fault, left) in enumerate(self._left):
            if left != 0 and self._random.random() < fault.share:
                self._left[index] = (fault, None if left is None else left - 1)
                return fault.kind
        return None


def fault_status(kind: str) -> int | None:
    """The status that a fault of that kind answers with, None where it is none of that sort."""
    return int(kind) if _STATUS.fullmatch(kind) else None


def check_fault_kind(kind: str) -> None:
    """Refuse what is no kind of fault.

    Raises:
        ConfigError: with the kinds there are.
    """
    if kind not in FAULT_KINDS and fault_status(kind) is None:
        raise ConfigError(
            f"{one_line(kind)!r} is no kind of fault; there are a status from 400 to 599, {', '.join(FAULT_KINDS)}"
        )
