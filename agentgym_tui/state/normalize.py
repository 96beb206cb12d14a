"""Normalizes values from outside: bounded texts and numbers, comparable times, times in ULIDs, memory of JSON values.

Messages may carry texts of any length and integers of thousands of digits; the state keeps bounded ones. Times in
ULIDs are decoded here because the import of the ULID library is slow.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

MAX_ID_CHARS: Final = 200
"""Longest id; a longer text is not an id."""

MAX_NAME_CHARS: Final = 200
"""Longest name of an environment, agent, model or node."""

MAX_CAUSE_CHARS: Final = 4_000
"""Longest cause of a failure."""

MAX_ERROR_CHARS: Final = 64 * 1024
"""Longest error message or traceback of an episode."""

MAX_COUNT: Final = 10**9
"""Largest count."""

_OBJECT_BYTES: Final = 64
"""Approximate memory of an object beside its contents."""


def clip_name(text: str) -> str:
    """Return the name, cut to ``MAX_NAME_CHARS``."""
    return text[:MAX_NAME_CHARS]


def clip_names(texts: Iterable[str], limit: int = 200) -> list[str]:
    """Return the first ``limit`` distinct names."""
    return list(dict.fromkeys(map(clip_name, texts)))[:limit]


def clip_optional(text: str | None, limit: int = MAX_NAME_CHARS) -> str | None:
    """Return the text cut to ``limit`` characters; None for None."""
    return None if text is None else text[:limit]


def clamp_count(number: int) -> int:
    """Return the count as a number from 0 to ``MAX_COUNT``; JSON allows integers of thousands of digits."""
    return max(0, min(number, MAX_COUNT))


def clamp_finite(number: float) -> float:
    """Return the number, or the largest float of its sign where a sum has overflowed."""
    return number if math.isfinite(number) else math.copysign(sys.float_info.max, number or 0.0)


def json_size(value: object) -> int:
    """Return the approximate memory of a JSON value in bytes."""
    total, pending = 0, [value]
    while pending:
        each = pending.pop()
        if isinstance(each, str):
            total += len(each) + _OBJECT_BYTES
        elif isinstance(each, dict):
            total += _OBJECT_BYTES
            pending += each
            pending += each.values()
        elif isinstance(each, list):
            total += _OBJECT_BYTES
            pending += each
        else:
            total += _OBJECT_BYTES // 2
    return total


_DIGITS: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

_VALUES: Final = {digit: value for value, digit in enumerate(_DIGITS)}

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def as_aware(time: datetime) -> datetime:
    """Return a time that can be compared with others; without a zone it counts as UTC."""
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def ulid_time(ulid: str) -> datetime | None:
    """Return when a ULID was made, by its first ten characters; None where the text is no ULID."""
    head = ulid[:10].upper()
    if len(head) < 10 or not all(digit in _VALUES for digit in head):
        return None
    milliseconds = 0
    for digit in head:
        milliseconds = milliseconds * 32 + _VALUES[digit]
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


def ulid_prefix(time: datetime) -> str:
    """Return the first ten characters of a ULID made at ``time``."""
    milliseconds = max((time - _EPOCH) // timedelta(milliseconds=1), 0)
    return "".join(_DIGITS[milliseconds >> shift & 31] for shift in range(45, -1, -5))
