"""The filter of the list of episodes: words, and exact values such as ``env=Maze`` or ``outcome=error|timeout``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from agentgym_tui.safe_text import has_unsafe_chars
from agentgym_tui.state.query import Query

if TYPE_CHECKING:
    from agentgym_tui.state.data_model import Episode
    from runner.store.index_schema import EpisodeRow

MAX_TASK_INDEX: Final = 10**15
"""Smallest task index that is abbreviated, because Python does not format integers of thousands of digits."""

EXACT_FIELDS: Final[Mapping[str, Callable[[EpisodeRow | Episode], object]]] = {
    "env": lambda episode: episode.env,
    "agent": lambda episode: episode.agent,
    "model": lambda episode: episode.model,
    "outcome": lambda episode: episode.outcome or "running",
    "task": lambda episode: episode.task_index if abs(episode.task_index) < MAX_TASK_INDEX else None,
    "data": lambda episode: episode.data_label,
    "mode": lambda episode: episode.mode,
    "batch": lambda episode: episode.batch_id,
    "battery": lambda episode: episode.battery_id,
    "node": lambda episode: episode.node,
}
"""The value of an episode that a term of the filter names."""

MAX_CHARS: Final = 200
"""Largest length of a filter that ``exact_terms`` returns."""


class EpisodeQuery:
    """The words and exact values that an episode must have; without any, every episode matches.

    Letters match in upper and lower case. A blank in a value is written as ``_``, and ``|`` separates alternatives; a
    term with an unknown name is a word.

    Args:
        text: words and terms separated by blanks.

    Attributes:
        words: the words and terms in lower case.
    """

    def __init__(self, text: str = "") -> None:
        self.words = Query(text).words
        self._values: list[tuple[Callable[[EpisodeRow | Episode], object], frozenset[str]]] = []
        words: list[str] = []
        for word in text.split():
            name, sign, value = word.partition("=")
            if sign and name.lower() in EXACT_FIELDS:
                self._values.append((EXACT_FIELDS[name.lower()], frozenset(map(_folded, value.split("|")))))
            else:
                words.append(word)
        self._query = Query(" ".join(words))

    def __bool__(self) -> bool:
        return bool(self.words)

    @property
    def text(self) -> str:
        """The words in lower case, separated by blanks."""
        return " ".join(self.words)

    def matches(self, episode: EpisodeRow | Episode | None, text: Callable[[], str]) -> bool:
        """Return whether an entry has all values and words.

        Args:
            episode: the episode; None for an unreadable file.
            text: returns the searched text of the entry, converted by ``str.casefold``.
        """
        if self._values and episode is None:
            return False
        exact = episode is None or all(_folded(read(episode)) in values for read, values in self._values)
        return exact and (not self._query or self._query.matches(text()))


def exact_terms(**values: object) -> str:
    """Return a filter for exact values; a tuple has alternatives.

    A value with unsafe characters or a ``|``, and a term past ``MAX_CHARS``, is left out, so that more is shown.
    """
    terms = ""
    for name, value in values.items():
        texts = ["_".join(str(each).split()) for each in (value if isinstance(value, tuple) else (value,))]
        longer = f"{terms} {name}={'|'.join(texts)}".strip()
        if len(longer) <= MAX_CHARS and not any("|" in text or has_unsafe_chars(text) for text in texts):
            terms = longer
    return terms


def _folded(value: object) -> str:
    return "_".join(str("" if value is None else value).casefold().split())
