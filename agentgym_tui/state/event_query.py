"""Which messages of a bus to read: subject patterns, and where their history starts."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from runner.subscribe.subject_patterns import PATTERN

if TYPE_CHECKING:
    from runner.subscribe.messages import Since

HistoryStart: TypeAlias = Literal["now", "all"] | datetime | int
"""Where history starts: at the next message, at the first one, at a time, or at this sequence of each stream."""

ALL_SUBJECTS: Final = (">",)
MAX_PATTERN_CHARS: Final = 255
"""Longest subject pattern."""

MAX_PATTERNS: Final = 16

_SEQUENCE: Final = re.compile(r"#?([0-9]{1,18})")
_AGO: Final = re.compile(r"([0-9]{1,6})([smhd])")
_CLOCK: Final = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_MAX_AGO: Final = timedelta(days=36_500)


class EventQuery(msgspec.Struct, frozen=True):
    """Messages to read.

    Attributes:
        patterns: subject patterns.
        start: where the history starts.
        episode: keep only messages that contain this episode id; "" for all.
        is_history: stay at the start and read on only as the user scrolls.
    """

    patterns: tuple[str, ...] = ALL_SUBJECTS
    start: HistoryStart = "now"
    episode: str = ""
    is_history: bool = False


def resolve_start(start: HistoryStart, now: datetime) -> Since:
    """Return the start for a subscription made ``now``; a time becomes the time since then."""
    return max(now - start, timedelta()) if isinstance(start, datetime) else start


def parse_patterns(text: str) -> tuple[str, ...] | None:
    """Parse subject patterns separated by blanks or commas; all subjects for "", None for an invalid pattern."""
    return valid_patterns(text.replace(",", " ").split() or ALL_SUBJECTS)


def valid_patterns(patterns: list[str] | tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the patterns as a tuple; None where one of them cannot be subscribed to."""
    is_valid = len(patterns) <= MAX_PATTERNS and all(
        len(p) <= MAX_PATTERN_CHARS and PATTERN.fullmatch(p) for p in patterns
    )
    return tuple(patterns) if is_valid else None


def parse_start(text: str, now: datetime) -> HistoryStart | None:
    """Parse ``all``, ``now``, a sequence, ``10m`` (ago), ``14:30``, or a date with a time; None for anything else.

    Args:
        text: what the user typed; a time without a zone is local time.
        now: the current time, with a zone.
    """
    text = text.strip()
    if text in ("all", "now"):
        return "all" if text == "all" else "now"
    if (sequence := _SEQUENCE.fullmatch(text)) is not None:
        return int(sequence[1])
    if (ago := _AGO.fullmatch(text)) is not None:
        return now - min(timedelta(seconds=int(ago[1]) * _SECONDS[ago[2]]), _MAX_AGO)
    try:
        if (clock := _CLOCK.fullmatch(text)) is not None:
            hour, minute, second = (int(part or 0) for part in clock.groups())
            at = now.astimezone().replace(hour=hour, minute=minute, second=second, microsecond=0)
            return (at if at <= now else at - timedelta(days=1)).astimezone(UTC)
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None
