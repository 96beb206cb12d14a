"""The screen as a picture, in a file of its own."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgym_tui.safe_text import message
from agentgym_tui.services.export import ExportFailed, write_new
from agentgym_tui.services.toast import tell

if TYPE_CHECKING:
    from textual.app import App


async def take_picture(app: App[Any]) -> None:
    """Write what is on the screen as SVG into the folder where the console was started, and say where."""
    svg = app.export_screenshot().encode("utf-8", "replace")
    name = f"agentgym-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    try:
        path = await asyncio.to_thread(write_new, Path.cwd(), name, ".svg", svg)
    except (ExportFailed, OSError) as exc:
        tell(app, message(f"no picture: {exc}"), failed=True)
    else:
        tell(app, message(f"picture written to {path}"))
