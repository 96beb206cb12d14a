"""The lines of listed episodes with the words of a query, read as far as they are needed."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from agentgym_tui.sessions.text_search import TextSearch, text_patterns_of
from agentgym_tui.state.episode_list import SearchProgress

if TYPE_CHECKING:
    import re

    from runner.store.passages import Hit

LINE_CHARS: Final = 300
"""Largest number of characters that are kept of a line."""
CONTEXT_CHARS: Final = 40
"""Number of characters kept before the words in a longer line."""
MAX_KEPT_EPISODES: Final = 200


class FoundLine(NamedTuple):
    """A line with the words; ``number`` counts the lines of the episode that have them."""

    episode_id: str
    number: int
    hit: Hit


class TextHits:
    """The lines with the words of a query, in the order of a list of episodes.

    The methods read files: call them in a thread.

    Args:
        texts: the texts of the library.
        query: the query with the words.
        episode_ids: ids of the episodes.

    Attributes:
        patterns: what is searched for.
    """

    def __init__(self, texts: TextSearch, query: str, episode_ids: Sequence[str]) -> None:
        self.query, self.patterns, self.episode_ids = query, text_patterns_of(query), episode_ids
        self._texts = texts
        self._places = {episode_id: place for place, episode_id in enumerate(episode_ids)}
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, list[FoundLine]] = OrderedDict()

    @property
    def progress(self) -> SearchProgress:
        """How many episodes the full-text index has."""
        return self._texts.progress

    @property
    def expressions(self) -> list[re.Pattern[str]]:
        """What finds the words in a text."""
        return [compiled for pattern in self.patterns if (compiled := pattern.compiled()) is not None]

    def count(self) -> int:
        """Return the number of passages with the words in all of these episodes; blocks. Raises ``StoreError``."""
        return self._texts.count(self.patterns, self.episode_ids)

    def of(self, episode_id: str) -> list[FoundLine]:
        """Return the lines of an episode; none if its file cannot be read."""
        from runner.errors import StoreError

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
        """Return the lines of some episodes."""
        return [line for episode_id in episode_ids for line in self.of(episode_id)]

    def beyond(self, episode_id: str, number: int, by: int) -> FoundLine | None:
        """Return the next line (``by`` is 1) or the previous one (-1), across episodes; None if there is none."""
        here = self.of(episode_id)
        if 0 <= number + by < len(here):
            return here[number + by]
        place = self._places.get(episode_id, -1) + by
        while 0 <= place < len(self.episode_ids):
            if lines := self.of(self.episode_ids[place]):
                return lines[0 if by > 0 else -1]
            place += by
        return None


def _shortened(hit: Hit) -> Hit:
    from msgspec.structs import replace

    if len(hit.line) <= LINE_CHARS:
        return hit
    start = max(0, hit.start - CONTEXT_CHARS)
    line = hit.line[start : start + LINE_CHARS]
    return replace(hit, line=line, start=hit.start - start, end=min(hit.end - start, len(line)))
