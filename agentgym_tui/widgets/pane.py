"""The lines around a screen's lists: the title of a pane, and the keys that can be pressed."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content

from agentgym_tui.commands.keymap import keymap_of
from agentgym_tui.safe_text import SafeText, trusted
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.static_lines import LineFactory, StatusText


class PaneTitle(StatusText):
    """The line above a list; a bar at its left end says that the keys go there."""

    def mark(self, index: int) -> str:
        """The bar."""
        return "▌" if isinstance(self.parent, Pane) and self.parent.has_class("-focused") else " "


class Pane(Vertical):
    """A list under a title.

    Args:
        view: the list.
        id: of the pane.
    """

    DEFAULT_CSS = """
    Pane > LineView { height: 1fr; }
    """
    BLANK = True  # all of it is covered, and the framework draws also what is behind

    def __init__(self, view: LineList, *, id: str) -> None:
        super().__init__(id=id)
        self._view = view
        self._title = PaneTitle()

    def compose(self) -> ComposeResult:
        """Title and list."""
        yield self._title
        yield self._view

    def set_title(self, make_lines: LineFactory) -> None:
        """Set the title."""
        self._title.show(make_lines)

    def on_descendant_focus(self) -> None:
        """Mark it."""
        self.add_class("-focused")
        self._title.refresh()

    def on_descendant_blur(self) -> None:
        """Take the mark away."""
        self.remove_class("-focused")
        self._title.refresh()


class DialogFrame(Vertical):
    """A box in the middle of the screen.

    Args:
        title: in its upper edge.
        keys: in its lower edge, how to leave it: with the ids of commands for their keys, as in ``{dialog.close}``.
    """

    def __init__(self, title: SafeText, *, keys: str, id: str | None = None) -> None:
        super().__init__(id=id, classes="dialog")
        self.border_title = Content(title)
        self.border_subtitle = Content(trusted(keymap_of(self.app).expand(keys)))
