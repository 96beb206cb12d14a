"""Which messages of a bus a person looks at: subjects, and where their history begins."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from runner.subscribe.subject_patterns import PATTERN

if TYPE_CHECKING:
    from runner.subscribe.messages import Since

HistoryStart: TypeAlias = Literal["now", "all"] | datetime | int
"""Where history begins: nowhere, at its beginning, at a time, at this sequence of each stream."""

ALL_SUBJECTS: Final = (">",)
MAX_PATTERN_CHARS: Final = 255
MAX_PATTERNS: Final = 16

_SEQUENCE: Final = re.compile(r"#?([0-9]{1,18})")
_AGO: Final = re.compile(r"([0-9]{1,6})([smhd])")
_CLOCK: Final = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_MAX_AGO: Final = timedelta(days=36_500)


class EventQuery(msgspec.Struct, frozen=True):
    """What is looked at.

    Attributes:
        patterns: the subjects.
        start: where it begins.
        episode: only messages that name this episode; "" for all.
        is_history: it stays where it begins, and goes on as far as one reads.
    """

    patterns: tuple[str, ...] = ALL_SUBJECTS
    start: HistoryStart = "now"
    episode: str = ""
    is_history: bool = False


def resolve_start(start: HistoryStart, now: datetime) -> Since:
    """The same for a follower that begins ``now``."""
    return max(now - start, timedelta()) if isinstance(start, datetime) else start


def parse_patterns(text: str) -> tuple[str, ...] | None:
    """Subject patterns with blanks or commas between them, all subjects for none; None for what is no pattern."""
    return valid_patterns(text.replace(",", " ").split() or ALL_SUBJECTS)


def valid_patterns(patterns: list[str] | tuple[str, ...]) -> tuple[str, ...] | None:
    """Patterns that can be subscribed to, None when one of them cannot."""
    fit = len(patterns) <= MAX_PATTERNS and all(len(p) <= MAX_PATTERN_CHARS and PATTERN.fullmatch(p) for p in patterns)
    return tuple(patterns) if fit else None


def parse_start(text: str, now: datetime) -> HistoryStart | None:
    """What a person types: ``all``, ``now``, a sequence, ``10m`` ago, ``14:30``, a date with a time; None for others.

    Args:
        text: without a zone it is by the clock of this machine.
        now: the time, with a zone.
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
