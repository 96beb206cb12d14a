"""Search in the texts of the stored episodes: what ``text:`` finds, and the lines with the words."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from agentgym_tui.state.episode_list import SearchProgress

if TYPE_CHECKING:
    from runner.query.syntax import Node
    from runner.store.index_schema import EpisodeRow
    from runner.store.passages import Hit, TextPattern
    from runner.store.text_index import Stamped, Summary, TextIndex

FEW: Final = 50
"""Largest number of episodes that a search adds to the index itself, within a tenth of a second."""
REST: Final = 1.0
"""How many times as long as it works the indexing rests."""


class TextSource(NamedTuple):
    """The episodes of a library; the functions may raise ``StoreError``.

    Attributes:
        open_index: opens the full-text index; called once.
        stamps: returns the files, and whether these are all.
        summary: returns number, size and latest change of all files; None where ``stamps`` is as fast.
        version: returns a value that changes with ``stamps``, without much work.
        read: returns the content of an episode file for the id of the episode.
    """

    open_index: Callable[[], TextIndex]
    stamps: Callable[[], tuple[Collection[Stamped], bool]]
    summary: Callable[[], Summary | None]
    version: Callable[[], object]
    read: Callable[[str], bytes]


class OpenedFiles(Protocol):
    """Episodes of opened files."""

    @property
    def version(self) -> tuple[int, bool]:
        """A number that grows with the known rows, and whether all files have been read."""
        ...

    def rows(self) -> Sequence[EpisodeRow]:
        """Return the known rows."""
        ...

    def path(self, episode_id: str) -> Path | None:
        """Return the path of the file that has an episode; None if it is not known."""
        ...

    def read(self, episode_id: str) -> bytes:
        """Return the content of an episode's file; raises ``StoreError``."""
        ...


class FileTexts:
    """The texts of opened files, with an index in the cache, as nothing is written into an opened folder.

    Args:
        files: the episodes.
        folder: the folder of all caches; None: the index is deleted when the process ends.
        paths: the opened files and folders.
    """

    def __init__(self, files: OpenedFiles, folder: Path | None, paths: Sequence[Path]) -> None:
        self.source = TextSource(self._open_index, self._stamps, lambda: None, lambda: files.version, files.read)
        self._files, self._folder, self._paths = files, folder, paths
        self._stamped: tuple[object, list[Stamped]] = (None, [])

    def _open_index(self) -> TextIndex:
        from agentgym_tui.sessions.row_cache import text_cache
        from runner.store.text_index import TextIndex

        path = text_cache(self._folder, self._paths)
        return TextIndex(path, lambda batch_id, episode_id: self._files.read(episode_id))

    def _stamps(self) -> tuple[Collection[Stamped], bool]:
        version = self._files.version
        if self._stamped[0] != version:
            stamps = [(row.episode_id, row.batch_id, *self._stamp(row.episode_id)) for row in self._files.rows()]
            self._stamped = version, stamps
        return self._stamped[1], version[1]

    def _stamp(self, episode_id: str) -> tuple[int, int]:
        """Return size and modification time of an episode's file or archive; zeros if it is gone."""
        path = self._files.path(episode_id)
        for each in () if path is None else (path, path.parent):
            with suppress(OSError):
                status = each.stat()
                return status.st_size, status.st_mtime_ns
        return 0, 0


class TextSearch:
    """The texts of a library. Only ``needs`` and ``lookup`` do not block; the other methods raise ``StoreError``.

    Args:
        source: the episodes.

    Attributes:
        progress: how many episodes were searched by the last ``find``.
    """

    def __init__(self, source: TextSource) -> None:
        self.progress = SearchProgress(0, 0)
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

        values = text_values_of(query)
        index = self._opened()
        self._add_few(index)
        self._found = {value: frozenset(index.search([text_pattern(*value)])) for value in values}

    def count(self, patterns: Sequence[TextPattern], episode_ids: Collection[str]) -> int:
        """Return the number of passages of some episodes that have one of the patterns."""
        return self._opened().count(patterns, frozenset(episode_ids))

    def hits(self, episode_id: str, patterns: Sequence[TextPattern]) -> list[Hit]:
        """Return the lines of an episode that have one of the patterns."""
        from runner.store.passages import find_hits

        return list(find_hits(self._source.read(episode_id), patterns))

    def build(self) -> None:
        """Add all missing episodes to the index, half of the time, unless another thread or process does it."""
        with self._lock:
            if self._is_building:
                return
            self._is_building = True
        try:
            stamps, is_all = self._source.stamps()
            if is_all:
                self._opened().build(stamps, lambda seconds: not self._stop.wait(REST * seconds))
        finally:
            self._is_building = False

    def close(self) -> None:
        """Stop the indexing and close the index."""
        self._stop.set()
        with self._lock:
            if self._index is not None:
                self._index.close()

    def _opened(self) -> TextIndex:
        with self._lock:
            if self._index is None:
                self._index = self._source.open_index()
            return self._index

    def _add_few(self, index: TextIndex) -> None:
        from runner.util.sqlite import file_id

        version = (self._source.version(), file_id(index.path))
        if version == self._complete_version:
            return
        summary = self._source.summary()
        if summary is not None and summary == index.summary():
            n_episodes, n_missing, is_all = summary[0], 0, True
        else:
            stamps, is_all = self._source.stamps()
            n_episodes, n_missing = len(stamps), index.update(stamps, at_most=FEW, is_all=is_all)
        self.progress = SearchProgress(n_episodes - n_missing, n_episodes)
        if not n_missing and is_all:
            self._complete_version = version[0], file_id(index.path)


def parsed(query: str) -> Node | None:
    """Return a query; None if it has an error."""
    from runner.query.syntax import QueryError, parse

    try:
        return parse(query)
    except QueryError:
        return None


def text_values_of(query: str) -> list[tuple[str, bool]]:
    """Return the values of ``text`` in a query, and whether each is in quotation marks."""
    from runner.query.episodes import text_values

    node = parsed(query) if "text" in query.lower() else None  # most queries have none
    return [] if node is None else text_values(node)


def text_patterns_of(query: str) -> list[TextPattern]:
    """Return the patterns of the words that a query searches for."""
    from runner.query.episodes import text_patterns

    node = parsed(query)
    return [] if node is None else text_patterns(node)
