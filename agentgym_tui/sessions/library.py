"""Libraries: the stored episodes that screens list, and the library of a state directory."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from agentgym_tui.sessions.episode_files import episode_from_bytes, episode_from_record, running_episode
from agentgym_tui.sessions.text_search import TextSearch, TextSource
from agentgym_tui.state.batches import BatchTotals
from agentgym_tui.state.episode import Episode
from agentgym_tui.state.episode_list import UnreadableFile
from runner.errors import ConfigError, StoreError
from runner.events.control import BatchState
from runner.types import Tokens, split_models

if TYPE_CHECKING:
    from runner.query.fields import Lookup
    from runner.results.summary import ResultSource
    from runner.store import EpisodeIndex, EpisodeRow, EpisodeStore
    from runner.store.notes import Notes
    from runner.store.text_index import TextIndex
    from runner.types.notes import Note

MAX_ROWS: Final = 100_000  # largest number of episodes listed; older episodes are left out
RECONCILE_EVERY_S: Final = 5.0  # between comparisons of the episode index with the episode files
PAGE: Final = 2_000  # number of rows of a page; all of them are read again after one has changed
N_SPARE_PAGES: Final = 10  # number of pages by which the rows may exceed the limit before the oldest ones are dropped
MAX_TIMED: Final = 50  # number of the newest batches whose times are read; these are in no index
MAX_UNLISTED: Final = 50  # number of the newest stored batches among which those are found that no node lists

_PAGE: Final = "WHERE (episode_id, batch_id) > (?, ?) ORDER BY episode_id, batch_id LIMIT ?"
_STATE: Final = f"""  -- changes with the files of the rows of a page
    SELECT count(*), max(episode_id), max(mtime_ns), sum(mtime_ns % 1000000007), sum(size)
    FROM (SELECT episode_id, mtime_ns, size FROM episodes {_PAGE})
"""
_LAST_DROPPED: Final = """
    SELECT episode_id, batch_id FROM episodes ORDER BY episode_id DESC, batch_id DESC LIMIT 1 OFFSET ?
"""
_OF_BATCHES: Final = "batch_id IN (SELECT value FROM json_each(?))"


class ResultLibrary:
    """Episodes that have results. The methods block, so they are called in a thread, and raise ``StoreError``."""

    def rows(self, *, check_files: bool = True) -> Sequence[EpisodeRow]:
        """Return the newest first; with ``check_files`` look for what another program has changed in the files."""
        raise NotImplementedError

    def lookups(self) -> Mapping[str, Lookup]:
        """Return what finds the ids of episodes for a field of a query, by field."""
        return {}

    def result_source(self) -> ResultSource:
        raise NotImplementedError


class Library(ResultLibrary):
    """Library of stored episodes."""

    texts: TextSearch
    first_rows: Sequence[EpisodeRow] = ()  # known before ``rows`` is called; shown at the first paint
    notes_state: object = None  # another value after notes have changed
    unreadable: Sequence[UnreadableFile] = ()  # also archives and folders

    def notes(self, episode_id: str) -> Sequence[Note]:
        """Return the tags and notes of an episode and its steps, the oldest first."""
        return ()

    def load(self, episode_id: str) -> tuple[Episode, bytes]:
        data = self.read(episode_id)
        return episode_from_bytes(data, self.path(episode_id) or Path(episode_id)), data

    def read(self, episode_id: str) -> bytes:
        """Return the content of an episode's file, or of an episode of another tool as such a file."""
        raise NotImplementedError

    def path(self, episode_id: str) -> Path | None:
        """Return the path of the file or archive that has an episode; None if it is not known."""
        return None


