"""Spans as properly nested slices: what overlaps without being nested goes to a lane of its own."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import TypeAlias

from runner.types import Span

Event: TypeAlias = tuple[int, Span | None]
"""A time and the span that begins there, or None where the innermost open one ends."""

_opening_order = attrgetter("start_ns", "id")


class Lane:
    """A row of slices; ``free_from`` is when its last slice ended, so that a later call never goes back in time."""

    def __init__(self, free_from: int) -> None:
        """Start with nothing open."""
        self.events: list[Event] = []
        self.free_from = free_from
        self._open: list[Span] = []

    def take(self, span: Span) -> bool:
        """Put the span here if it is free or has the span's parent, and nothing later, open."""
        self._close_until(span)
        if self._open:
            if not _contains(self._open[-1], span):
                return False
        elif span.start_ns < self.free_from:
            return False
        self.events.append((span.start_ns, span))
        self._open.append(span)
        return True

    def _close_until(self, span: Span) -> None:
        while self._open and self._open[-1].end_ns <= span.start_ns and not _contains(self._open[-1], span):
            self._close()

    def _close(self) -> None:
        self.free_from = self._open.pop().end_ns
        self.events.append((self.free_from, None))

    def close_all(self) -> None:
        """End what is open."""
        while self._open:
            self._close()


def arrange(spans: Iterable[Span], free_from: Iterable[int]) -> list[Lane]:
    """Place spans on lanes whose events are well nested and in order of time.

    A span goes to its parent's lane, else to the first one that is free, else to a new one.

    Args:
        spans: in any order; the ids of one tracer's spans grow in the order of their opening.
        free_from: of each lane there is, the time its last slice ended.
    """
    lanes = [Lane(time_ns) for time_ns in free_from]
    lane_of: dict[int | None, Lane] = {}
    for span in sorted(spans, key=_opening_order):
        lane = lane_of.get(span.parent)
        if lane is None or not lane.take(span):
            lane = _first_free(lanes, span)
        lane_of[span.id] = lane
    for lane in lanes:
        lane.close_all()
    return lanes


def _contains(parent: Span, span: Span) -> bool:
    """Whether ``span`` is a child that its parent did not close before; both may have taken no time at all."""
    return parent.id == span.parent and span.end_ns <= parent.end_ns


def _first_free(lanes: list[Lane], span: Span) -> Lane:
    for lane in lanes:
        if lane.take(span):
            return lane
    lanes.append(Lane(span.start_ns))
    lanes[-1].take(span)
    return lanes[-1]
