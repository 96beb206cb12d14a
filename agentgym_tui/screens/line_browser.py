"""Base of the screens that browse lines: with a filter, a prompt, a table and the selected line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.timer import Timer

from agentgym_tui.screens.base import WIDTH_BREAKPOINTS
from agentgym_tui.screens.filtered_screen import FilteredScreen
from agentgym_tui.services import copy_to_clipboard
from agentgym_tui.state.event_log import LogEntry
from agentgym_tui.state.query import MAX_CHARS
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.table import Table

if TYPE_CHECKING:
    from textual.widget import Widget

    from agentgym_tui.widgets.inputs import EntryInput
    from agentgym_tui.widgets.payload_view import PayloadView


class LineBrowser(FilteredScreen):
    """A screen with a table of lines, a filter and a prompt above it, and the selected line below it.

    A subclass composes the widgets, and fills ``table`` and ``payload``. The UI state holds filter words, sort orders
    and pane sizes.

    Attributes:
        table: the table of lines.
        payload: the view of the selected line.
    """

    HORIZONTAL_BREAKPOINTS = WIDTH_BREAKPOINTS
    REQUIRED_WIDGETS = "#summary, #nothing, #filter, #entry, #payload, #tabs"
    GO_TO_HINT: ClassVar[str]
    """Placeholder of the prompt for a place in the lines."""

    table: Table
    payload: PayloadView
    _prompt: EntryInput
    _prompt_id = ""
    _draw_timer: Timer | None = None

    @property
    def entry(self) -> LogEntry | None:
        """The selected line; None if there is none."""
        raise NotImplementedError

    def go_to(self, text: str) -> None:
        """Go to the place that the user entered."""
        raise NotImplementedError

    def draw_table(self) -> None:
        """Show the current lines in the table."""
        raise NotImplementedError

    def make_inputs(self, words: str) -> Sequence[Widget]:
        """Return the filter, which contains ``words``, its note, and the prompt."""
        from agentgym_tui.widgets.inputs import EntryInput

        self._prompt = EntryInput(id="entry", max_length=MAX_CHARS)
        return *self.make_filter(words), self._prompt

    def open_prompt(self, prompt_id: str, hint: str) -> None:
        """Open the prompt; ``prompt_id`` is passed to ``entered``."""
        self._prompt_id = prompt_id
        self.add_class("-prompting")
        self._prompt.prompt(hint)

    def entered(self, prompt_id: str, text: str) -> None:
        """Use the text that the user entered at the prompt ``prompt_id``."""
        self.go_to(text)

    def action_go_to(self) -> None:
        """Prompt for a place in the lines."""
        self.open_prompt("go_to", self.GO_TO_HINT)

    def action_next_view(self) -> None:
        """Show the selected line in the next representation."""
        self.payload.next_view()

    def action_copy(self, raw: bool = False) -> None:
        """Copy the shown text; visible symbols replace control characters unless ``raw`` is True."""
        copy_to_clipboard(self.app, self.payload.text(), raw=raw)

    def on_entry_input_closed(self, event: EntryInput.Closed) -> None:
        """Hide the prompt and use its text."""
        self.remove_class("-prompting")
        if event.text is not None:
            self.entered(self._prompt_id, event.text)

    @on(LineList.CursorMoved)
    def _line_selected(self, event: LineList.CursorMoved) -> None:
        if event.view is self.table and self.is_ready:
            self.line_selected()

    def line_selected(self) -> None:
        """Show the line under the cursor."""
        self.payload.show(self.entry)

    @on(LineList.Selected)
    def _line_opened(self, event: LineList.Selected) -> None:
        if event.view is self.table and self.accepts_keys:
            self.set_focus(self.payload.query_one(LineList))

    def draw_soon(self, wait_s: float) -> None:
        """Redraw everything after ``wait_s`` seconds, unless that is already planned."""
        if self._draw_timer is None:
            self._draw_timer = self.set_timer(wait_s, self.show_all)

    def show_all(self) -> None:
        """Redraw everything."""
        if self._draw_timer is not None:
            self._draw_timer.stop()
            self._draw_timer = None
        if self.is_ready:
            self.draw_table()
            self.payload.show(self.entry)
            self.show_texts()
