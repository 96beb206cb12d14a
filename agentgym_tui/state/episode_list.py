"""List of stored and live episodes, with sorting and search, and the fields of episodes in a query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from msgspec.structs import replace

from agentgym_tui.safe_text import has_unsafe_chars
from agentgym_tui.state.normalize import as_aware
from agentgym_tui.state.query import (
    MAX_CHARS,
    FieldSet,
    FilteredList,
    Query,
    Rank,
    Sorting,
    number_rank,
    quoted,
    search_text,
    text_rank,
    word_test,
)
from runner.query.fields import Field, GetValue, Lookup, Value, ascii_lower, glob_pattern
from runner.types import MIX, UNKNOWN_OUTCOME, is_result_unknown, split_models

if TYPE_CHECKING:
    from agentgym_tui.state.episode import Episode
    from runner.store.index_schema import EpisodeRow

LIST_KEY: Final = "episodes"  # table of episodes; also the key of its filter and order in the UI state
MAX_TASK_INDEX: Final = 10**15  # Python does not format integers of thousands of digits
MAX_OFFERED_ROWS: Final = 10_000  # episodes whose values are offered for completion
MAX_MODELS: Final = 8  # of an episode that ``model:`` finds
RUNNING: Final = "running"  # in place of the outcome of an episode that has not ended


class ReadProgress(NamedTuple):
    n_read: int
    n_found: int


class SearchProgress(NamedTuple):
    """Of the full-text index, in episodes."""

    n_searched: int
    n_episodes: int

    @property
    def is_complete(self) -> bool:
        return self.n_searched >= self.n_episodes


class UnreadableFile(NamedTuple):
    """Path and reason are untrusted text."""

    path: Path
    reason: str


class FoundLog(UnreadableFile):
    """A log in an opened folder, which is listed below the episodes; ``reason`` describes it."""

    __slots__ = ()


ListedEpisode: TypeAlias = "EpisodeRow | Episode"  # each has all fields that the list shows
ListEntry: TypeAlias = "EpisodeRow | Episode | UnreadableFile"


class EpisodeFields(FieldSet["ListEntry"]):
    """The fields of ``runner.query.episodes``; a field is the attribute of that name unless ``_GETTERS`` has it."""

    @property
    def fields(self) -> Mapping[str, Field]:
        if not self._fields:
            from runner.query.episodes import FIELDS  # imports the store

            outcome = FIELDS["outcome"]
            self._fields = {**FIELDS, "outcome": replace(outcome, values=(*outcome.values, RUNNING))}
        return self._fields

    def getter(self, name: str) -> GetValue[ListEntry]:
        return _GETTERS.get(name) or attrgetter(name)


def _outcome(episode: Any) -> Value:  # noqa: ANN401 - a stored or live episode
    is_unknown = is_result_unknown(episode.transport, episode.outcome, unscored=episode.unscored)
    return UNKNOWN_OUTCOME if is_unknown else str(episode.outcome or RUNNING)


def _n_tokens(episode: Any) -> Value:  # noqa: ANN401 - a stored or live episode
    if (tokens := getattr(episode, "tokens", None)) is not None:
        return float(tokens.prompt + tokens.completion)
    return float(episode.tokens_prompt + episode.tokens_completion)


def _time(episode: Any) -> Value:  # noqa: ANN401 - a stored or live episode
    """The end; of a live episode, which has none, the start."""
    return as_aware(getattr(episode, "ended_at", None) or episode.started_at)


def _flags(episode: Any) -> Value | tuple[Value, ...]:  # noqa: ANN401 - a stored or live episode
    """None without flags, an empty tuple if they are not known."""
    flags: str | None = getattr(episode, "flags", None)
    return () if flags is None else tuple(flags.split(",")) if flags else None


def model_runs(models: str | None) -> tuple[str, ...] | None:
    """Return what ``model:`` finds in a text of ``join_models``, as in the index: each name, and names in a row."""
    names = split_models(models)[:MAX_MODELS]
    starts = range(len(names))
    return tuple(MIX.join(names[start : end + 1]) for start in starts for end in starts[start:]) or None


def _models(episode: Any) -> tuple[str, ...] | None:  # noqa: ANN401 - a stored or live episode
    found = model_runs(episode.models)
    return (*found, episode.model) if found and episode.model else found


_GETTERS: Final[Mapping[str, GetValue[Any]]] = {
    "outcome": _outcome,
    "tokens": _n_tokens,
    "time": attrgetter("duration_s"),
    "since": _time,
    "until": _time,
    "task": attrgetter("task_index"),
    "batch": attrgetter("batch_id"),
    "battery": attrgetter("battery_id"),
    "id": attrgetter("episode_id"),
    "error": attrgetter("error_type"),
    "data": attrgetter("data_label"),
    "flag": _flags,
    "model": _models,
    "failure": lambda episode: getattr(episode, "failure", None),
}
EPISODE_FIELDS: Final = EpisodeFields()
DEFAULT_SORTING: Final = Sorting("started", descending=True)
RANK_BY_COLUMN: Final[Mapping[str, Callable[[Any], Rank | None]]] = {
    **EPISODE_FIELDS.ranks("task", "reward", "rounds", "time", "data", "node", "id"),
    "started": lambda episode: number_rank(as_aware(episode.started_at).timestamp()),
    "environment": lambda episode: text_rank(episode.env),
    "outcome": lambda episode: text_rank(f"{episode.outcome or RUNNING} {episode.error_type or ''}"),
    "agent": lambda episode: text_rank(f"{episode.agent} {episode.models or ''}"),
}


class EpisodeList(FilteredList[ListEntry]):
    """Stored episodes, live episodes that are not stored yet, and unreadable files.

    A live episode in ``shown`` is the object of the run store. Unreadable files are found by words alone, and come last
    in each order. ``lookups`` find the ids for fields of a query; ``selected`` keeps the order of selection.
    """

    def __init__(self) -> None:
        super().__init__(entry_key, self._cached_text, RANK_BY_COLUMN, EPISODE_FIELDS)
        self.lookups: dict[str, Lookup] = {"tag": lambda tag, quoted: tagged(self.tags, tag, quoted)}
        self.selected: dict[str, None] = {}
        self._stored: dict[str, ListedEpisode] = {}
        self._unreadable: Sequence[UnreadableFile] = ()
        self._live: dict[str, Episode] = {}
        self._gone: set[str] = set()
        self._last_live: list[tuple[str, str | None]] = []
        self._search_texts: dict[str, str] = {}
        self.tags: Mapping[str, Sequence[str]] = {}

    @property
    def n_episodes(self) -> int:
        return len(self._stored) + sum(1 for _ in self._unstored())

    @property
    def n_running(self) -> int:
        return sum(episode.is_active for episode in self._unstored())

    @property
    def n_unreadable(self) -> int:
        return len(self._unreadable) - self.n_logs

    @property
    def n_logs(self) -> int:
        return sum(isinstance(file, FoundLog) for file in self._unreadable)

    def set_stored(self, rows: Iterable[ListedEpisode], unreadable: Sequence[UnreadableFile] = ()) -> None:
        before = [*self._stored]
        self._stored.clear()  # before it is filled, because the table of 100,000 rows takes 5 MB
        self._stored.update((row.episode_id, row) for row in rows)
        known = chain(self._gone, before)
        self._gone = {key for key in known if key not in self._stored}  # deleted episodes, which stay in the live state
        self._unreadable = list(unreadable)
        self.selected = {key: None for key in self.selected if key in self._stored}
        self._search_texts.clear()
        self._refresh_query()
        self._arrange()

    def add_lookups(self, lookups: Mapping[str, Lookup]) -> None:
        self.lookups = {**lookups, **self.lookups}

    def search_again(self) -> None:
        """Show what the query finds after more texts are known."""
        self._refresh_query()
        self.show_matches()

    def set_tags(self, tags: Mapping[str, Sequence[str]]) -> bool:
        if tags is self.tags:
            return False
        self.tags = tags
        self._search_texts.clear()
        self.search_again()
        return True

    def update_live(self, episodes: Iterable[Episode]) -> bool:
        """Return whether an episode was added, was removed or has changed its outcome."""
        self._live = {episode.episode_id: episode for episode in episodes}
        live = [(episode.episode_id, episode.outcome) for episode in self._live.values()]
        if changed := live != self._last_live:
            self._last_live = live
            self._arrange()
        return changed

    @property
    def query_fields(self) -> Mapping[str, Field]:
        fields = super().query_fields.items()
        return {name: field for name, field in fields if field.kind != "lookup" or name in self.lookups}

    def values_of(self, field: str) -> list[str]:
        if field == "tag":
            return sorted({tag for tags in self.tags.values() for tag in tags})
        return super().values_of(field)

    def sample_rows(self) -> Iterator[ListedEpisode]:
        return islice(self._episodes(), MAX_OFFERED_ROWS)

    def _episodes(self) -> Iterator[ListedEpisode]:
        yield from self._stored.values()
        yield from self._unstored()

    def _unstored(self) -> Iterator[Episode]:
        for known, episode in self._live.items():
            if known not in self._stored and known not in self._gone:
                yield episode

    def parse(self, text: str) -> Query[ListEntry]:
        return Query(EPISODE_FIELDS, text, word_test=word_test(self._cached_text), lookups=self.lookups)

    def _refresh_query(self) -> None:
        """Look up the ids of tags and notes, and the times that ages mean, again."""
        if self.query.has_terms and (query := self.parse(self.query.text)).error is None:
            self.query = query

    def toggle(self, key: str) -> bool:
        """Return False for what cannot be selected: all but stored episodes."""
        if key not in self._stored:
            return False
        if key in self.selected:
            del self.selected[key]
        else:
            self.selected[key] = None
        return True

    def select_shown(self) -> None:
        """Select all shown stored episodes; if all are selected, deselect them."""
        shown = dict.fromkeys(self._shown_keys())
        others = {key: None for key in self.selected if key not in shown}
        self.selected = others if shown.keys() <= self.selected.keys() else self.selected | shown

    @property
    def n_selected_hidden(self) -> int:
        return len(self.selected) - sum(key in self.selected for key in self._shown_keys()) if self.selected else 0

    def chosen(self) -> list[str]:
        """Return the selected ids; without a selection, those of all stored episodes that match the filter."""
        return [*self.selected] or self._shown_keys()

    def _shown_keys(self) -> list[str]:
        return [key for key in map(entry_key, self.shown) if key in self._stored]

    def get(self, key: str) -> ListEntry | None:
        """Return an entry even where the search hides it."""
        if (known := self._stored.get(key) or self._live.get(key)) is not None:
            return known
        return next((file for file in self._unreadable if entry_key(file) == key), None)

    def neighbor(self, key: str, by: int) -> str | None:
        """Return the key ``by`` rows below one (below a hidden one, the first); None past the ends, and for a log."""
        place = self.place_of(key)
        at = 0 if place is None else place + by
        found = self.shown[at] if 0 <= at < len(self.shown) else None
        return None if found is None or isinstance(found, FoundLog) else entry_key(found)

    def _arrange(self) -> None:
        newest = sorted(self._episodes(), key=attrgetter("episode_id"), reverse=True)
        newest.sort(key=lambda episode: as_aware(episode.started_at), reverse=True)
        self.set_rows([*newest, *self._unreadable])

    def matches(self, entry: ListEntry) -> bool:
        return not (isinstance(entry, UnreadableFile) and self.query.has_terms) and self.query.matches(entry)

    def rank(self, entry: ListEntry) -> Rank | None:
        return None if isinstance(entry, UnreadableFile) else super().rank(entry)

    def _cached_text(self, entry: ListEntry) -> str:
        if (known := self._search_texts.get(key := entry_key(entry))) is None:
            known = _search_text(entry, self.tags)
            if key in self._stored:
                self._search_texts[key] = known
        return known


def entry_key(entry: ListEntry) -> str:
    """Never changes: the id of an episode or the path of an unreadable file."""
    return str(entry.path) if isinstance(entry, UnreadableFile) else entry.episode_id


def _task(index: int | None) -> str:
    if index is None:
        return ""
    if abs(index) < MAX_TASK_INDEX:
        return f"#{index}"
    return "#> 1T" if index > 0 else "#< -1T"  # as the list shows it


def _search_text(entry: ListEntry, tags: Mapping[str, Sequence[str]]) -> str:
    if isinstance(entry, UnreadableFile):
        kind = "log" if isinstance(entry, FoundLog) else "unreadable"
        return search_text((kind, entry.path.name, entry.reason))
    texts = (
        *(entry.env, entry.outcome or RUNNING, entry.error_type, entry.agent, entry.model, entry.models, entry.node),
        *(entry.data_label, entry.episode_id, entry.batch_id, _task(entry.task_index)),
    )
    return search_text((*texts, *(f"#{tag}" for tag in tags.get(entry.episode_id, ()))))


def tagged(tags: Mapping[str, Sequence[str]], tag: str, quoted: bool) -> Iterator[str]:
    """Yield the ids of the episodes with a tag, in which ``*`` and ``?`` are wildcards unless it was quoted."""
    wanted = ascii_lower(tag)
    pattern = None if quoted else glob_pattern(wanted)
    for episode_id, names in tags.items():
        lower = map(ascii_lower, names)
        if wanted in lower if pattern is None else any(map(pattern.fullmatch, lower)):
            yield episode_id


def select_rows(
    rows: Iterable[EpisodeRow], query: str, lookups: Mapping[str, Lookup], tags: Mapping[str, Sequence[str]]
) -> Iterator[EpisodeRow]:
    """Return the rows that ``EpisodeList`` would show for a query; raises ``QueryError``."""
    found: Query[ListEntry] = Query(
        EPISODE_FIELDS,
        query,
        word_test=word_test(lambda row: _search_text(row, tags)),
        lookups={**lookups, "tag": lambda tag, quoted: tagged(tags, tag, quoted)},
    )
    if found.error is not None:
        raise found.error
    return filter(found.matches, rows)


def exact_terms(**values: object) -> str:
    """Return a filter for exact values; a tuple has alternatives, and an empty value stands for a missing one.

    A value with unsafe characters, and a term past ``MAX_CHARS``, is left out, so that more is shown.
    """
    terms = ""
    for name, value in values.items():
        texts = [str(each) for each in (value if isinstance(value, tuple) else (value,))]
        shown = ",".join(quoted(text) if text else "none" for text in texts)
        longer = f"{terms} {name}:{shown}".strip()
        if len(longer) <= MAX_CHARS and not has_unsafe_chars(longer):
            terms = longer
    return terms