class StateDirLibrary(Library):
    """The episodes in a state directory, listed from its index, which the node updates, too.

    ``find`` returns the state directory at the first read, in the thread of the reader, or raises ``ConfigError``.
    """

    def __init__(self, find: Callable[[], Path]) -> None:
        self.texts = TextSearch(
            TextSource(self._open_texts, lambda *query: self.opened()[1].select(*query), self._version, self.read)
        )
        self._find = find
        self._lock, self._rows_lock = threading.Lock(), threading.Lock()
        self._pages: RowPages | None = None
        self._opened: tuple[EpisodeStore, EpisodeIndex] | None = None
        self._reconciled = 0.0
        self._n_rows = 0

    def opened(self) -> tuple[EpisodeStore, EpisodeIndex]:
        from runner.store import EpisodeStore, open_index_to_read

        with self._lock:
            if self._opened is None:
                try:
                    store = EpisodeStore(self._find())
                except ConfigError as exc:
                    raise StoreError(str(exc)) from exc
                self._opened = store, open_index_to_read(store)
                self._reconciled = time.monotonic()
            return self._opened

    def close(self) -> None:
        self.texts.close()
        with self._lock:
            if self._opened is not None:
                self._opened[1].close()
                self._opened = self._pages = None

    def rows(self, *, check_files: bool = True) -> list[EpisodeRow]:
        """Rows that have not changed are the same objects as before; at most ``MAX_ROWS``."""
        _, index = self.opened()
        if check_files and time.monotonic() - self._reconciled > RECONCILE_EVERY_S:
            index.reconcile()
            self._reconciled = time.monotonic()
        self.unreadable = [UnreadableFile(file.path, file.reason) for file in index.damaged]
        self.has_changed()
        with self._rows_lock:
            self._pages = self._pages or RowPages(index)
            return self._pages.rows(MAX_ROWS)

    def has_changed(self) -> bool:
        """Return whether another process has added or deleted episodes since the last call, or since ``rows``."""
        ((n_rows,),) = self.opened()[1].select("SELECT count(*) FROM episodes")
        before, self._n_rows = self._n_rows, n_rows
        return bool(before != n_rows)

    def lookups(self) -> Mapping[str, Lookup]:
        from runner.query.episodes import note_lookups

        return {**note_lookups(self.opened()[0].data_dir), "text": self.texts.lookup}

    def result_source(self) -> EpisodeIndex:
        return self.opened()[1]

    def load(self, episode_id: str) -> tuple[Episode, bytes]:
        from runner.store.episode_file import decode_episode

        data, path = self.read(episode_id), self._file(episode_id)
        if path is None:
            return episode_from_bytes(data, Path(episode_id)), data
        self.opened()[1].check_file(path)
        return episode_from_record(decode_episode(data, path)), data

    def read(self, episode_id: str) -> bytes:
        store, path = self.opened()[0], self._file(episode_id)
        return store.read_bytes(episode_id) if path is None else store.read(path)

    def path(self, episode_id: str) -> Path | None:
        path, store = self._file(episode_id), self.opened()[0]
        is_archived = path is not None and not path.exists() and store.is_archived(path)
        return store.archive_path(path.parent.name) if path is not None and is_archived else path

    def _file(self, episode_id: str) -> Path | None:
        store, index = self.opened()
        known = index.select("SELECT batch_id FROM episodes WHERE episode_id = ? LIMIT 1", (episode_id,))
        return store.path(known[0][0], episode_id) if known else None

    def _open_texts(self) -> TextIndex:
        from runner.store.text_index import TextIndex

        return TextIndex.of(self.opened()[0])

    def _version(self) -> tuple[object, bool]:
        from runner.store.index import FILE_NAME
        from runner.util.sqlite import file_state

        return file_state(self.opened()[0].data_dir / FILE_NAME), True

    def tags(self) -> dict[str, tuple[str, ...]]:
        from runner.util.sqlite import file_state

        self.notes_state = file_state(self._notes().path)
        return self._notes().tags()

    def notes(self, episode_id: str) -> Sequence[Note]:
        return self._notes().of_episode(episode_id)

    def _notes(self) -> Notes:
        from runner.store.notes import Notes

        return Notes(self.opened()[0].data_dir)

    def n_unlisted(self, known: Collection[str]) -> int:
        query = f"SELECT count(DISTINCT batch_id) FROM episodes WHERE NOT {_OF_BATCHES}"
        ((count,),) = self.opened()[1].select(query, (json.dumps([*known]),))
        return int(count)

    def unlisted_batches(self, known: Collection[str]) -> list[BatchState]:
        """Return the newest ended batches that are not ``known``, as a command without a node played them.

        A batch with a journal is still running, and its events follow.
        """
        store, index = self.opened()
        columns = "batch_id, battery_id, env, agent, model, count(*), max(episode_id)"
        newest = f"SELECT DISTINCT batch_id FROM episodes ORDER BY batch_id DESC LIMIT {MAX_UNLISTED}"
        query = f"SELECT {columns} FROM episodes WHERE batch_id IN ({newest}) GROUP BY batch_id ORDER BY batch_id DESC"
        rows = [row for row in index.select(query) if row[0] not in known]
        found = (_ended_batch(store, row) for row in rows if not store.has_journal(row[0]))
        return [state for state in found if state is not None]

    def read_journals(self, batch_ids: Iterable[str]) -> list[Episode]:
        from runner.store.journal import JOURNAL_SUFFIX, read_journal
        from runner.util.clock import is_ulid

        episodes: list[Episode] = []
        for batch_id in filter(is_ulid, batch_ids):
            for path in (self.opened()[0].runs / batch_id).glob(f"*{JOURNAL_SUFFIX}"):
                with suppress(StoreError):  # the episode has ended, or its journal is damaged, which the node reports
                    episodes.append(running_episode(read_journal(path)))
        return episodes


