"""An episode from wherever it can be had: the store while it runs, a file on this machine, or its node."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

from agentgym_tui.sessions.episode_library import episode_of_bytes
from agentgym_tui.sessions.protocols import ControlFailed, Session, Unusable
from agentgym_tui.state.episode_list import Entry
from agentgym_tui.state.models import Episode
from runner.errors import StoreError


class Loaded(NamedTuple):
    """An episode as far as it is known.

    Attributes:
        data: its file, None where there is none.
        lacking: why there is no file, hostile text; "" for one that runs.
    """

    episode: Episode
    data: bytes | None
    lacking: str = ""


class NotLoaded(Exception):
    """An episode that cannot be shown, and why; hostile text."""


async def load(session: Session, entry: Entry | None, episode_id: str) -> Loaded:
    """Read or fetch an episode; what came live is better than nothing.

    Args:
        session: where from.
        entry: what a list knows of it.
        episode_id: its id.

    Raises:
        NotLoaded: when nothing is known of it.
    """
    if isinstance(entry, Unusable):
        raise NotLoaded(f"{entry.path}\n{entry.reason}")
    live = session.store.episodes.get(episode_id)
    if live is not None and live.running:
        return Loaded(live, None)
    try:
        episode, data = await _stored(session, episode_id)
    except (StoreError, ControlFailed) as exc:
        lacking = _told(exc)
        if live is None:
            raise NotLoaded(lacking) from exc
        return Loaded(live, None, lacking)
    return Loaded(episode, data)


async def _stored(session: Session, episode_id: str) -> tuple[Episode, bytes]:
    if session.library is not None:
        return await asyncio.to_thread(session.library.load, episode_id)
    if session.control is None:
        raise ControlFailed("there is nobody to ask for the episode")
    data = await session.control.episode(episode_id)
    return await asyncio.to_thread(episode_of_bytes, data, Path(f"{episode_id[:40]}.json")), data


def _told(exc: Exception) -> str:
    hint = exc.hint if isinstance(exc, ControlFailed) else ""
    return f"{exc}\n{hint}" if hint else str(exc)
