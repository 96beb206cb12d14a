"""Time zones of time stamps, and the times encoded in ULIDs.

The ULID library is not used here because its import is slow.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

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
