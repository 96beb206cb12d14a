"""The frame of a dialog: a title, what is in it, and its keys."""

from __future__ import annotations

from textual.containers import Vertical
from textual.content import Content

from agentgym_tui.commands.keymap import keys_of
from agentgym_tui.safe_text import Safe, own


class Dialog(Vertical):
    """A box in the middle of the screen.

    Args:
        title: in its upper edge.
        keys: in its lower edge, how to leave it: with the ids of commands for their keys, as in ``{dialog.close}``.
    """

    def __init__(self, title: Safe, *, keys: str, id: str | None = None) -> None:
        super().__init__(id=id, classes="dialog")
        self.border_title = Content(title)
        self.border_subtitle = Content(own(keys_of(self.app).told(keys)))
