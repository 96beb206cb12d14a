"""The stored episodes that screens list: the library of a state directory, searching texts, exporting and cleaning up.

Episodes of opened files are copied into a temporary state directory, and exported from there.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from msgspec.structs import replace

from agentgym_tui.sessions.episode_files import (
    episode_from_bytes,
    episode_from_record,
    record_from_bytes,
    running_episode,
)
from agentgym_tui.state.batches import BatchTotals
from agentgym_tui.state.episode import Episode
from agentgym_tui.state.episode_list import SearchProgress, UnreadableFile
from runner.errors import ConfigError, StoreError
from runner.events.control import BatchState
from runner.query.syntax import Node, QueryError, parse
from runner.types import Tokens, split_models
from runner.util.clock import is_ulid
from runner.util.files import MAX_FILE_BYTES, exists, read_regular, replace_file

if TYPE_CHECKING:
    import re

    from runner.formats.export import Manifest
    from runner.formats.format import Format
    from runner.formats.selection import Candidate, Reasons
    from runner.formats.training import Audit
    from runner.node.retention import CleanUpAction, PruneReport
    from runner.query.fields import Lookup
    from runner.results.summary import ResultSource
    from runner.store import EpisodeIndex, EpisodeRow, EpisodeStore
    from runner.store.notes import Notes
    from runner.store.passages import Hit, TextPattern
    from runner.store.text_index import TextIndex
    from runner.types.notes import Note

MAX_ROWS: Final = 100_000  # largest number of episodes listed; older episodes are left out
RECONCILE_EVERY_S: Final = 5.0  # between comparisons of the episode index with the episode files
PAGE: Final = 2_000  # number of rows of a page; all of them are read again after one has changed
N_SPARE_PAGES: Final = 10  # number of pages by which the rows may exceed the limit before the oldest ones are dropped
MAX_TIMED: Final = 50  # number of the newest batches whose times are read; these are in no index
MAX_UNLISTED: Final = 50  # number of the newest stored batches among which those are found that no node lists
FEW: Final = 50  # largest number of episodes that a search adds to the index itself, within a tenth of a second
REST: Final = 1.0  # how many times as long as it works the indexing rests
LINE_CHARS: Final = 300  # largest number of characters that are kept of a line
CONTEXT_CHARS: Final = 40  # number of characters kept before the words in a longer line
MAX_KEPT_EPISODES: Final = 200

_PAGE: Final = "WHERE (episode_id, batch_id) > (?, ?) ORDER BY episode_id, batch_id LIMIT ?"
_STATE: Final = f"""  -- changes with the files of the rows of a page
    SELECT count(*), max(episode_id), max(mtime_ns), sum(mtime_ns % 1000000007), sum(size)
    FROM (SELECT episode_id, mtime_ns, size FROM episodes {_PAGE})
"""
_LAST_DROPPED: Final = """
    SELECT episode_id, batch_id FROM episodes ORDER BY episode_id DESC, batch_id DESC LIMIT 1 OFFSET ?
