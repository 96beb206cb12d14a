"""An episode from wherever it can be had: the store while it runs, a file on this machine, or its node."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

from agentgym_tui.sessions.episode_library import episode_from_bytes
from agentgym_tui.sessions.protocols import ControlRequestError, Session
from agentgym_tui.state.episode_list import ListEntry, UnreadableFile
from agentgym_tui.state.models import Episode
from runner.errors import StoreError


class LoadedEpisode(NamedTuple):
    """An episode as far as it is known.

    Attributes:
        data: its file, None where there is none.
        lacking: why there is no file, hostile text; "" for one that runs.
    """

    episode: Episode
    data: bytes | None
    missing_reason: str = ""


class EpisodeLoadError(Exception):
    """An episode that cannot be shown, and why; hostile text."""


async def load_episode(session: Session, entry: ListEntry | None, episode_id: str) -> LoadedEpisode:
    """Read or fetch an episode; what came live is better than nothing.

    Args:
        session: where from.
        entry: what a list knows of it.
        episode_id: its id.

    Raises:
        NotLoaded: when nothing is known of it.
    """
    if isinstance(entry, UnreadableFile):
        raise EpisodeLoadError(f"{entry.path}\n{entry.reason}")
    live = session.store.episodes.get(episode_id)
    if live is not None and live.running:
        return LoadedEpisode(live, None)
    try:
        episode, data = await _fetch(session, episode_id)
    except (StoreError, ControlRequestError) as exc:
        lacking = _error_text(exc)
        if live is None:
            raise EpisodeLoadError(lacking) from exc
        return LoadedEpisode(live, None, lacking)
    return LoadedEpisode(episode, data)


async def _fetch(session: Session, episode_id: str) -> tuple[Episode, bytes]:
    if session.library is not None:
        return await asyncio.to_thread(session.library.load, episode_id)
    if session.control is None:
        raise ControlRequestError("there is nobody to ask for the episode")
    data = await session.control.fetch_episode(episode_id)
    return await asyncio.to_thread(episode_from_bytes, data, Path(f"{episode_id[:40]}.json")), data


def _error_text(exc: Exception) -> str:
    hint = exc.hint if isinstance(exc, ControlRequestError) else ""
    return f"{exc}\n{hint}" if hint else str(exc)
