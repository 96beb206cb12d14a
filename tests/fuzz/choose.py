"""Chooses the grown inputs that are worth keeping: those that execute the most new lines of our packages per byte."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, TypeAlias

from tests.fuzz.target import ROOT, Target

Lines: TypeAlias = set[tuple[str, int]]

MIN_GAIN: Final = 3
"""Fewest new lines for which an input is kept."""

_PACKAGES: Final = tuple(f"{ROOT / name}/" for name in ("runner", "agentgym_tui"))


def choose_inputs(target: Target, kept: Iterable[bytes], grown: Iterable[bytes], max_bytes: int) -> list[bytes]:
    """Return grown inputs of at most ``max_bytes`` in all that execute lines which the kept inputs do not."""
    covered = set[tuple[str, int]]().union(*(_executed(target.check, data) for data in kept))
    reached = {data: _executed(target.check, data) for data in grown if len(data) <= max_bytes}
    chosen: list[bytes] = []
    while reached:
        data = max(reached, key=lambda each: len(reached[each] - covered) / (len(each) + 20))
        gain = reached.pop(data) - covered
        if len(gain) >= MIN_GAIN and len(data) <= max_bytes:
            chosen.append(data)
            covered |= gain
            max_bytes -= len(data)
    return chosen


def _executed(check: Callable[[bytes], None], data: bytes) -> Lines:
    lines: Lines = set()
    with _tracing(lines):
        check(data)
    return lines


@contextmanager
def _tracing(lines: Lines) -> Iterator[None]:
    def trace_line(frame: FrameType, event: str, arg: Any) -> Any:  # noqa: ANN401 - as in sys.settrace
        lines.add((frame.f_code.co_filename, frame.f_lineno))
        return trace_line

    def trace_call(frame: FrameType, event: str, arg: Any) -> Any:  # noqa: ANN401 - as in sys.settrace
        return trace_line if frame.f_code.co_filename.startswith(_PACKAGES) else None

    previous = sys.gettrace()
    sys.settrace(trace_call)
    try:
        yield
    finally:
        sys.settrace(previous)
