"""What the time of steps was spent on: seconds by cause, and their shares in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, Protocol, TypeAlias

import msgspec

from runner.types.data import skipped_endpoints
from runner.types.phases import Phases

Cause: TypeAlias = Literal["queue", "prefill", "decode", "model", "environment", "endpoint", "own", "none"]
"""``model``: waiting for a model whose server gives no details; ``endpoint``: failures of endpoints."""

CAUSES: Final[tuple[Cause, ...]] = ("queue", "prefill", "decode", "model", "environment", "endpoint", "own")
NAMES: Final[Mapping[Cause, str]] = {
    "queue": "queue",
    "prefill": "prefill",
    "decode": "decode",
    "model": "other model time",
    "environment": "environment",
    "endpoint": "failed requests",
    "own": "own",
}


def percent_text(share: float, digits: int = 0) -> str:
    """Return a share, from 0 to 1, in percent; only none and all are ``0%`` and ``100%``, what is near is ``>99%``."""
    share, step = round(share, 9), 10.0 ** -(digits + 2)  # a sum that is all of it may lack a rounding error
    text, none, everything = (f"{each:.{digits}%}" for each in (share, 0.0, 1.0))
    if text == none and share > 0.0:
        return f"<{step:.{digits}%}"
    return f">{1.0 - step:.{digits}%}" if text == everything and share < 1.0 else text


class TimedStep(Protocol):
    """A step as files and the console have it."""

    @property
    def phases(self) -> Phases | None: ...

    @property
    def endpoint(self) -> str | None: ...

    @property
    def warnings(self) -> Sequence[str]:
        """Failures of endpoints before that answer, among others."""


class TimeShares(msgspec.Struct, kw_only=True):
    """Seconds of steps by cause; ``n`` steps have a split, and ``about`` is whether any of them is an estimate."""

    seconds: dict[Cause, float] = {}
    n: int = 0
    about: bool = False

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())

    def share(self, cause: Cause) -> float:
        return self.seconds.get(cause, 0.0) / self.total_s if self.total_s > 0.0 else 0.0

    def largest_first(self) -> list[tuple[Cause, float]]:
        """Those below half a percent are left out."""
        shares = [(cause, self.share(cause)) for cause in CAUSES]
        return sorted([each for each in shares if each[1] >= 0.005], key=lambda each: -each[1])

    def text(self) -> str:
        """Return the shares in words, e.g. ``decode about 61%, environment 30%, own 9%``; empty without any."""
        about = "about " if self.about else ""
        measured = ("environment", "own", "endpoint", "model")
        shares = self.largest_first()
        has_details = any(cause in ("queue", "prefill", "decode") for cause, _ in shares)
        names = NAMES if has_details else {**NAMES, "model": "model"}
        parts = [f"{names[cause]} {'' if cause in measured else about}{percent_text(share)}" for cause, share in shares]
        return ", ".join(parts)


def time_shares(steps: Iterable[TimedStep]) -> TimeShares:
    """Return the seconds of steps by cause; steps without a split do not count.

    Our own time of a step in which an endpoint failed counts as the endpoint's: it is that of the failed requests and
    of the waiting that follows them.
    """
    shares = TimeShares(seconds=dict.fromkeys(CAUSES, 0.0))
    for step in steps:
        phases = step.phases
        if phases is None:
            continue
        failed = bool(step.warnings) and bool(skipped_endpoints(step.endpoint, step.warnings))
        shares.n += 1
        shares.about = shares.about or phases.about
        added: dict[Cause, float] = {
            "queue": phases.queue or 0.0,
            "prefill": phases.prefill or 0.0,
            "decode": phases.decode or 0.0,
            "model": phases.unsplit,
            "environment": phases.env,
            "endpoint" if failed else "own": phases.own,
        }
        for cause, seconds in added.items():
            shares.seconds[cause] += seconds
    return shares
