"""Frames: a titled pane around a list, and the frame of a dialog."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content

from agentgym_tui.commands.keymap import keymap_of
from agentgym_tui.safe_text import SafeText, trusted
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.static_lines import LineFactory, StaticLines


class PaneTitle(StaticLines):
    """The title line of a pane, with a bar at the left while the pane has the focus."""

    def mark(self, index: int) -> str:
        """Return the bar that marks the focused pane, or a space."""
        return "▌" if isinstance(self.parent, Pane) and self.parent.has_class("-focused") else " "


class Pane(Vertical):
    """A list under a title.

    Args:
        view: the list.
        id: id of the pane.

    Attributes:
        view: the list.
    """

    DEFAULT_CSS = """
    Pane > LineList { height: 1fr; }
    """
    BLANK = True  # fully covered by children; Textual need not draw the background

    def __init__(self, view: LineList, *, id: str) -> None:
        super().__init__(id=id)
        self.view = view
        self._title = PaneTitle()

    def compose(self) -> ComposeResult:
        """Yield title and list."""
        yield self._title
        yield self.view

    def set_title(self, make_lines: LineFactory) -> None:
        """Set the function that makes the lines of the title."""
        self._title.show(make_lines)

    def on_descendant_focus(self) -> None:
        """Mark the pane as focused."""
        self.add_class("-focused")
        self._title.refresh()

    def on_descendant_blur(self) -> None:
        """Remove the focus mark."""
        self.remove_class("-focused")
        self._title.refresh()


class DialogFrame(Vertical):
    """A box in the middle of the screen.

    Args:
        title: text of the upper border.
        keys: text of the lower border, which names the dialog's keys; a command id such as ``{dialog.close}`` is
            replaced by the key of the command.
    """

    def __init__(self, title: SafeText, *, keys: str, id: str | None = None) -> None:
        super().__init__(id=id, classes="dialog")
        self.border_title = Content(title)
        self.border_subtitle = Content(trusted(keymap_of(self.app).expand(keys)))
