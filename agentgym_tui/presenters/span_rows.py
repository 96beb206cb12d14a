"""Rows of a waterfall of an episode's spans: an indented tree of names, beside bars on one time axis."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from agentgym_tui.presenters.cells import Cell, Line, Tone
from agentgym_tui.presenters.number_format import format_duration
from agentgym_tui.presenters.payload import FOLD_WIDTH
from runner.types import Span

MAX_INDENT: Final = 12
"""Tree depth from which on rows are not indented further."""

MIN_LABELS: Final = 30
"""Minimum width of a time axis, in columns, that has a label in the middle."""

_TONES: Final[dict[str, Tone]] = {"environment": "accent", "agent": "good", "model": "good"}
_EIGHTHS: Final = ("", *"▏▎▍▌▋▊▉")
_MAX_NS: Final = 2**63
"""Largest absolute value of a timestamp, in nanoseconds; a larger one is clamped."""


class SpanRows:
    """Spans as rows of a tree. A span becomes a root if its parent is unknown or if it is part of a cycle.

    Args:
        spans: the spans, in any order.
        opened: positions of the spans below which rows with their attributes are shown.
    """

    def __init__(self, spans: Sequence[Span], opened: Collection[int] = ()) -> None:
        self._spans = spans
        self._order = list(_rows(spans, opened))
        self._start = _clamp(min((span.start_ns for span in spans), default=0))
        self._total = max(_clamp(max((span.end_ns for span in spans), default=0)) - self._start, 1)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._order)

    def line(self, index: int, width: int) -> Line:
        """Return two cells: the indented name and the duration of a span; of an attribute, one cell."""
        return (self.name(index),) if self.is_attribute(index) else (self.name(index), self.duration(index))

    def key(self, index: int) -> str:
        """Return the id of a span and its position in the list; the untrusted id alone may not be unique."""
        row = self._order[index]
        key = f"{self._spans[row.position].id}.{row.position}"
        return f"{key}/{row.number}" if row.attribute else key

    def is_attribute(self, index: int) -> bool:
        """Return whether a row shows an attribute of a span instead of the span."""
        return bool(self._order[index].attribute)

    def position(self, index: int) -> int | None:
        """Return the position of a row's span in the given list; None past the last row."""
        return self._order[index].position if index < len(self._order) else None

    def name(self, index: int) -> Cell:
        """Return the indented name of a span, with the error type if the span failed; or an attribute."""
        row = self._order[index]
        span = self._spans[row.position]
        indent = "  " * min(row.depth, MAX_INDENT)
        if row.attribute:
            return Cell(f"{indent}  · {row.attribute}", "dim")
        name = span.name
        if "error" in span.attributes:
            return Cell(f"{indent}✗ {name} {span.attributes['error']}", "bad")
        return Cell(f"{indent}{name}")

    def bar(self, index: int, width: int) -> Cell:
        """Return the bar of a span on a time axis of ``width`` columns. The bar is at least one column wide."""
        span = self._spans[self._order[index].position]
        start, end = _clamp(span.start_ns) - self._start, _clamp(span.end_ns) - self._start
        left = min(start * width // self._total, width - 1)
        full, rest = divmod(max(end - start, 0) * width * 8 // self._total, 8)
        shape = ("█" * full + _EIGHTHS[rest])[: width - left] or _EIGHTHS[1]
        tone: Tone = "bad" if "error" in span.attributes else _TONES.get(span.category, "dim")
        return Cell(" " * left + shape, tone)

    def duration(self, index: int) -> Cell:
        """Return the duration of a span."""
        span = self._spans[self._order[index].position]
        return Cell(format_elapsed(_clamp(span.end_ns) - _clamp(span.start_ns)))

    def axis(self, width: int) -> str:
        """Return the labels of a time axis of ``width`` columns: start, middle and end."""
        middle, end = format_elapsed(self._total // 2), format_elapsed(self._total)
        if not self._spans or width <= len(end):
            return ""
        left = f"0{middle:>{(width + len(middle)) // 2 - 1}}" if width >= MIN_LABELS else "0"
        return f"{left}{end:>{width - len(left)}}"


class _SpanRow(NamedTuple):
    """A row: the position of its span, its depth in the tree, and a part of an attribute; "" for the span itself."""

    position: int
    depth: int
    attribute: str = ""
    number: int = 0


def _rows(spans: Sequence[Span], opened: Collection[int]) -> Iterator[_SpanRow]:
    for position, depth in _walk_tree(spans):
        yield _SpanRow(position, depth)
        if position in opened:
            for number, text in enumerate(attribute_texts(spans[position])):
                yield _SpanRow(position, depth, text, number)


def attribute_texts(span: Span) -> list[str]:
    """Return the attributes of a span as rows of untrusted text, broken after ``FOLD_WIDTH`` characters."""
    lines = [line for name, value in span.attributes.items() for line in f"{name}: {value}".split("\n")]
    return [line[at : at + FOLD_WIDTH] for line in lines for at in range(0, len(line), FOLD_WIDTH)]


def spans_with(spans: Sequence[Span], expression: re.Pattern[str]) -> set[int]:
    """Return the positions of the spans that have an attribute with a match of an expression."""
    return {at for at, span in enumerate(spans) if any(map(expression.search, attribute_texts(span)))}


def format_elapsed(ns: int) -> str:
    """Format a duration given in nanoseconds, such as ``12 µs``, ``3.4 ms`` and ``1.2 s``."""
    if ns < 1_000_000:
        return f"{max(ns, 0) / 1e3:.0f} µs"
    return f"{ns / 1e6:.1f} ms" if ns < 10_000_000 else format_duration(ns / 1e9)


def _clamp(ns: int) -> int:
    return max(-_MAX_NS, min(ns, _MAX_NS))


def _walk_tree(spans: Sequence[Span]) -> Iterator[tuple[int, int]]:
    """Yield the list position and the tree depth of each span.

    A parent comes before its children; siblings are in the order of their start times.
    """
    by_start = sorted(range(len(spans)), key=lambda position: spans[position].start_ns)
    ids = {span.id for span in spans}
    children: defaultdict[int | None, list[int]] = defaultdict(list)
    for position in reversed(by_start):
        parent = spans[position].parent
        children[parent if parent in ids else None].append(position)
    visited: set[int] = set()
    for root in (*reversed(children[None]), *by_start):
        stack = [(root, 0)]
        while stack:
            position, depth = stack.pop()
            if position not in visited:
                visited.add(position)
                yield position, depth
                # popped: spans that share an id would list the same children once each
                stack += ((child, depth + 1) for child in children.pop(spans[position].id, ()))


def spans_text(spans: Sequence[Span], *, raw: bool) -> str:
    """Return spans as an indented tree with durations; if ``raw``, return all fields of the spans as JSON."""
    if raw:
        from runner.util.safe_values import encode

        return encode(spans).decode()
    rows = SpanRows(spans)
    return "\n".join(f"{rows.name(index).text}  {rows.duration(index).text}" for index in range(len(rows)))
