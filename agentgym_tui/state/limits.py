"""How much of what came from outside is kept: lengths of names, ranges of numbers, the memory that messages take."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import Final

MAX_ID_CHARS: Final = 200
"""Characters of an id; what is longer is none."""

MAX_NAME_CHARS: Final = 200
MAX_CAUSE_CHARS: Final = 4_000
MAX_ERROR_CHARS: Final = 64 * 1024
MAX_COUNT: Final = 10**9
_OBJECT_BYTES: Final = 64


def clip_name(text: str) -> str:
    """A name, cut."""
    return text[:MAX_NAME_CHARS]


def clip_names(texts: Iterable[str], limit: int = 200) -> list[str]:
    """Different names, the first ``limit`` of them."""
    return list(dict.fromkeys(map(clip_name, texts)))[:limit]


def clip_optional(text: str | None, limit: int = MAX_NAME_CHARS) -> str | None:
    """A text that may be missing, cut."""
    return None if text is None else text[:limit]


def clamp_count(number: int) -> int:
    """A number of things; JSON has integers of thousands of digits."""
    return max(0, min(number, MAX_COUNT))


def clamp_finite(number: float) -> float:
    """A sum may leave the range of numbers."""
    return number if math.isfinite(number) else math.copysign(sys.float_info.max, number or 0.0)


def json_size(value: object) -> int:
    """Bytes that a value of JSON takes, about."""
    total, waiting = 0, [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            total += len(each) + _OBJECT_BYTES
        elif isinstance(each, dict):
            total += _OBJECT_BYTES
            waiting += each
            waiting += each.values()
        elif isinstance(each, list):
            total += _OBJECT_BYTES
            waiting += each
        else:
            total += _OBJECT_BYTES // 2
    return total
