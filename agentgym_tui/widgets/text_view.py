"""A long text, cleaned line by line as it is looked at."""

from __future__ import annotations

from agentgym_tui.presenters.text_rows import TextRows
from agentgym_tui.safe_text import hostile_part
from agentgym_tui.widgets.line_list import LineView


class TextView(LineView):
    """Numbered lines, such as the JSON of an episode.

    Args:
        source: what is shown at first.
    """

    def __init__(
        self,
        source: TextRows | None = None,
        *,
        name: str | None = None,
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        super().__init__(source, cursor_type="none", name=name, id=id, classes=classes)

    def show_text(self, text: str) -> None:
        """Show a text from outside, whatever it holds."""
        self.show(TextRows(text))

    def hostile_text(self) -> str | None:
        """The first line in view that cleaning changes."""
        rows = self.source
        if not isinstance(rows, TextRows):
            return None
        return next((hostile_part(rows.raw(index)) for index in self._in_view() if rows.is_hostile(index)), None)
