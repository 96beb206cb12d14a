"""Loads an episode: from the live state while it runs, else from a local file or from its node.

Episodes of which the console has missed live items are completed from their journals and files.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from agentgym_tui.sessions.episode_library import StateDirLibrary, episode_from_bytes
from agentgym_tui.sessions.protocols import ControlRequestError, Session
from agentgym_tui.state.data_model import Episode
from agentgym_tui.state.episode_list import EpisodeList, ListEntry, UnreadableFile
from agentgym_tui.state.episode_query import exact_terms
from agentgym_tui.state.run_store import RunStore
from runner.errors import RunnerError, StoreError

if TYPE_CHECKING:
    from runner.store.index_schema import EpisodeRow
    from runner.types.notes import Note

REPAIR_INTERVAL_S: Final = 2.0
"""Seconds between reads of the files of episodes with missing live items."""

MAX_REPAIRED: Final = 20
"""Number of newest episodes whose files are read where live items are missing."""


class LoadedEpisode(NamedTuple):
    """A loaded episode, which may be incomplete.

    Attributes:
        episode: the episode.
        data: content of the episode file; None if ``episode`` comes from the live state.
        missing_reason: why the file of an ended episode is not available; "" for a running episode and where ``data``
            is set. The text is untrusted.
        path: path of the episode file on this machine; None where it is not known.
    """

    episode: Episode
    data: bytes | None
    missing_reason: str = ""
    path: Path | None = None


class EpisodeLoadError(Exception):
    """An episode cannot be shown. The message is the reason; untrusted text."""

    published_error_type = "NotLoaded"


async def load_episode(session: Session, entry: ListEntry | None, episode_id: str) -> LoadedEpisode:
    """Load an episode with its notes; where its file is not available, use the live state.

    Args:
        session: the session to load the episode from.
        entry: row of the episode in the list of episodes; None if the list has no such row.
        episode_id: id of the episode.

    Raises:
        EpisodeLoadError: neither a readable file nor a live state of the episode is available.
    """
    loaded = await _load(session, entry, episode_id)
    loaded.episode.currency = loaded.episode.currency or session.store.currency
    loaded.episode.notes = await load_notes(session, episode_id)
    return loaded


def currency_of(rows: Sequence[EpisodeRow]) -> str:
    """Return the currency of the newest of the episodes with a cost; "" if none has one, or it is not known."""
    return next((row.currency for row in rows if row.cost is not None), None) or ""


async def load_notes(session: Session, episode_id: str) -> Sequence[Note]:
    """Return the tags and notes of an episode and its steps; none where they cannot be read."""
    with contextlib.suppress(StoreError):  # the episode is shown without them
        if session.library is not None:
            return await asyncio.to_thread(session.library.notes, episode_id)
    return ()


async def select_episodes(session: Session, query: str, episode_id: str) -> EpisodeList:
    """Return the list of the stored and live episodes that a query selects.

    Only the episode ``episode_id`` is selected if the query has an error or the stored episodes cannot be read.
    """
    episodes = EpisodeList()
    episodes.search(exact_terms(id=episode_id))
    with contextlib.suppress(StoreError):
        await asyncio.to_thread(_select, episodes, query, session)
    return episodes


def _select(episodes: EpisodeList, query: str, session: Session) -> None:
    library = session.library
    episodes.set_tags(session.store.tags)
    episodes.add_lookups({} if library is None else library.lookups())
    rows = () if library is None else library.rows(check_files=False)
    if episodes.search(query) is None:
        episodes.set_stored(filter(episodes.query.matches, rows))


async def _load(session: Session, entry: ListEntry | None, episode_id: str) -> LoadedEpisode:
    live = session.store.episodes.get(episode_id)
    if live is not None and live.running and not isinstance(entry, UnreadableFile):
        return LoadedEpisode(live, None)
    try:
        return await load_file(session, entry, episode_id)
    except EpisodeLoadError as exc:
        if live is None or isinstance(entry, UnreadableFile):
            raise
        return LoadedEpisode(live, None, str(exc))


async def load_file(session: Session, entry: ListEntry | None, episode_id: str) -> LoadedEpisode:
    """Load the file of an episode, which may exist before the end of the episode has been received.

    Raises:
        EpisodeLoadError: the file is not available.
    """
    if isinstance(entry, UnreadableFile):
        raise EpisodeLoadError(f"{entry.path}\n{entry.reason}")
    try:
        return await _fetch(session, episode_id)
    except (StoreError, ControlRequestError) as exc:
        raise EpisodeLoadError(_error_text(exc)) from exc


async def _fetch(session: Session, episode_id: str) -> LoadedEpisode:
    if (library := session.library) is not None:
        episode, data = await asyncio.to_thread(library.load, episode_id)
        return LoadedEpisode(episode, data, path=await asyncio.to_thread(library.path, episode_id))
    if session.control is None:
        raise ControlRequestError("no node can supply this episode")
    data = await session.control.fetch_episode(episode_id)
    return LoadedEpisode(await asyncio.to_thread(episode_from_bytes, data, Path(f"{episode_id[:40]}.json")), data)


def _error_text(exc: Exception) -> str:
    hint = exc.hint if isinstance(exc, ControlRequestError) else ""
    return f"{exc}\n{hint}" if hint else str(exc)


class EpisodeRepair:
    """Merges the files of episodes with missing live items into a store.

    Args:
        store: the store of the console.
        library: the files of the state directory. A file that cannot be read is skipped; the screen shows the gap.
    """

    def __init__(self, store: RunStore, library: StateDirLibrary) -> None:
        self._store, self._library = store, library
        self._n_missing: dict[str, int] = {}

    async def run(self) -> None:
        """Repeatedly read the files of those newest episodes whose live items are missing, until cancelled."""
        while True:
            await asyncio.sleep(REPAIR_INTERVAL_S)
            newest = [*self._store.episodes.values()][-MAX_REPAIRED:]
            missing = [each for each in newest if each.n_missing > self._n_missing.get(each.episode_id, 0)]
            self._n_missing = {each.episode_id: each.n_missing for each in newest if each.n_missing}
            await self.read_journals({episode.batch_id for episode in missing if episode.running})
            for episode in missing:
                if not episode.running:
                    await self._read_file(episode.episode_id)

    async def read_journals(self, batch_ids: Set[str]) -> None:
        """Merge the journals of the running episodes of these batches into the store."""
        if not batch_ids:
            return
        with contextlib.suppress(RunnerError):
            for episode in await asyncio.to_thread(self._library.read_journals, batch_ids):
                self._store.merge_episode(episode)

    async def _read_file(self, episode_id: str) -> None:
        with contextlib.suppress(RunnerError):
            episode, _ = await asyncio.to_thread(self._library.load, episode_id)
            self._store.merge_episode(episode)
