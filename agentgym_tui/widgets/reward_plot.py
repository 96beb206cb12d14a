"""What the episodes of an environment came to, as a plot as large as there is room."""

from __future__ import annotations

from collections.abc import Sequence

from agentgym_tui.presenters.cells import FixedLines
from agentgym_tui.presenters.reward_plot import reward_lines
from agentgym_tui.presenters.text_width import EDGES
from agentgym_tui.state.rewards import RewardPoint
from agentgym_tui.widgets.line_list import LineView


class PlotView(LineView):
    """Rewards and success rate."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(cursor_type="none", id=id)
        self._points: Sequence[RewardPoint] = ()

    def show_points(self, points: Sequence[RewardPoint]) -> None:
        """Show other episodes, the newest last."""
        self._points = points
        size = self.scrollable_content_region
        self.show(FixedLines(reward_lines(points, max(size.width - EDGES, 0), size.height)))

    def on_resize(self) -> None:
        """As large as there is room."""
        self.show_points(self._points)
