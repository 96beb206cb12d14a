"""The list of stored and running episodes, with sorting and search."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from agentgym_tui.state.normalize import as_aware
from agentgym_tui.state.sorting import Rank, Sorting, number_rank, sort_by_rank, text_rank

if TYPE_CHECKING:
    from agentgym_tui.state.data_model import Episode
    from runner.store.index_schema import EpisodeRow

MAX_SEARCHED_CHARS: Final = 200
"""Characters of a field that are searched."""

MAX_TASK_INDEX: Final = 10**15
"""Task indices from this number on are not written out; Python refuses integers of thousands of digits."""


class UnreadableFile(NamedTuple):
    """A file that should be an episode and cannot be read, with the reason; untrusted text, both."""

    path: Path
    reason: str


ListedEpisode: TypeAlias = "EpisodeRow | Episode"
"""A stored or running episode; both have the fields that the list shows."""

ListEntry: TypeAlias = "EpisodeRow | Episode | UnreadableFile"
"""A row of the list; unreadable files come last."""

DEFAULT_SORTING: Final = Sorting("started", descending=True)
"""The newest first."""

RANK_BY_COLUMN: Final[Mapping[str, Callable[[ListedEpisode], Rank | None]]] = {
    "started": lambda episode: number_rank(as_aware(episode.started_at).timestamp()),
    "environment": lambda episode: text_rank(episode.env),
    "task": lambda episode: number_rank(episode.task_index),
    "outcome": lambda episode: text_rank(f"{episode.outcome or 'running'} {episode.error_type or ''}"),
    "reward": lambda episode: number_rank(episode.reward),
    "rounds": lambda episode: number_rank(episode.rounds),
    "time": lambda episode: number_rank(episode.duration_s),
    "agent": lambda episode: text_rank(f"{episode.agent} {episode.model or ''}"),
    "data": lambda episode: text_rank(episode.data_label),
    "node": lambda episode: text_rank(episode.node),
    "id": lambda episode: text_rank(episode.episode_id),
}
"""Sort keys by column title."""


class EpisodeList:
    """Stored episodes, live episodes that are not stored yet, and unreadable files.

    Attributes:
        shown: entries that match all ``words``; running episodes are the run store's own objects.
        words: search words, in lower case.
        sorting: the order; None for the newest first.
    """

    def __init__(self) -> None:
        self.shown: list[ListEntry] = []
        self.words: tuple[str, ...] = ()
        self.sorting: Sorting | None = None
        self._stored: dict[str, ListedEpisode] = {}
        self._unreadable: Sequence[UnreadableFile] = ()
        self._live: dict[str, Episode] = {}
        self._last_live: list[tuple[str, str | None]] = []
        self._entries: list[ListEntry] = []
        self._search_texts: dict[str, str] = {}

    @property
    def n_episodes(self) -> int:
        """Number of episodes, whether they match the search or not."""
        return len(self._stored) + sum(known not in self._stored for known in self._live)

    @property
    def n_running(self) -> int:
        """Number of running episodes."""
        return sum(episode.is_active for known, episode in self._live.items() if known not in self._stored)

    @property
    def n_unreadable(self) -> int:
        """Number of unreadable files."""
        return len(self._unreadable)

    def set_stored(self, rows: Iterable[ListedEpisode], unreadable: Sequence[UnreadableFile] = ()) -> None:
        """Replace the stored episodes and the unreadable files."""
        self._stored = {row.episode_id: row for row in rows}
        self._unreadable = list(unreadable)
        self._search_texts.clear()
        self._arrange()

    def update_live(self, episodes: Iterable[Episode]) -> bool:
        """Replace the live episodes; return whether rows were added, removed or may have moved."""
        self._live = {episode.episode_id: episode for episode in episodes}
        live = [(episode.episode_id, episode.outcome) for episode in self._live.values()]
        if changed := live != self._last_live:
            self._last_live = live
            self._arrange()
        return changed

    def search(self, text: str) -> None:
        """Show only entries that contain all words of ``text`` in any field."""
        words = tuple(text.casefold().split())
        if words != self.words:
            self.words = words
            self._filter()

    def sort(self, sorting: Sorting | None) -> None:
        """Set the order; None for the newest first.

        Equal episodes are sorted from the newest; unreadable files always come last.
        """
        self.sorting = sorting if sorting is not None and sorting.column in RANK_BY_COLUMN else None
        self._arrange()

    def index(self, key: str) -> int | None:
        """Return the row of the entry with this key; None where it is not shown."""
        return next((index for index, entry in enumerate(self.shown) if entry_key(entry) == key), None)

    def get(self, key: str) -> ListEntry | None:
        """Return the entry with this key, whether it matches the search or not."""
        if (known := self._stored.get(key) or self._live.get(key)) is not None:
            return known
        return next((file for file in self._unreadable if entry_key(file) == key), None)

    def neighbor(self, key: str, by: int) -> str | None:
        """Return the key of the entry ``by`` rows below ``key``, above where negative; None past either end.

        Where ``key`` is not shown, this is the key of the first entry.
        """
        index = self.index(key)
        at = 0 if index is None else index + by
        return entry_key(self.shown[at]) if 0 <= at < len(self.shown) else None

    def _arrange(self) -> None:
        live = [episode for known, episode in self._live.items() if known not in self._stored]
        episodes = sorted([*self._stored.values(), *live], key=_start_order, reverse=True)
        if self.sorting is not None:
            episodes = sort_by_rank(episodes, RANK_BY_COLUMN[self.sorting.column], descending=self.sorting.descending)
        self._entries = [*episodes, *self._unreadable]
        self._filter()

    def _filter(self) -> None:
        self.shown = [entry for entry in self._entries if self._matches(entry)] if self.words else self._entries

    def _matches(self, entry: ListEntry) -> bool:
        text = self._cached_text(entry)
        return all(word in text for word in self.words)

    def _cached_text(self, entry: ListEntry) -> str:
        if (key := entry_key(entry)) not in self._stored:
            return _search_text(entry)
        if (known := self._search_texts.get(key)) is None:
            known = self._search_texts[key] = _search_text(entry)
        return known


def entry_key(entry: ListEntry) -> str:
    """Return the stable key of an entry: the id of an episode or the path of a file."""
    return str(entry.path) if isinstance(entry, UnreadableFile) else entry.episode_id


def _task(index: int) -> str:
    if abs(index) < MAX_TASK_INDEX:
        return f"#{index}"
    return "#> 1T" if index > 0 else "#< -1T"  # as the list shows it


def _start_order(episode: ListedEpisode) -> tuple[datetime, str]:
    return as_aware(episode.started_at), episode.episode_id


def _search_text(entry: ListEntry) -> str:
    return "\n".join(field[:MAX_SEARCHED_CHARS] for field in searchable_fields(entry) if field).casefold()


def searchable_fields(entry: ListEntry) -> tuple[str | None, ...]:
    """Return the texts that ``EpisodeList.search`` looks into; None for a field that is not set."""
    if isinstance(entry, UnreadableFile):
        return ("unreadable", entry.path.name, entry.reason)
    return (
        *(entry.env, entry.outcome or "running", entry.error_type, entry.agent, entry.model, entry.node),
        *(entry.data_label, entry.episode_id, entry.batch_id, _task(entry.task_index)),
    )