"""
_OF_BATCHES: Final = "batch_id IN (SELECT value FROM json_each(?))"
_CHOSEN: Final = "episode_id IN (SELECT value FROM json_each(:ids))"


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
    texts: TextSearch
    first_rows: Sequence[EpisodeRow] = ()  # known before ``rows`` is called; shown at the first paint
    notes_state: object = None  # another value after notes have changed
    unreadable: Sequence[UnreadableFile] = ()  # also archives and folders

    def lookups(self) -> Mapping[str, Lookup]:
        return {"text": self.texts.lookup}

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

        return {**note_lookups(self.opened()[0].data_dir), **super().lookups()}

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
        is_archived = path is not None and not exists(path) and store.is_archived(path)
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

        notes = self._notes()
        self.notes_state = file_state(notes.path)
        return notes.tags()

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
        """Return the newest ended batches that are not ``known``, as a command without a node played them."""
        store, index = self.opened()
        columns = "batch_id, battery_id, env, agent, model, count(*), max(episode_id)"
        newest = f"SELECT DISTINCT batch_id FROM episodes ORDER BY batch_id DESC LIMIT {MAX_UNLISTED}"
        query = f"SELECT {columns} FROM episodes WHERE batch_id IN ({newest}) GROUP BY batch_id ORDER BY batch_id DESC"
        rows = [row for row in index.select(query) if row[0] not in known]
        found = (_ended_batch(store, row) for row in rows if not store.has_journal(row[0]))  # else it still runs
        return [state for state in found if state is not None]

    def read_journals(self, batch_ids: Iterable[str]) -> list[Episode]:
        from runner.store.journal import JOURNAL_SUFFIX, read_journal

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


class TextSource(NamedTuple):  # the functions may raise ``StoreError``
    open_index: Callable[[], TextIndex]
    select: Callable[[str], list[tuple[Any, ...]]]  # a query of a table ``episodes`` with size and time of the files
    version: Callable[[], tuple[object, bool]]  # what changes with the table, and whether that has all episodes
    read: Callable[[str], bytes]  # by the id of the episode


class TextSearch:
    """The texts of a library. Only ``needs`` and ``lookup`` do not block; the other methods raise ``StoreError``."""

    def __init__(self, source: TextSource) -> None:
        self.progress = SearchProgress(0, 0)  # of the last ``find``
        self._source = source
        self._lock = threading.Lock()
        self._index: TextIndex | None = None
        self._found: Mapping[tuple[str, bool], frozenset[str]] = {}
        self._complete_version: object = None
        self._is_building, self._stop = False, threading.Event()

    def needs(self, query: str) -> bool:
        """Return whether a query has words that the last ``find`` has not looked up, or not in all episodes."""
        values = text_values_of(query)
        return any(value not in self._found for value in values) or bool(values and not self.progress.is_complete)

    def lookup(self, words: str, quoted: bool) -> Collection[str]:
        """Return the ids of the episodes that ``find`` has found for a value of ``text``."""
        return self._found.get((words, quoted), ())

    def find(self, query: str) -> None:
        """Look up all words of a query, after a few missing episodes were added to the index."""
        from runner.query.episodes import text_pattern

        values, index = text_values_of(query), self._opened()
        self._add_few(index)
        self._found = {value: frozenset(index.search([text_pattern(*value)])) for value in values}

    def count(self, patterns: Sequence[TextPattern], episode_ids: Collection[str]) -> int:
        return self._opened().count(patterns, frozenset(episode_ids))

    def hits(self, episode_id: str, patterns: Sequence[TextPattern]) -> list[Hit]:
        from runner.store.passages import find_hits

        return list(find_hits(self._source.read(episode_id), patterns))

    def build(self) -> None:
        """Add all missing episodes to the index, half of the time, unless another thread or process does it."""
        from runner.store.text_index import STAMPS

        with self._lock:
            if self._is_building:
                return
            self._is_building = True
        try:
            if self._source.version()[1]:
                stamps = self._source.select(STAMPS)
                self._opened().build(stamps, lambda seconds: not self._stop.wait(REST * seconds))
        finally:
            self._is_building = False

    def close(self) -> None:
        self._stop.set()
        with self._lock:
            if self._index is not None:
                self._index.close()

    def _opened(self) -> TextIndex:
        with self._lock:
            self._index = self._index or self._source.open_index()
            return self._index

    def _add_few(self, index: TextIndex) -> None:
        from runner.store.text_index import STAMPS, SUMMARY
        from runner.util.sqlite import file_id

        version, is_all = self._source.version()
        if is_all and self._complete_version == (version, file_id(index.path)):
            return
        summary, n_missing = self._source.select(SUMMARY)[0], 0
        if not is_all or summary != index.summary():
            n_missing = index.update(self._source.select(STAMPS), at_most=FEW, is_all=is_all)
        self.progress = SearchProgress(summary[0] - n_missing, summary[0])
        if not n_missing and is_all:
            self._complete_version = version, file_id(index.path)


def parsed(query: str) -> Node | None:
    try:
        return parse(query)
    except QueryError:
        return None


def text_values_of(query: str) -> list[tuple[str, bool]]:
    from runner.query.episodes import text_values

    node = parsed(query) if "text" in query.lower() else None  # most queries have none
    return [] if node is None else text_values(node)


class FoundLine(NamedTuple):
    """A line with the words; ``number`` counts the lines of the episode that have them."""

    episode_id: str
    number: int
    hit: Hit


class TextHits:
    """The lines of listed episodes with the words of a query, in this order, read as needed: call it in a thread."""

    def __init__(self, texts: TextSearch, query: str, episode_ids: Sequence[str]) -> None:
        from runner.query.episodes import text_patterns

        node = parsed(query)
        self.query, self.episode_ids = query, episode_ids
        self.patterns: list[TextPattern] = [] if node is None else text_patterns(node)
        self._texts = texts
        self._places = {episode_id: place for place, episode_id in enumerate(episode_ids)}
        self.of = lru_cache(MAX_KEPT_EPISODES)(self._lines_of)

    @property
    def progress(self) -> SearchProgress:
        return self._texts.progress

    @property
    def expressions(self) -> list[re.Pattern[str]]:
        return [compiled for pattern in self.patterns if (compiled := pattern.compiled()) is not None]

    def count(self) -> int:
        return self._texts.count(self.patterns, self.episode_ids)

    def _lines_of(self, episode_id: str) -> list[FoundLine]:
        with suppress(StoreError):  # the file was deleted since, or is damaged, which the list shows
            hits = self._texts.hits(episode_id, self.patterns)
            return [FoundLine(episode_id, number, _shortened(hit)) for number, hit in enumerate(hits)]
        return []

    def of_all(self, episode_ids: Sequence[str]) -> list[FoundLine]:
        return [line for episode_id in episode_ids for line in self.of(episode_id)]

    def beyond(self, episode_id: str, number: int, by: int) -> FoundLine | None:
        """Return the next line (``by`` is 1) or the previous one (-1), across episodes; None if there is none."""
        here = self.of(episode_id)
        if 0 <= number + by < len(here):
            return here[number + by]
        place = self._places.get(episode_id, -1)
        others = self.episode_ids[place + 1 :] if by > 0 else self.episode_ids[: max(place, 0)][::-1]
        lines = next(filter(None, map(self.of, others)), None)
        return lines[0 if by > 0 else -1] if lines else None


def _shortened(hit: Hit) -> Hit:
    if len(hit.line) <= LINE_CHARS:
        return hit
    start = max(0, hit.start - CONTEXT_CHARS)
    line = hit.line[start : start + LINE_CHARS]
    return replace(hit, line=line, start=hit.start - start, end=min(hit.end - start, len(line)))


class ExportStopped(StoreError):
    """The user has stopped an export; nothing was written."""


class ExportJob:
    """An export of episodes, and how far it is; ``filters`` are fields of ``Filters``, ``query`` for the manifest."""

    def __init__(self, episode_ids: Sequence[str], target: Format, path: Path, filters: list[str], query: str) -> None:
        self.episode_ids, self.target, self.path, self.filters, self.query = episode_ids, target, path, filters, query
        self.n_done = 0
        self._is_stopped = threading.Event()

    def stop(self) -> None:
        """Stop before the next episode; the output is removed."""
        self._is_stopped.set()

    def check(self) -> None:
        if self._is_stopped.is_set():
            raise ExportStopped("stopped; nothing was written")

    def counted(self, candidates: Sequence[Candidate]) -> Iterator[Candidate]:
        for candidate in candidates:
            self.check()
            yield candidate
            self.n_done += 1


class Exporter:
    """Writes episodes in the formats of trainers and other tools, and audits them; raises ``RunnerError``."""

    def chosen(
        self, episode_ids: Sequence[str], check: Callable[[], None]
    ) -> AbstractContextManager[tuple[EpisodeStore, EpisodeIndex, Counter[str]]]:
        """Return a store of these episodes, its index, and the number of unreadable ones by reason.

        ``check`` is called before each episode that is copied, and may raise.
        """
        raise NotImplementedError

    async def export(self, job: ExportJob) -> Manifest:
        def export() -> Manifest:
            from runner.formats.export import export_episodes

            now, query, filters = datetime.now(UTC), job.query, job.filters
            with self._selected(job) as selected:
                return export_episodes(*selected, job.target, job.path, query=query, filters=filters, now=now)

        return await asyncio.to_thread(export)

    async def audit(self, job: ExportJob) -> Audit:
        """Write nothing, and return what a trainer could use of an export."""

        def audit() -> Audit:
            from runner.formats.training import audit_episodes

            with self._selected(job) as selected:
                return audit_episodes(*selected)

        return await asyncio.to_thread(audit)

    @contextmanager
    def _selected(self, job: ExportJob) -> Iterator[tuple[EpisodeStore, Iterator[Candidate], Reasons]]:
        from runner.formats.selection import Filters, select_candidates

        ids, filters = {"ids": json.dumps(list(job.episode_ids))}, Filters(**dict.fromkeys(job.filters, True))
        with self.chosen(job.episode_ids, job.check) as (store, index, unreadable):
            found, reasons = select_candidates(index, _CHOSEN, ids, filters, by_task=job.target.by_task)
            yield store, job.counted(found), reasons + unreadable


class Curation(Exporter):
    """Archives, deletes and exports the episodes of a state directory; ``open_store`` is called in another thread."""

    def __init__(self, open_store: Callable[[], tuple[EpisodeStore, EpisodeIndex]]) -> None:
        self._open_store = open_store

    async def clean_up(
        self, action: CleanUpAction, episode_ids: Collection[str], *, dry_run: bool = False
    ) -> PruneReport:
        """Archive or delete episodes, as far as it is possible, or return what would be done; raises ``StoreError``."""

        def prune() -> PruneReport:
            from runner.node.retention import Policy, Pruner
            from runner.publish.outbox import Outbox

            store, index = self._open_store()
            with closing(Outbox(index)) as outbox:
                return Pruner(store, index, outbox).prune(Policy.of_chosen(action, episode_ids), dry_run=dry_run)

        return await asyncio.to_thread(prune)

    def chosen(
        self, episode_ids: Sequence[str], check: Callable[[], None]
    ) -> AbstractContextManager[tuple[EpisodeStore, EpisodeIndex, Counter[str]]]:
        return nullcontext((*self._open_store(), Counter()))


class FileExporter(Exporter):
    """Writes episodes of opened files, also unfinished ones and those of other tools; the files stay as they are."""

    def __init__(self, files: Library) -> None:
        self._files = files

    @contextmanager
    def chosen(
        self, episode_ids: Sequence[str], check: Callable[[], None]
    ) -> Iterator[tuple[EpisodeStore, EpisodeIndex, Counter[str]]]:
        from runner.store import open_index

        with self._copied(episode_ids, check) as (store, unreadable), closing(open_index(store)) as index:
            yield store, index, unreadable

    async def archive(self, episode_ids: Sequence[str], path: Path) -> tuple[int, Counter[str]]:
        """Copy episodes into a new zip archive; return their number, and that of the unreadable ones by reason."""
        return await asyncio.to_thread(self._archive, episode_ids, path)

    def _archive(self, episode_ids: Sequence[str], path: Path) -> tuple[int, Counter[str]]:
        from runner.store.archive import Source, write_archive

        if exists(path):
            raise StoreError(f"{path} exists; move it away")
        with self._copied(episode_ids) as (store, unreadable):
            files = sorted(each for each in store.runs.glob("*/*") if each.is_file())
            if not (n_copied := len(episode_ids) - unreadable.total()):
                raise StoreError(f"no episode can be read: {next(iter(unreadable))}")
            write_archive(path, [Source(str(each.relative_to(store.data_dir)), each) for each in files])
        return n_copied, unreadable

    @contextmanager
    def _copied(
        self, episode_ids: Sequence[str], check: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[EpisodeStore, Counter[str]]]:
        from runner.store import EpisodeStore

        with tempfile.TemporaryDirectory(prefix="agentgym-export-") as folder:
            store, unreadable = EpisodeStore(Path(folder)), Counter[str]()
            for episode_id in episode_ids:
                check()
                try:
                    self._copy(store, episode_id)
                except StoreError as exc:
                    unreadable[str(exc)] += 1
            yield store, unreadable

    def _copy(self, store: EpisodeStore, episode_id: str) -> None:
        from runner.store.token_file import TOKENS_SUFFIX

        data, path = self._files.read(episode_id), self._files.path(episode_id)
        copy = store.path(record_from_bytes(data, Path(episode_id)).batch_id, episode_id)
        try:
            copy.parent.mkdir(parents=True, exist_ok=True)
            if path is not None:
                with suppress(FileNotFoundError, NotADirectoryError):
                    tokens, _ = read_regular(path.with_suffix(TOKENS_SUFFIX), MAX_FILE_BYTES, links=False)
                    replace_file(copy.with_suffix(TOKENS_SUFFIX), tokens)
            replace_file(copy, data)
        except OSError as exc:
            raise StoreError(f"episode {episode_id} cannot be copied: {exc}") from exc
