"""What the user does with the file of an episode: export it, or open it in a pager or editor."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from agentgym_tui.presenters.payload import pretty_json
from agentgym_tui.safe_text import sanitize_message, sanitize_text
from agentgym_tui.services import ExportError, export_episode, start_worker, toast
from agentgym_tui.sessions.session import EpisodeLoadError, LoadedEpisode, load_file
from agentgym_tui.terminal import Program, ProgramError, program_command, show_in_program
from runner.util.clock import is_ulid

if TYPE_CHECKING:
    from textual.app import App

    from agentgym_tui.sessions.session import Session
    from agentgym_tui.state.episode_list import ListEntry

STILL_RUNNING: Final = "this episode is still running; its file is written when it ends"


class EpisodeFile:
    """The file of an episode, which is loaded when it is needed; toasts show the result or the reason of a failure.

    Args:
        app: the console.
        session: the session to load the file from.
        entry: row of the episode in the list of episodes; None if the list has no such row.
        key: key of the episode in the list.
        shown: the episode if it is loaded already.
    """

    def __init__(
        self, app: App[Any], session: Session, entry: ListEntry | None, key: str, shown: LoadedEpisode | None = None
    ) -> None:
        self._app, self._session, self._entry, self._key, self._shown = app, session, entry, key, shown

    def export(self) -> None:
        """Write the file to the working directory, in the background."""
        start_worker(self._app, self._export, group="export")

    def open_outside(self, program: Program) -> None:
        """Show a formatted, sanitized copy of the file in a program, in the background."""
        start_worker(self._app, partial(self._open_outside, program), group="outside")

    async def _load(self) -> LoadedEpisode:
        shown = self._shown
        if shown is not None and shown.data is not None and shown.episode.episode_id == self._key:
            return shown
        try:
            return await load_file(self._session, self._entry, self._key)
        except EpisodeLoadError as exc:
            is_running = shown is not None and shown.episode.running
            raise EpisodeLoadError(STILL_RUNNING if is_running else str(exc)) from exc

    async def _export(self) -> None:
        try:
            file = await self._load()
            path = await asyncio.to_thread(export_episode, file.episode.episode_id, file.data or b"", Path.cwd())
        except (ExportError, EpisodeLoadError, OSError) as exc:
            toast(self._app, sanitize_message(f"not exported: {exc}"), failed=True)
        else:
            toast(self._app, sanitize_message(f"exported to {path}"))

    async def _open_outside(self, program: Program) -> None:
        try:
            command = program_command(program, os.environ)
            file = await self._load()
            name = file.episode.episode_id if is_ulid(file.episode.episode_id) else "episode"
            text = await asyncio.to_thread(_readable, file.data or b"")
            is_changed = await show_in_program(self._app, command, f"{name}.json", text)
        except (ProgramError, EpisodeLoadError, OSError) as exc:
            toast(self._app, sanitize_message(f"not opened: {exc}"), failed=True)
        else:
            if is_changed:
                toast(self._app, "your changes were made to a copy and are discarded")


def _readable(data: bytes) -> str:
    return sanitize_text(pretty_json(data))
