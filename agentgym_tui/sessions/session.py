"""Sessions, through which all screens reach their data, and loading an episode through one.

A session is connected to the node of a state directory, watches a bus, or reads files.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from agentgym_tui.sessions.episode_files import episode_from_bytes, is_log
from agentgym_tui.sessions.event_reader import EventSource
from agentgym_tui.sessions.library import Curation, Exporter, FileExporter, Library, ResultLibrary
from agentgym_tui.state.episode import Episode
from agentgym_tui.state.episode_list import EpisodeList, FoundLog, ListEntry, UnreadableFile, exact_terms
from agentgym_tui.state.nodes import READING_FILES, BusLink
from agentgym_tui.state.run_store import RunStore
from runner.client.node_client import ControlRequestError, NodeClient
from runner.errors import StoreError
from runner.util.clock import is_ulid

if TYPE_CHECKING:
    from agentgym_tui.logs import LogFile
    from runner.config import Profile, ProfileFile
    from runner.store.index_schema import EpisodeRow
    from runner.types.notes import Note

FILES_ONLY: Final = "files only: nothing can be started here; use `agentgym-tui launch`"


class Session:
    """Source of the state that the console shows, and recipient of the user's commands.

    ``read_only`` is why commands are not allowed, or ""; ``store`` changes only in the event loop.
    """

    library: Library | None = None
    received: ResultLibrary | None = None  # the ended episodes that the bus has reported, where there is no library
    curation: Curation | None = None
    exporter: Exporter | None = None
    archiver: FileExporter | None = None  # of opened files
    control: NodeClient | None = None
    events: EventSource | None = None
    logs: Sequence[LogFile] = ()  # only grows
    has_node_logs: bool = False
    node = ""  # to which commands go; "" while it is not known
    profile: tuple[Profile, ProfileFile] | None = None  # in use, where it is known
    data_dir: Path | None = None  # also None while it is not known yet

    def __init__(self, title: str, read_only: str, store: RunStore) -> None:
        self.title, self.read_only, self.store = title, read_only, store

    # The next four raise ``ControlRequestError`` if the session cannot do it, or the node does not reply.
    async def start_node(self) -> None:
        raise ControlRequestError(self.read_only)

    async def stop_node(self, *, drain: bool = False) -> None:
        """Stop the node after the running steps, or with ``drain`` after all queued batches."""
        raise ControlRequestError(self.read_only)

    async def restart_node(self) -> None:
        """Stop the node, start it with the profile as it is now, and resume its batches unless one was paused."""
        raise ControlRequestError(self.read_only)

    async def use_profile(self, path: Path) -> None:
        """Use another profile from now on; the running node keeps its own until it restarts."""
        raise ControlRequestError(self.read_only)

    def open_logs(self) -> Sequence[LogFile]:
        return self.logs

    async def run(self) -> None:
        """Update ``store`` until cancelled or until all files are read; called after the first paint."""

    async def close(self) -> None:
        """Release the resources of the session; a node that the session started keeps running."""
        for log in self.logs:
            log.close()


class FileSession(Session):
    """Shows the episode files and log files named on the command line; it writes only into ``cache_folder``."""

    def __init__(self, paths: Sequence[Path], cache_folder: Path | None = None) -> None:
        from agentgym_tui.logs import LogFile
        from agentgym_tui.sessions.file_library import FileLibrary

        super().__init__(", ".join(map(str, paths)), FILES_ONLY, RunStore())
        logs = dict.fromkeys(path for path in paths if is_log(path))
        self.logs = [LogFile(path) for path in logs]
        self.library = self._files = FileLibrary([path for path in paths if path not in logs], cache_folder)
        self.exporter = self.archiver = FileExporter(self._files)

    async def run(self) -> None:
        from agentgym_tui.logs import LogFile

        parts = self._files.scan()
        self.store.set_link(READING_FILES)
        while (rows := await asyncio.to_thread(next, parts, None)) is not None:
            known = {log.path for log in self.logs}
            found = (file.path for file in self._files.unreadable if isinstance(file, FoundLog))
            self.logs = [*self.logs, *(LogFile(path) for path in found if path not in known)]
            self.store.read_progress = self._files.progress
            self.store.currency = self.store.currency or currency_of(rows)
            self.store.apply_stored(rows)
        self.store.read_progress = None
        self.store.set_link(BusLink("none", "files"))

    async def close(self) -> None:
        await asyncio.to_thread(self._files.close)
        await super().close()


def currency_of(rows: Sequence[EpisodeRow]) -> str:
    """Return the currency of the newest of the episodes with a cost; "" if that is not known."""
    return next((row.currency for row in rows if row.cost is not None), None) or ""


class LoadedEpisode(NamedTuple):
    episode: Episode
    data: bytes | None  # of its file; None if it comes from the live state
    missing_reason: str = ""  # why the file of an ended episode is not available
    path: Path | None = None  # on this machine, where it is known
    trace: Path | None = None  # the Perfetto trace of its batch, if there is one beside the path


class EpisodeLoadError(Exception):
    """An episode cannot be shown. The message is the reason; untrusted text."""

    published_error_type = "NotLoaded"


async def load_episode(session: Session, entry: ListEntry | None, episode_id: str) -> LoadedEpisode:
    """Load an episode with its notes: the live state while it runs or where its file is not available.

    ``entry`` is its row in the list, if it has one. Raises ``EpisodeLoadError`` if there is neither of the two.
    """
    live = None if isinstance(entry, UnreadableFile) else session.store.episodes.get(episode_id)
    if live is not None and live.running:
        loaded = LoadedEpisode(live, None)
    else:
        try:
            loaded = await load_file(session, entry, episode_id)
        except EpisodeLoadError as exc:
            if live is None:
                raise
            loaded = LoadedEpisode(live, None, str(exc))
    loaded.episode.currency = loaded.episode.currency or session.store.currency
    loaded.episode.notes = await load_notes(session, episode_id)
    return loaded


async def load_file(session: Session, entry: ListEntry | None, episode_id: str) -> LoadedEpisode:
    """Load the file of an episode, which may exist before its end was received; raises ``EpisodeLoadError``."""
    if isinstance(entry, UnreadableFile):
        raise EpisodeLoadError(f"{entry.path}\n{entry.reason}")
    try:
        if (library := session.library) is not None:
            episode, data = await asyncio.to_thread(library.load, episode_id)
            path = await asyncio.to_thread(library.path, episode_id)
            return LoadedEpisode(episode, data, "", path, await asyncio.to_thread(_trace_of, path, episode.batch_id))
        if session.control is None:
            raise EpisodeLoadError("no node is connected that has this episode")
        data = await session.control.fetch_episode(episode_id)
        return LoadedEpisode(await asyncio.to_thread(episode_from_bytes, data, Path(f"{episode_id[:40]}.json")), data)
    except StoreError as exc:
        raise EpisodeLoadError(str(exc)) from exc
    except ControlRequestError as exc:
        raise EpisodeLoadError("\n".join(filter(None, (str(exc), exc.hint)))) from exc


def _trace_of(path: Path | None, batch_id: str | None) -> Path | None:
    """Return the trace of a batch in the state directory that has the file ``path`` of an episode."""
    if path is None or len(path.parents) < 3 or batch_id is None or not is_ulid(batch_id):
        return None
    from runner.store.archive import trace_member  # not before the first paint

    trace = path.parents[2] / trace_member(batch_id)  # as the name of an episode's file begins with runs/BATCH/
    return trace if trace.is_file() else None


async def load_notes(session: Session, episode_id: str) -> Sequence[Note]:
    with contextlib.suppress(StoreError):  # the episode is shown without them
        if session.library is not None:
            return await asyncio.to_thread(session.library.notes, episode_id)
    return ()


async def select_episodes(session: Session, query: str, episode_id: str) -> EpisodeList:
    """Return the list of the episodes that a query selects; only ``episode_id`` if it, or reading, has an error."""

    def select() -> None:
        library = session.library
        episodes.set_tags(session.store.tags)
        episodes.add_lookups({} if library is None else library.lookups())
        rows = () if library is None else library.rows(check_files=False)
        if episodes.search(query) is None:
            episodes.set_stored(filter(episodes.query.matches, rows))

    episodes = EpisodeList()
    episodes.search(exact_terms(id=episode_id))
    with contextlib.suppress(StoreError):
        await asyncio.to_thread(select)
    return episodes
