"""What is shown, into the clipboard of the terminal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from agentgym_tui.safe_text import own
from agentgym_tui.services.osc52 import described, to_copy
from agentgym_tui.services.toast import tell

if TYPE_CHECKING:
    from textual.app import App


def copy(app: App[Any], text: str, *, raw: bool) -> None:
    """Copy a text, as it came or made safe, and say how much of it."""
    shown = to_copy(text, raw=raw)
    if shown.text:
        app.copy_to_clipboard(shown.text)
        tell(app, described(shown, os.environ, raw=raw))
    else:
        tell(app, own("there is nothing to copy"), failed=True)
