"""Loads an episode: from the live state while it runs, else from a local file or its node."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

from agentgym_tui.sessions.episode_library import episode_from_bytes
from agentgym_tui.sessions.protocols import ControlRequestError, Session
from agentgym_tui.state.data_model import Episode
from agentgym_tui.state.episode_list import ListEntry, UnreadableFile
from runner.errors import StoreError


class LoadedEpisode(NamedTuple):
    """An episode, as far as it is known.

    Attributes:
        data: content of its file; None where there is none.
        missing_reason: why there is no file, untrusted text; "" for a running episode.
    """

    episode: Episode
    data: bytes | None
    missing_reason: str = ""


class EpisodeLoadError(Exception):
    """An episode that cannot be shown, with the reason; untrusted text."""

    published_error_type = "NotLoaded"


async def load_episode(session: Session, entry: ListEntry | None, episode_id: str) -> LoadedEpisode:
    """Load an episode; falls back to the live state where its file is not available.

    Args:
        session: the session to load it from.
        entry: its row in a list.
        episode_id: its id.

    Raises:
        EpisodeLoadError: when nothing is known of it.
    """
    if isinstance(entry, UnreadableFile):
        raise EpisodeLoadError(f"{entry.path}\n{entry.reason}")
    live = session.store.episodes.get(episode_id)
    if live is not None and live.running:
        return LoadedEpisode(live, None)
    try:
        episode, data = await _fetch(session, episode_id)
    except (StoreError, ControlRequestError) as exc:
        reason = _error_text(exc)
        if live is None:
            raise EpisodeLoadError(reason) from exc
        return LoadedEpisode(live, None, reason)
    return LoadedEpisode(episode, data)


async def _fetch(session: Session, episode_id: str) -> tuple[Episode, bytes]:
    if session.library is not None:
        return await asyncio.to_thread(session.library.load, episode_id)
    if session.control is None:
        raise ControlRequestError("no node can supply this episode")
    data = await session.control.fetch_episode(episode_id)
    return await asyncio.to_thread(episode_from_bytes, data, Path(f"{episode_id[:40]}.json")), data


def _error_text(exc: Exception) -> str:
    hint = exc.hint if isinstance(exc, ControlRequestError) else ""
    return f"{exc}\n{hint}" if hint else str(exc)
