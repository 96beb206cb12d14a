"""How long to wait before asking again."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

ROUNDS = 3
"""How often, at most, one inference goes through the chain."""
FIRST_PAUSE_S = 0.5
MAX_RETRY_AFTER_S = 3600.0


def pause_s(round: int, uniform: Callable[[float, float], float]) -> float:
    """Seconds before a round, the second one being 1: doubled each time, and half of it left to chance."""
    longest = FIRST_PAUSE_S * 2.0 ** (round - 1)
    return uniform(longest / 2, longest)


def retry_after_s(header: str | None, now: datetime) -> float | None:
    """Seconds that a ``Retry-After`` header asks for, a number or a date in any form; None: for nothing."""
    if header is None:
        return None
    try:
        seconds = _until(header, now) if ":" in header else float(header)
    except (ValueError, OverflowError):
        return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_S) if math.isfinite(seconds) else None


def _until(header: str, now: datetime) -> float:
    date = parsedate_to_datetime(header)
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now.timestamp()
