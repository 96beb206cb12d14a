"""The ways by which a text reaches the terminal other than a cell; each makes it safe, and none parses markup.

Labels are made here. The others have one place each: ``cli`` writes to standard error and output, ``terminal`` writes
crash reports and the copies that pager and editor get, ``services`` shows toasts and draws pictures of the screen.
Exports and the clipboard are not among them: they carry the original text on purpose.
"""

from __future__ import annotations

from textual.content import Content

from agentgym_tui.safe_text import MAX_LINE_CHARS, sanitize_line


def as_label(text: str) -> Content:
    """Return the text of a button, a border or a placeholder, as one line."""
    return Content(sanitize_line(text, MAX_LINE_CHARS))
