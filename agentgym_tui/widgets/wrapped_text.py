"""Lines that are made for the width there is, to be read."""

from __future__ import annotations

from collections.abc import Sequence

from agentgym_tui.presenters.cells import FixedLines, Line
from agentgym_tui.presenters.text_width import EDGES
from agentgym_tui.widgets.line_list import LineView
from agentgym_tui.widgets.static_lines import Lines


class Prose(LineView):
    """A list without a cursor whose lines are made again when the width is another.

    Args:
        make: the lines for a number of columns.
    """

    def __init__(self, make: Lines, *, id: str) -> None:
        super().__init__(cursor_type="none", id=id)
        self._make = make
        self._made: Sequence[Line] = ()

    def make(self, make: Lines) -> None:
        """Show other lines."""
        self._make = make
        self.on_resize()

    def on_resize(self) -> None:
        """Make the lines anew."""
        made = self._make(max(self.scrollable_content_region.width - EDGES, 0))
        if made != self._made:
            self._made = made
            self.show(FixedLines(made))
