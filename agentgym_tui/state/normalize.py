"""Functions that normalize untrusted values: cut texts, clamp numbers, make times comparable and measure JSON.

Messages may carry texts of any length and integers of thousands of digits; the state keeps only bounded texts and
numbers.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from runner.types import WorkerCounts, WorkerInfo
from runner.util.clock import is_ulid, new_ulid, ulid_milliseconds

MAX_ID_CHARS: Final = 200
"""Largest number of characters in an id; a longer text is not a valid id."""

MAX_NAME_CHARS: Final = 200
"""Number of characters kept of the name of an environment, agent, model or node."""

MAX_CAUSE_CHARS: Final = 4_000
"""Number of characters kept of the cause of a failure."""

MAX_ERROR_CHARS: Final = 64 * 1024
"""Number of characters kept of the error message or traceback of an episode."""

MAX_COUNT: Final = 10**9
"""Largest count that is kept."""

_OBJECT_BYTES: Final = 64
"""Approximate memory of a Python object without its contents, in bytes."""


def clip_name(text: str) -> str:
    """Return the name, cut to ``MAX_NAME_CHARS`` characters."""
    return text[:MAX_NAME_CHARS]


def clip_names(texts: Iterable[str], limit: int = 200) -> list[str]:
    """Return the first ``limit`` distinct names, each cut to ``MAX_NAME_CHARS`` characters."""
    return list(dict.fromkeys(map(clip_name, texts)))[:limit]


def clip_optional(text: str | None, limit: int = MAX_NAME_CHARS) -> str | None:
    """Return the text, cut to ``limit`` characters; None if the text is None."""
    return None if text is None else text[:limit]


def clamp_count(number: int) -> int:
    """Return the number, limited to the range from 0 to ``MAX_COUNT``."""
    return max(0, min(number, MAX_COUNT))


def clamp_optional(number: int | None) -> int | None:
    """Return the number, limited as by ``clamp_count``; None if it is None."""
    return None if number is None else clamp_count(number)


def clamp_finite(number: float) -> float:
    """Return the number; for an infinite sum, return the largest finite float with the same sign."""
    return number if math.isfinite(number) else math.copysign(sys.float_info.max, number or 0.0)


def clamp_workers(counts: WorkerCounts | None) -> WorkerCounts | None:
    """Return the numbers of workers, each limited as by ``clamp_count``."""
    if counts is None:
        return None
    return WorkerCounts(n=clamp_count(counts.n), starting=clamp_count(counts.starting), lost=clamp_count(counts.lost))


def clip_worker(worker: WorkerInfo) -> WorkerInfo:
    """Return the worker with its texts cut to ``MAX_NAME_CHARS`` characters."""
    return WorkerInfo(host=clip_name(worker.host), id=clip_name(worker.id), kind=worker.kind)


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


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_FIRST_YEAR, _LAST_YEAR = 2016, 2099
"""Years of plausible creation times: the first is that of the ULID specification."""


def as_aware(time: datetime) -> datetime:
    """Return the time with a zone, so that it can be compared; a time without a zone is taken as UTC."""
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def ulid_time(ulid: str) -> datetime | None:
    """Return the creation time of a ULID in any case; None if the text is not a ULID, or its time is implausible."""
    if len(ulid) > MAX_ID_CHARS or not is_ulid(upper := ulid.upper()):
        return None
    try:
        time = _EPOCH + timedelta(milliseconds=ulid_milliseconds(upper))
    except OverflowError:
        return None
    return time if _FIRST_YEAR <= time.year <= _LAST_YEAR else None


def ulid_prefix(time: datetime) -> str:
    """Return the first ten characters of a ULID created at ``time``."""
    return new_ulid(max((time - _EPOCH) // timedelta(milliseconds=1), 0))[:10]
