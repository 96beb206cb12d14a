"""Toasts: short messages that cover a part of the screen for a few seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from textual.app import App

    from agentgym_tui.safe_text import SafeText

TOAST_TIMEOUT_S: Final = 4.0
ERROR_TIMEOUT_S: Final = 6.0


def toast(app: App[Any], text: SafeText, *, failed: bool = False) -> None:
    """Show a message in place of the previous message, so that only one toast covers the screen."""
    app.clear_notifications()
    timeout = ERROR_TIMEOUT_S if failed else TOAST_TIMEOUT_S
    app.notify(text, severity="error" if failed else "information", timeout=timeout, markup=False)
