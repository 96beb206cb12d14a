"""Query for messages of a bus: subject patterns, and the point in their history at which reading starts."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from runner.events.subjects import PATTERN

if TYPE_CHECKING:
    from runner.subscribe.messages import Since

HistoryStart: TypeAlias = Literal["now", "all"] | datetime | int
"""Where reading starts: at the next message, the first stored message, a time, or a sequence number of each stream."""

ALL_SUBJECTS: Final = (">",)
MAX_PATTERN_CHARS: Final = 255
"""Largest number of characters in a subject pattern."""

MAX_PATTERNS: Final = 16

_SEQUENCE: Final = re.compile(r"#?([0-9]{1,18})")
_AGE: Final = re.compile(r"([0-9]{1,6})([smhd])")
_CLOCK: Final = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_MAX_AGE: Final = timedelta(days=36_500)


class EventQuery(msgspec.Struct, frozen=True):
    """Query for messages of a bus.

    Attributes:
        patterns: subject patterns of the messages.
        start: where reading starts.
        episode: episode id that each message must contain; "" for all messages.
        is_history: whether the view stays at the first message and more is read only when the user scrolls.
    """

    patterns: tuple[str, ...] = ALL_SUBJECTS
    start: HistoryStart = "now"
    episode: str = ""
    is_history: bool = False


def resolve_start(start: HistoryStart, now: datetime) -> Since:
    """Return ``start`` in the form that a subscription takes: a time becomes the duration from that time to ``now``."""
    return max(now - start, timedelta()) if isinstance(start, datetime) else start


def parse_patterns(text: str) -> tuple[str, ...] | None:
    """Parse subject patterns that are separated by blanks or commas.

    Returns:
        The patterns; a pattern for all subjects where ``text`` is empty; None if a pattern is not valid.
    """
    return valid_patterns(text.replace(",", " ").split() or ALL_SUBJECTS)


def valid_patterns(patterns: list[str] | tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the patterns as a tuple; None if there are too many patterns or one of them is not valid."""
    is_valid = len(patterns) <= MAX_PATTERNS and all(
        len(p) <= MAX_PATTERN_CHARS and PATTERN.fullmatch(p) for p in patterns
    )
    return tuple(patterns) if is_valid else None


def parse_age(text: str) -> timedelta | None:
    """Return a duration of at most a century, such as ``30s``, ``10m`` or ``2d``; None if the text has another form."""
    age = _AGE.fullmatch(text)
    return None if age is None else min(timedelta(seconds=int(age[1]) * _SECONDS[age[2]]), _MAX_AGE)


def parse_start(text: str, now: datetime) -> HistoryStart | None:
    """Parse the typed start of a query.

    Args:
        text: ``all``, ``now``, a sequence number, a duration before now such as ``10m``, a clock time such as
            ``14:30``, or an ISO date with or without a time. A time without a zone is local time.
        now: the current time, with a zone.

    Returns:
        The start; None if ``text`` has none of these forms.
    """
    text = text.strip()
    if text in ("all", "now"):
        return "all" if text == "all" else "now"
    if (sequence := _SEQUENCE.fullmatch(text)) is not None:
        return int(sequence[1])
    if (age := parse_age(text)) is not None:
        return now - age
    try:
        if (clock := _CLOCK.fullmatch(text)) is not None:
            hour, minute, second = (int(part or 0) for part in clock.groups())
            at = now.astimezone().replace(hour=hour, minute=minute, second=second, microsecond=0)
            return (at if at <= now else at - timedelta(days=1)).astimezone(UTC)
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None
