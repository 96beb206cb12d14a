"""The one seam to time: monotonic seconds for durations, UTC for display."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class Clock:
    """Where durations (``monotonic``, seconds) and time stamps (``now``, UTC) come from."""

    monotonic: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = _utc_now
