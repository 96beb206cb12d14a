"""The clock of the runner: monotonic seconds for durations, and UTC time stamps; tests replace the clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class Clock:
    """Source of durations (``monotonic``, in seconds) and of time stamps (``now``, in UTC)."""

    monotonic: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = _utc_now
