"""What is stored and what runs as one list, the newest first, of which words may pick a part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeAlias

from agentgym_tui.presenters.number_format import quantity
from agentgym_tui.presenters.segments import hostile
from agentgym_tui.presenters.sorting import Rank, Sorting, number, ordered, text
from agentgym_tui.safe_text import Safe, own
from agentgym_tui.sessions.protocols import Unusable
from agentgym_tui.state.steps import aware

if TYPE_CHECKING:
    from agentgym_tui.state.models import Episode
    from runner.store.index_schema import EpisodeRow

MAX_FIELD: Final = 200
"""Characters of a field that are searched."""


Listed: TypeAlias = "EpisodeRow | Episode"
"""An episode, stored or running; both have what a list shows."""

Entry: TypeAlias = "EpisodeRow | Episode | Unusable"
"""A line of the list; files that cannot be shown come last."""


USUAL: Final = Sorting("started", descending=True)
"""The newest first."""

RANKS: Final[Mapping[str, Callable[[Listed], Rank | None]]] = {
    "started": lambda episode: number(aware(episode.started_at).timestamp()),
    "environment": lambda episode: text(episode.env),
    "task": lambda episode: number(episode.task_index),
    "outcome": lambda episode: text(f"{episode.outcome or 'running'} {episode.error_type or ''}"),
    "reward": lambda episode: number(episode.reward),
    "rounds": lambda episode: number(episode.rounds),
    "time": lambda episode: number(episode.duration_s),
    "agent": lambda episode: text(f"{episode.agent} {episode.model or ''}"),
    "data": lambda episode: text(episode.data_label),
    "node": lambda episode: text(episode.node),
    "id": lambda episode: text(episode.episode_id),
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
        self.shown: list[Entry] = []
        self.words: tuple[str, ...] = ()
        self.sorting: Sorting | None = None
        self._stored: dict[str, Listed] = {}
        self._unusable: Sequence[Unusable] = ()
        self._live: dict[str, Episode] = {}
        self._seen: list[tuple[str, str | None]] = []
        self._entries: list[Entry] = []
        self._texts: dict[str, str] = {}

    @property
    def n_all(self) -> int:
        """Episodes, filtered or not."""
        return len(self._stored) + sum(known not in self._stored for known in self._live)

    @property
    def n_running(self) -> int:
        """Those that are played."""
        return sum(episode.played for known, episode in self._live.items() if known not in self._stored)

    @property
    def n_unusable(self) -> int:
        """Files that cannot be shown."""
        return len(self._unusable)

    def take_stored(self, rows: Iterable[Listed], unusable: Sequence[Unusable] = ()) -> None:
        """Take what a library holds, instead of what it held before."""
        self._stored = {row.episode_id: row for row in rows}
        self._unusable = list(unusable)
        self._texts.clear()
        self._arrange()

    def take_live(self, episodes: Iterable[Episode]) -> bool:
        """Take the episodes of the run store; whether lines came, went or may have another place."""
        self._live = {episode.episode_id: episode for episode in episodes}
        seen = [(episode.episode_id, episode.outcome) for episode in self._live.values()]
        if changed := seen != self._seen:
            self._seen = seen
            self._arrange()
        return changed

    def search(self, text: str) -> None:
        """Show only entries that hold all words of ``text``, in whatever field."""
        words = tuple(text.casefold().split())
        if words != self.words:
            self.words = words
            self._pick()

    def sort(self, sorting: Sorting | None) -> None:
        """Have another order, among equals the newest first; None for the newest first. Files come last in any case."""
        self.sorting = sorting if sorting is not None and sorting.column in RANKS else None
        self._arrange()

    def index(self, key: str) -> int | None:
        """Where the entry of a key is shown."""
        return next((index for index, entry in enumerate(self.shown) if key_of(entry) == key), None)

    def get(self, key: str) -> Entry | None:
        """The entry of a key, filtered out or not."""
        if (known := self._stored.get(key) or self._live.get(key)) is not None:
            return known
        return next((file for file in self._unusable if key_of(file) == key), None)

    def beside(self, key: str, by: int) -> str | None:
        """The key of the entry ``by`` lines below (above where negative) the one of ``key``; None where it ends.

        Where ``key`` is no longer shown it is the first one.
        """
        index = self.index(key)
        at = 0 if index is None else index + by
        return key_of(self.shown[at]) if 0 <= at < len(self.shown) else None

    def _arrange(self) -> None:
        live = [episode for known, episode in self._live.items() if known not in self._stored]
        episodes = sorted([*self._stored.values(), *live], key=_age, reverse=True)
        if self.sorting is not None:
            episodes = ordered(episodes, RANKS[self.sorting.column], descending=self.sorting.descending)
        self._entries = [*episodes, *self._unusable]
        self._pick()

    def _pick(self) -> None:
        self.shown = [entry for entry in self._entries if self._holds(entry)] if self.words else self._entries

    def _holds(self, entry: Entry) -> bool:
        text = self._text(entry)
        return all(word in text for word in self.words)

    def _text(self, entry: Entry) -> str:
        """What is searched; of what is stored it is kept, as that stays as it is."""
        if (key := key_of(entry)) not in self._stored:
            return _searched(entry)
        if (known := self._texts.get(key)) is None:
            known = self._texts[key] = _searched(entry)
        return known


def key_of(entry: Entry) -> str:
    """What stays the same of an entry: an episode's id, a file's path."""
    return str(entry.path) if isinstance(entry, Unusable) else entry.episode_id


def hostile_fields(entry: Entry | None) -> str | None:
    """What an entry says of itself, where cleaning changes some of it."""
    if entry is None:
        return None
    return hostile([field for field in _fields(entry) if field])


def exact(number: int | None) -> Safe:
    """All digits of what is no quantity, unless there are too many."""
    return own(str(number)) if number is not None and abs(number) < 10**15 else quantity(number)


def _age(episode: Listed) -> tuple[datetime, str]:
    return aware(episode.started_at), episode.episode_id


def _searched(entry: Entry) -> str:
    """All that can be found, in small letters."""
    return "\n".join(field[:MAX_FIELD] for field in _fields(entry) if field).casefold()


def _fields(entry: Entry) -> tuple[str | None, ...]:
    if isinstance(entry, Unusable):
        return ("unusable", entry.path.name, entry.reason)
    return (
        *(entry.env, entry.outcome or "running", entry.error_type, entry.agent, entry.model, entry.node),
        *(entry.data_label, entry.episode_id, entry.batch_id, f"#{exact(entry.task_index)}"),
    )
