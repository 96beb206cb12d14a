"""Texts of episodes that a test gives, in place of a full-text index."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from agentgym_tui.sessions.library import TextSearch, text_values_of
from agentgym_tui.state.episode_list import SearchProgress
from runner.query.fields import Lookup
from runner.store.passages import Hit, TextPattern
from tests.support.console.fake_session import FakeSession, no_texts

COMPLETE: Final = SearchProgress(9, 9)


class KnownTexts(TextSearch):
    """Finds the same lines for every query."""

    def __init__(self, lines: Mapping[str, list[Hit]], progress: SearchProgress) -> None:
        super().__init__(no_texts())
        self._lines, self.progress = lines, progress

    def find(self, query: str) -> None:
        self._found = {value: frozenset(self._lines) for value in text_values_of(query)}

    def count(self, patterns: Sequence[TextPattern], episode_ids: Collection[str]) -> int:
        return sum(len(self._lines.get(episode_id, ())) for episode_id in episode_ids)

    def hits(self, episode_id: str, patterns: Sequence[TextPattern]) -> list[Hit]:
        return self._lines.get(episode_id, [])

    def build(self) -> None:
        """Add nothing: the index stays as it is."""


def with_texts(
    session: FakeSession, lines: Mapping[str, list[Hit]], progress: SearchProgress = COMPLETE
) -> FakeSession:
    """Let the library of a session find these lines, by the ids of their episodes; return the session."""
    library = session.fake_library
    texts = library.texts = KnownTexts(lines, progress)
    lookups: Mapping[str, Lookup] = {"text": texts.lookup}
    library.lookups = lambda: lookups  # type: ignore[method-assign]
    return session
