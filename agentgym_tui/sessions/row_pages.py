"""The list rows of an index in pages, so that rows that have not changed are neither read nor stored again."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from runner.store.index_schema import EpisodeRow

if TYPE_CHECKING:
    from runner.store import EpisodeIndex

PAGE: Final = 2_000
"""Number of rows of a page; all of them are read again after one has changed."""
N_SPARE_PAGES: Final = 10
"""Number of pages by which the rows may exceed the limit before the oldest ones are dropped."""

_PAGE: Final = "WHERE (episode_id, batch_id) > (?, ?) ORDER BY episode_id, batch_id LIMIT ?"
_STATE: Final = f"""
    SELECT count(*), max(episode_id), max(mtime_ns), sum(mtime_ns % 1000000007), sum(size)
    FROM (SELECT episode_id, mtime_ns, size FROM episodes {_PAGE})
"""
"""Changes with the files of the rows of a page."""
_LAST_DROPPED: Final = """
    SELECT episode_id, batch_id FROM episodes ORDER BY episode_id DESC, batch_id DESC LIMIT 1 OFFSET ?
"""


class RowPages:
    """Reads the newest rows of an index, again and again; unchanged rows stay the same objects.

    Pages are counted from the oldest row on, so that a new episode changes only the last page.

    Args:
        index: the index.
    """

    def __init__(self, index: EpisodeIndex) -> None:
        self._index = index
        self._after: tuple[str, str] = ("", "")
        self._pages: dict[tuple[Any, ...], list[EpisodeRow]] = {}

    def rows(self, limit: int) -> list[EpisodeRow]:
        """Return at most ``limit`` rows, the newest episode first; raises ``StoreError``."""
        n_rows = self._read()
        if n_rows > limit + N_SPARE_PAGES * PAGE or (n_rows < limit and any(self._after)):
            dropped = self._index.select(_LAST_DROPPED, (limit,))
            self._after = dropped[0] if dropped else ("", "")
            self._read()
        return list(chain.from_iterable(map(reversed, reversed(self._pages.values()))))[:limit]

    def _read(self) -> int:
        """Read the pages that have changed; return the number of rows of all pages."""
        pages: dict[tuple[Any, ...], list[EpisodeRow]] = {}
        after, page = self._after, list[EpisodeRow]()
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
