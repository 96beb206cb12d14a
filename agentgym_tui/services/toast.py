"""Short messages above the screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from textual.app import App

    from agentgym_tui.safe_text import SafeText

TOAST_TIMEOUT_S: Final = 4.0
ERROR_TIMEOUT_S: Final = 6.0


def toast(app: App[Any], text: SafeText, *, failed: bool = False) -> None:
    """Show a message in place of the previous one, because toasts cover the screen."""
    app.clear_notifications()
    timeout = ERROR_TIMEOUT_S if failed else TOAST_TIMEOUT_S
    app.notify(text, severity="error" if failed else "information", timeout=timeout, markup=False)
