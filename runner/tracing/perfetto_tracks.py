"""Spans as properly nested slices: what overlaps without being nested goes to a lane of its own."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import TypeAlias

from runner.types import Span

SliceEdge: TypeAlias = tuple[int, Span | None]
"""A time and the span that begins there, or None where the innermost open one ends."""

_id, _start_ns = attrgetter("id"), attrgetter("start_ns")


class Lane:
    """A row of slices; ``free_from`` is when its last slice ended, so that a later call never goes back in time."""

    def __init__(self, free_from: int) -> None:
        """Start with nothing open."""
        self.events: list[SliceEdge] = []
        self.free_from = free_from
        self._open: list[Span] = []

    def take(self, spans: Iterable[Span]) -> int:
        """Put spans here, one after the other, up to the first that does not fit; returns how many did.

        A span fits if the lane is free or has the span's parent, and nothing later, open.
        """
        n_taken, opened, add = 0, self._open, self.events.append
        for span in spans:
            parent, start_ns, end_ns = span.parent, span.start_ns, span.end_ns
            while opened:
                last = opened[-1]
                if last.id == parent and end_ns <= last.end_ns:  # a child; both may have taken no time at all
                    break
                if last.end_ns > start_ns:
                    return n_taken
                self._close()
            else:
                if start_ns < self.free_from:
                    return n_taken
            add((start_ns, span))
            opened.append(span)
            n_taken += 1
        return n_taken

    def _close(self) -> None:
        self.free_from = self._open.pop().end_ns
        self.events.append((self.free_from, None))

    def close_all(self) -> None:
        """End what is open."""
        while self._open:
            self._close()


def assign_lanes(spans: Iterable[Span], free_from: Iterable[int]) -> list[Lane]:
    """Place spans on lanes whose events are well nested and in order of time.

    A span goes to its parent's lane, else to the first one that is free, else to a new one.

    Args:
        spans: in any order; the ids of one tracer's spans grow in the order of their opening.
        free_from: of each lane there is, the time its last slice ended.
    """
    ordered = sorted(sorted(spans, key=_id), key=_start_ns)
    lanes = [Lane(time_ns) for time_ns in free_from] or [Lane(0)]
    n_taken = lanes[0].take(ordered)  # nearly always all
    rest = ordered[n_taken:]
    lane_of: dict[int | None, Lane] = {span.id: lanes[0] for span in ordered[:n_taken]} if rest else {}
    for span in rest:
        lane = lane_of.get(span.parent)
        if lane is None or not lane.take([span]):
            lane = _first_free(lanes, span)
        lane_of[span.id] = lane
    for lane in lanes:
        lane.close_all()
    return lanes


def _first_free(lanes: list[Lane], span: Span) -> Lane:
    for lane in lanes:
        if lane.take([span]):
            return lane
    lanes.append(Lane(span.start_ns))
    lanes[-1].take([span])
    return lanes[-1]
