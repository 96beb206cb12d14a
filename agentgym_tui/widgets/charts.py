"""Charts of an episode and its environment: the span waterfall and the reward plot."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import ClassVar, Final

from agentgym_tui.presenters.cells import FixedLines, Tone
from agentgym_tui.presenters.reward_plot import reward_lines
from agentgym_tui.presenters.span_rows import SpanRows
from agentgym_tui.presenters.text_width import LIST_MARGIN, fit
from agentgym_tui.state.servers import RewardPoint
from agentgym_tui.widgets.line_list import LineList
from runner.types import Span

_DURATION_WIDTH: Final = 9
"""Columns of a duration."""


class Waterfall(LineList):
    """The spans of an episode as a tree; each row has a bar on the common time axis (Perfetto's track model)."""

    N_HEADER: ClassVar[int] = 1

    def show_spans(self, spans: Sequence[Span], *, opened: Collection[int] = ()) -> None:
        """Show spans given in any order; ``opened`` as in ``SpanRows``."""
        self.show(SpanRows(spans, opened))

    @property
    def position(self) -> int | None:
        """Position of the span under the cursor in the given list; None without one."""
        return self.source.position(self.cursor) if isinstance(self.source, SpanRows) else None

    def find_rows(self, expression: re.Pattern[str]) -> list[int]:
        rows = self.source
        if not isinstance(rows, SpanRows):
            return []
        return [index for index in range(len(rows)) for _ in expression.finditer(rows.name(index).text)]

    def header(self, width: int) -> Iterable[tuple[str, Tone]]:
        name, bar = _column_widths(width)
        if isinstance(self.source, SpanRows):
            yield fit("span", name + 1), "head"
            yield fit(self.source.axis(bar), bar), "dim"

    def row_cells(self, index: int, width: int) -> Iterable[tuple[str, Tone]]:
        rows, (name, bar) = self.source, _column_widths(width)
        if not isinstance(rows, SpanRows):
            return
        if rows.is_attribute(index):
            yield rows.name(index)
            return
        for cell, room in ((rows.name(index), name), (rows.bar(index, bar), bar)):
            yield fit(cell.text, room) + " ", cell.tone
        yield fit(rows.duration(index).text, _DURATION_WIDTH, right=True), "plain"


def _column_widths(width: int) -> tuple[int, int]:
    name = min(max(width // 3, 12), 48)
    return name, max(width - name - _DURATION_WIDTH - 2, 1)


class RewardPlot(LineList):
    """A plot of the rewards and the success rate of an environment's episodes; it fills the widget."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(cursor_type="none", id=id)
        self._points: Sequence[RewardPoint] = ()

    def show_points(self, points: Sequence[RewardPoint]) -> None:
        """Show the rewards of episodes; the newest episode comes last."""
        self._points = points
        size = self.scrollable_content_region
        self.show(FixedLines(reward_lines(points, max(size.width - LIST_MARGIN, 0), size.height)))

    def on_resize(self) -> None:
        self.show_points(self._points)
