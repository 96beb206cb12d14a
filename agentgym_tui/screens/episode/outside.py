"""Opens the file of an episode in the user's pager or editor."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from agentgym_tui.presenters.payload import pretty_json
from agentgym_tui.safe_text import SafeText, sanitize_message, sanitize_text, trusted
from agentgym_tui.services.outside_program import Program, ProgramError, program_command, show_in_program
from agentgym_tui.services.toast import toast
from agentgym_tui.sessions.episode_loader import EpisodeLoadError, LoadedEpisode
from runner.store import is_ulid

if TYPE_CHECKING:
    from textual.app import App


async def open_outside(app: App[Any], program: Program, load: Callable[[], Awaitable[LoadedEpisode]]) -> None:
    """Show a formatted, sanitized copy of an episode file in a program; show in a toast why that is not possible.

    Args:
        app: the console.
        program: the kind of program.
        load: returns the episode with its file.
    """
    try:
        command = program_command(program, os.environ)
        file = await load()
        name = file.episode.episode_id if is_ulid(file.episode.episode_id) else "episode"
        text = await asyncio.to_thread(_readable, file.data or b"")
        is_changed = await show_in_program(app, command, f"{name}.json", text)
    except (ProgramError, EpisodeLoadError, OSError) as exc:
        toast(app, sanitize_message(f"not opened: {exc}"), failed=True)
    else:
        if is_changed:
            toast(app, trusted("your changes were made to a copy and are discarded"))


def _readable(data: bytes) -> SafeText:
    return sanitize_text(pretty_json(data))
