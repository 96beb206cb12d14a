"""Opens an episode from a screen that stands for some of the stored episodes, such as a cluster or a comparison."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import Any

from agentgym_tui.config.ui_state import UiState
from agentgym_tui.screens.base import ConsoleScreen
from agentgym_tui.screens.episode.screen import EpisodeScreen
from agentgym_tui.services.timers import start_worker
from agentgym_tui.sessions.protocols import Session
from agentgym_tui.state.episode_list import EpisodeList, select_rows
from runner.errors import StoreError
from runner.store.index_schema import EpisodeRow


def open_among(screen: ConsoleScreen[Any], session: Session, episode_id: str, query: str, ui_state: UiState) -> None:
    """Open an episode on a screen whose keys for the next and previous episode stay among some stored episodes.

    Args:
        screen: the screen from which it is opened.
        session: provides the episodes.
        episode_id: the episode; it is opened even if the others cannot be read.
        query: a valid query that selects the episodes.
        ui_state: saved pane sizes; updated in place.
    """
    start_worker(screen, partial(_open, screen, session, episode_id, query, ui_state), group="open", exclusive=True)


async def _open(screen: ConsoleScreen[Any], session: Session, episode_id: str, query: str, ui_state: UiState) -> None:
    episodes = EpisodeList()
    episodes.search(query)
    with contextlib.suppress(StoreError):
        episodes.set_stored(await asyncio.to_thread(_selected, session, query))
    screen.app.push_screen(EpisodeScreen(session, episode_id, episodes, ui_state=ui_state))


def _selected(session: Session, query: str) -> list[EpisodeRow]:
    library = session.library
    return [] if library is None else list(select_rows(library.rows(check_files=False), query, {}, {}))
