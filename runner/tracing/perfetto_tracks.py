"""Assignment of spans to lanes of properly nested slices.

Perfetto's track model requires the slices of a track to nest. Spans that overlap without nesting, such as those of
concurrent tasks, go to different lanes, each its own track: https://perfetto.dev/docs/reference/synthetic-track-event
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import TypeAlias

from runner.types import Span

SliceEdge: TypeAlias = tuple[int, Span | None]
"""A time in nanoseconds, and the span that begins at that time, or None if the innermost open span ends."""

_id, _start_ns = attrgetter("id"), attrgetter("start_ns")


class Lane:
    """A track of nested slices in time order.

    Args:
        free_from: end of the last slice already in this lane, in nanoseconds; new slices must not begin earlier.
    """

    def __init__(self, free_from: int) -> None:
        self.events: list[SliceEdge] = []
        self.free_from = free_from
        self._open: list[Span] = []

    def place(self, spans: Iterable[Span]) -> int:
        """Place spans in order, up to the first that does not fit; return the number of placed spans.

        A span fits if no span is open in the lane, or if the innermost open one is its parent.
        """
        n_placed, opened, add = 0, self._open, self.events.append
        for span in spans:
            parent, start_ns, end_ns = span.parent, span.start_ns, span.end_ns
            while opened:
                last = opened[-1]
                if last.id == parent and end_ns <= last.end_ns:  # a child, even if both have zero duration
                    break
                if last.end_ns > start_ns:
                    return n_placed
                self._close()
            else:
                if start_ns < self.free_from:
                    return n_placed
            add((start_ns, span))
            opened.append(span)
            n_placed += 1
        return n_placed

    def _close(self) -> None:
        self.free_from = self._open.pop().end_ns
        self.events.append((self.free_from, None))

    def close_all(self) -> None:
        while self._open:
            self._close()


def assign_lanes(spans: Iterable[Span], free_from: Iterable[int]) -> list[Lane]:
    """Place spans on lanes whose events nest and are in time order.

    A span goes to its parent's lane if it fits there, else to the first lane where it fits, else to a new lane.

    Args:
        free_from: end of the last slice of each existing lane, in nanoseconds.
    """
    ordered = sorted(sorted(spans, key=_id), key=_start_ns)
    lanes = [Lane(time_ns) for time_ns in free_from] or [Lane(0)]
    n_placed = lanes[0].place(ordered)  # nearly always all of them
    rest = ordered[n_placed:]
    lane_of: dict[int | None, Lane] = {span.id: lanes[0] for span in ordered[:n_placed]} if rest else {}
    for span in rest:
        lane = lane_of.get(span.parent)
        if lane is None or not lane.place([span]):
            lane = _first_free(lanes, span)
        lane_of[span.id] = lane
    for lane in lanes:
        lane.close_all()
    return lanes


def _first_free(lanes: list[Lane], span: Span) -> Lane:
    for lane in lanes:
        if lane.place([span]):
            return lane
    lanes.append(Lane(span.start_ns))
    lanes[-1].place([span])
    return lanes[-1]
