"""Search in the texts of the stored episodes: what ``text:`` finds, and the lines with the words."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agentgym_tui.state.episode_list import SearchProgress
from runner.errors import StoreError

if TYPE_CHECKING:
    import re

    from runner.query.syntax import Node
    from runner.store.passages import Hit, TextPattern
    from runner.store.text_index import TextIndex

FEW: Final = 50  # largest number of episodes that a search adds to the index itself, within a tenth of a second
REST: Final = 1.0  # how many times as long as it works the indexing rests
LINE_CHARS: Final = 300  # largest number of characters that are kept of a line
CONTEXT_CHARS: Final = 40  # number of characters kept before the words in a longer line
MAX_KEPT_EPISODES: Final = 200


class TextSource(NamedTuple):
    """The episodes of a library; the functions may raise ``StoreError``."""

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


class FoundLine(NamedTuple):
    """A line with the words; ``number`` counts the lines of the episode that have them."""

    episode_id: str
    number: int
    hit: Hit


class TextHits:
    """The lines of listed episodes with the words of a query, in the order of the list, read as far as needed.

    The methods read files: call them in a thread.
    """

    def __init__(self, texts: TextSearch, query: str, episode_ids: Sequence[str]) -> None:
        from runner.query.episodes import text_patterns

        node = parsed(query)
        self.query, self.episode_ids = query, episode_ids
        self.patterns: list[TextPattern] = [] if node is None else text_patterns(node)
        self._texts = texts
        self._places = {episode_id: place for place, episode_id in enumerate(episode_ids)}
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, list[FoundLine]] = OrderedDict()

    @property
    def progress(self) -> SearchProgress:
        return self._texts.progress

    @property
    def expressions(self) -> list[re.Pattern[str]]:
        return [compiled for pattern in self.patterns if (compiled := pattern.compiled()) is not None]

    def count(self) -> int:
        return self._texts.count(self.patterns, self.episode_ids)

    def of(self, episode_id: str) -> list[FoundLine]:
        with self._lock:
            if (known := self._kept.get(episode_id)) is None:
                try:
                    hits = self._texts.hits(episode_id, self.patterns)
                except StoreError:  # the file was deleted since, or is damaged, which the list shows
                    hits = []
                known = [FoundLine(episode_id, number, _shortened(hit)) for number, hit in enumerate(hits)]
                self._kept[episode_id] = known
                if len(self._kept) > MAX_KEPT_EPISODES:
                    self._kept.popitem(last=False)
            return known

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
    from msgspec.structs import replace

    if len(hit.line) <= LINE_CHARS:
        return hit
    start = max(0, hit.start - CONTEXT_CHARS)
    line = hit.line[start : start + LINE_CHARS]
    return replace(hit, line=line, start=hit.start - start, end=min(hit.end - start, len(line)))
