"""Subject patterns of NATS: ``*`` matches one token, a final ``>`` matches one or more tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

_TOKEN = r"(?:[^\s.*>\x00-\x1f\x7f\ud800-\udfff]+|\*)"
PATTERN = re.compile(rf"{_TOKEN}(?:\.{_TOKEN})*(?:\.>)?|>")
"""A valid subject or pattern for a subscription."""


@lru_cache(maxsize=1024)  # thousands of messages per second share a few subjects
def covers(wide: str, narrow: str) -> bool:
    """Whether the pattern ``wide`` matches every subject that ``narrow`` (a subject or pattern) matches."""
    return intersection(wide, narrow) == narrow


def covered_by_any(wide: Iterable[str], narrow: str) -> bool:
    return any(covers(pattern, narrow) for pattern in wide)


def intersection(left: str, right: str) -> str | None:
    tokens, other_tokens = left.split("."), right.split(".")
    shared: list[str] = []
    while tokens and other_tokens:
        if tokens[0] == ">":
            return ".".join(shared + other_tokens)
        if other_tokens[0] == ">":
            return ".".join(shared + tokens)
        first, second = tokens.pop(0), other_tokens.pop(0)
        if "*" not in (first, second) and first != second:
            return None
        shared.append(second if first == "*" else first)
    return None if tokens or other_tokens else ".".join(shared)


def intersections(patterns: Iterable[str], subjects: Iterable[str]) -> list[str]:
    """Return the intersections of patterns and subjects, without those that another intersection covers."""
    others = list(subjects)
    pairs = ((pattern, subject) for pattern in patterns for subject in others)
    shared = dict.fromkeys(part for pattern, subject in pairs if (part := intersection(pattern, subject)))
    return [part for part in shared if not covered_by_any(shared.keys() - {part}, part)]


def are_disjoint(patterns: list[str]) -> bool:
    return all(intersection(a, b) is None for number, a in enumerate(patterns) for b in patterns[:number])
