"""Subjects with wildcards: ``*`` is any one word, a last ``>`` is one or more."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

PATTERN = re.compile(r"(?:[^\s.*>]+|\*)(?:\.(?:[^\s.*>]+|\*))*(?:\.>)?|>")
"""What can be subscribed to."""


@lru_cache(maxsize=1024)  # of thousands of messages in a second nearly all have one of a few subjects
def covers(wide: str, narrow: str) -> bool:
    """Whether every subject of ``narrow``, a subject or a pattern, is one of ``wide``."""
    return common(wide, narrow) == narrow


def covered_by_any(wide: Iterable[str], narrow: str) -> bool:
    """Whether one of the patterns covers ``narrow``."""
    return any(covers(pattern, narrow) for pattern in wide)


def common(one: str, other: str) -> str | None:
    """The pattern of the subjects that both match, None when there is no such subject."""
    left, right = one.split("."), other.split(".")
    shared: list[str] = []
    while left and right:
        if left[0] == ">":
            return ".".join(shared + right)
        if right[0] == ">":
            return ".".join(shared + left)
        first, second = left.pop(0), right.pop(0)
        if "*" not in (first, second) and first != second:
            return None
        shared.append(second if first == "*" else first)
    return None if left or right else ".".join(shared)


def shared_with(patterns: Iterable[str], subjects: Iterable[str]) -> list[str]:
    """What patterns and subjects have in common, without what another entry of the result covers."""
    held = list(subjects)
    found = dict.fromkeys(part for pattern in patterns for subject in held if (part := common(pattern, subject)))
    return [part for part in found if not covered_by_any((other for other in found if other != part), part)]


def disjoint(patterns: list[str]) -> bool:
    """Whether no subject matches two of them."""
    return all(common(a, b) is None for number, a in enumerate(patterns) for b in patterns[:number])
