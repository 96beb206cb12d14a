"""What is stored and what runs as one list, the newest first, of which words may pick a part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from agentgym_tui.state.sorting import Rank, Sorting, number_rank, sort_by_rank, text_rank
from agentgym_tui.state.timestamps import as_aware

if TYPE_CHECKING:
    from agentgym_tui.state.models import Episode
    from runner.store.index_schema import EpisodeRow

MAX_SEARCHED_CHARS: Final = 200
"""Characters of a field that are searched."""

MAX_TASK_INDEX: Final = 10**15
"""Task indices from this number on are not searchable."""


class UnreadableFile(NamedTuple):
    """A file that is no episode, and why; hostile text, both."""

    path: Path
    reason: str


ListedEpisode: TypeAlias = "EpisodeRow | Episode"
"""An episode, stored or running; both have what a list shows."""

ListEntry: TypeAlias = "EpisodeRow | Episode | UnreadableFile"
"""A line of the list; files that cannot be shown come last."""


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
"""By the titles of columns."""


class EpisodeList:
    """Stored episodes, live ones that are not stored yet, and unusable files.

    Attributes:
        shown: the entries that hold all ``words``; those that run are the store's own objects.
        words: what a person looks for, in small letters.
        sorting: the order; None for the newest first.
    """

    def __init__(self) -> None:
        """Start empty."""
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
        """Episodes, filtered or not."""
        return len(self._stored) + sum(known not in self._stored for known in self._live)

    @property
    def n_running(self) -> int:
        """Those that are played."""
        return sum(episode.is_active for known, episode in self._live.items() if known not in self._stored)

    @property
    def n_unreadable(self) -> int:
        """Files that cannot be shown."""
        return len(self._unreadable)

    def set_stored(self, rows: Iterable[ListedEpisode], unusable: Sequence[UnreadableFile] = ()) -> None:
        """Take what a library holds, instead of what it held before."""
        self._stored = {row.episode_id: row for row in rows}
        self._unreadable = list(unusable)
        self._search_texts.clear()
        self._arrange()

    def update_live(self, episodes: Iterable[Episode]) -> bool:
        """Take the episodes of the run store; whether lines came, went or may have another place."""
        self._live = {episode.episode_id: episode for episode in episodes}
        seen = [(episode.episode_id, episode.outcome) for episode in self._live.values()]
        if changed := seen != self._last_live:
            self._last_live = seen
            self._arrange()
        return changed

    def search(self, text: str) -> None:
        """Show only entries that hold all words of ``text_rank``, in whatever field."""
        words = tuple(text.casefold().split())
        if words != self.words:
            self.words = words
            self._filter()

    def sort(self, sorting: Sorting | None) -> None:
        """Have another order, among equals the newest first; None for the newest first. Files come last in any case."""
        self.sorting = sorting if sorting is not None and sorting.column in RANK_BY_COLUMN else None
        self._arrange()

    def index(self, key: str) -> int | None:
        """Where the entry of a key is shown."""
        return next((index for index, entry in enumerate(self.shown) if entry_key(entry) == key), None)

    def get(self, key: str) -> ListEntry | None:
        """The entry of a key, filtered out or not."""
        if (known := self._stored.get(key) or self._live.get(key)) is not None:
            return known
        return next((file for file in self._unreadable if entry_key(file) == key), None)

    def neighbor(self, key: str, by: int) -> str | None:
        """The key of the entry ``by`` lines below (above where negative) the one of ``key``; None where it ends.

        Where ``key`` is no longer shown it is the first one.
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
        """What is searched; of what is stored it is kept, as that stays as it is."""
        if (key := entry_key(entry)) not in self._stored:
            return _search_text(entry)
        if (known := self._search_texts.get(key)) is None:
            known = self._search_texts[key] = _search_text(entry)
        return known


def entry_key(entry: ListEntry) -> str:
    """What stays the same of an entry: an episode's id, a file's path."""
    return str(entry.path) if isinstance(entry, UnreadableFile) else entry.episode_id


def _task(index: int) -> str | None:
    # Python refuses to print integers of thousands of digits.
    return f"#{index}" if abs(index) < MAX_TASK_INDEX else None


def _start_order(episode: ListedEpisode) -> tuple[datetime, str]:
    return as_aware(episode.started_at), episode.episode_id


def _search_text(entry: ListEntry) -> str:
    """All that can be found, in small letters."""
    return "\n".join(field[:MAX_SEARCHED_CHARS] for field in searchable_fields(entry) if field).casefold()


def searchable_fields(entry: ListEntry) -> tuple[str | None, ...]:
    """Return the texts that ``EpisodeList.search`` looks into; None for a field that is not set."""
    if isinstance(entry, UnreadableFile):
        return ("unusable", entry.path.name, entry.reason)
    return (
        *(entry.env, entry.outcome or "running", entry.error_type, entry.agent, entry.model, entry.node),
        *(entry.data_label, entry.episode_id, entry.batch_id, _task(entry.task_index)),
    )