class RowPages:
    """Reads the newest rows of an index, again and again; unchanged rows stay the same objects.

    Pages are counted from the oldest row on, so that a new episode changes only the last page.
    """

    def __init__(self, index: EpisodeIndex) -> None:
        self._index = index
        self._after: tuple[str, str] = ("", "")
        self._pages: dict[tuple[Any, ...], list[EpisodeRow]] = {}

    def rows(self, limit: int) -> list[EpisodeRow]:
        n_rows = self._read()
        if n_rows > limit + N_SPARE_PAGES * PAGE or (n_rows < limit and any(self._after)):
            dropped = self._index.select(_LAST_DROPPED, (limit,))
            self._after = dropped[0] if dropped else ("", "")
            self._read()
        return list(chain.from_iterable(map(reversed, reversed(self._pages.values()))))[:limit]

    def _read(self) -> int:
        pages: dict[tuple[Any, ...], list[EpisodeRow]] = {}
        after, page = self._after, list["EpisodeRow"]()
        while not pages or len(page) == PAGE:
            (state,) = self._index.select(_STATE, (*after, PAGE))
            key = (*after, *state)
            page = self._pages.get(key) or list(self._index.rows(_PAGE, (*after, PAGE)))
            if not page:
                break
            pages[key] = page
            after = page[-1].episode_id, page[-1].batch_id
        self._pages = pages
        return sum(map(len, pages.values()))


def read_batch_totals(source: ResultSource, batch_ids: Sequence[str]) -> list[BatchTotals]:
    """Return the sums of the batches, the newest batch last in ``batch_ids``; raises ``StoreError``."""
    from runner.results.summary import IS_RATED

    def grouped(columns: str, batch_ids: Sequence[str]) -> list[tuple[Any, ...]]:
        query = f"SELECT batch_id, {columns} FROM episodes WHERE {_OF_BATCHES} GROUP BY batch_id"
        return source.select(query, (json.dumps(list(batch_ids)),))

    kinds = ", ".join(f"CAST(total(tokens_{kind}) AS INTEGER)" for kind in Tokens.__struct_fields__)
    columns = f"""
        count(*) FILTER (WHERE {IS_RATED}), count(*) FILTER (WHERE {IS_RATED} AND success),
        count(*) FILTER (WHERE outcome = 'error'), avg(reward) FILTER (WHERE {IS_RATED}), sum(cost),
        json_group_array(DISTINCT models), {kinds}
    """
    times = {row[0]: row[1:] for row in grouped("min(started_at), max(ended_at)", batch_ids[-MAX_TIMED:])}
    totals: list[BatchTotals] = []
    for batch_id, n_rated, n_success, n_errors, reward, cost, models, *tokens in grouped(columns, batch_ids):
        counts, ends = (n_rated, n_success, n_errors), map(_time, times.get(batch_id, (None, None)))
        answered = [name for each in json.loads(models) for name in split_models(each)]
        totals.append(BatchTotals(batch_id, *counts, reward, Tokens(*tokens), cost, answered, *ends))
    return totals


def _time(value: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(value)) if value else None
    except ValueError:
        return None


def _ended_batch(store: EpisodeStore, row: Sequence[Any]) -> BatchState | None:
    batch_id, battery_id, env, agent, model, n_done, episode_id = row
    try:
        n_planned = store.load(store.path(batch_id, episode_id)).n_planned or n_done
    except StoreError:  # the list of episodes shows the damaged file
        return None
    played = {"batch_id": batch_id, "battery_id": battery_id, "env": env, "agent": agent, "model": model}
    status: Literal["completed", "interrupted"] = "completed" if n_done >= n_planned else "interrupted"
    return BatchState(**played, status=status, n_done=n_done, n_planned=max(n_done, n_planned))
