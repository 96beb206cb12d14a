"""The lines that a search in the texts has found, as rows of a table, and the heading above them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from agentgym_tui.presenters.cells import Cell, Column, Line, TextSource, join_parts
from agentgym_tui.presenters.number_format import format_count, pluralize
from agentgym_tui.presenters.text_width import ENV_WIDTH, environment_text
from agentgym_tui.safe_text import mask_secrets

if TYPE_CHECKING:
    from agentgym_tui.sessions.text_search import FoundLine
    from agentgym_tui.state.episode_list import ListedEpisode
    from runner.store.passages import Hit

HIT_COLUMNS: Final = (
    Column("environment", ENV_WIDTH),
    Column("task", 5, right=True, rank=2),
    Column("step", 5, right=True),
    Column("kind", 11, rank=1),
    Column("line", None, min_width=24),
    Column("id", 26, rank=3),
)
RESET: Final = "reset"
MAX_LINE: Final = 300
MAX_BEFORE: Final = 24
"""Largest number of characters before the words in a line that is shown from its start on."""
CONTEXT: Final = 12
"""Number of characters that are shown before the words otherwise."""


class HitRows(TextSource):
    """Found lines as rows of ``HIT_COLUMNS``; the key of a row is the id of its episode and the number of the line.

    Args:
        lines: the found lines; may grow.
        episode: returns the row of an episode in the list; None if the list has none.
    """

    def __init__(self, lines: Sequence[FoundLine], episode: Callable[[str], ListedEpisode | None]) -> None:
        self._lines, self._episode = lines, episode

    def __len__(self) -> int:
        return len(self._lines)

    def key(self, index: int) -> str:
        found = self._lines[index]
        return f"{found.episode_id}/{found.number}"

    def line(self, index: int, width: int) -> Line:
        found = self._lines[index]
        is_first = index == 0 or self._lines[index - 1].episode_id != found.episode_id
        episode = self._episode(found.episode_id) if is_first else None
        step = found.hit.step
        text = mask_secrets(_from_words(found.hit))
        return [
            Cell(environment_text(episode.env) if episode else ""),
            Cell(format_count(episode.task_index) if episode else ""),
            Cell(RESET if step is None else str(step)),
            Cell(found.hit.kind, "dim"),
            Cell(text[:MAX_LINE]),
            Cell(found.episode_id if is_first else "", "dim"),
        ]


def _from_words(hit: Hit) -> str:
    """Return the line; if its words come late, only from shortly before them on."""
    if hit.start <= MAX_BEFORE:
        return hit.line.strip()
    return f"… {hit.line[hit.start - CONTEXT :].strip()}"


def hits_heading(
    query: str, n_lines: int, n_read: int, n_episodes: int, n_passages: int | None, state: str, width: int
) -> Line:
    """Return the line above the found lines.

    Args:
        query: the query with the words.
        n_lines: number of lines found so far.
        n_read: number of episodes read so far.
        n_episodes: number of episodes that the query finds.
        n_passages: number of passages with the words in all of them; None if it is not known yet.
        state: what else there is to say, such as a failure; may be empty.
        width: columns available.
    """
    read = "" if n_read == n_episodes else f"{n_read:,} of "
    passages = "counting …" if n_passages is None else pluralize(n_passages, "passage")
    return join_parts(
        [
            [Cell(pluralize(n_lines, "line"), "head")],
            [Cell(state, "warn")] if state else [],
            [Cell(f"{read}{pluralize(n_episodes, 'episode')} read")],
            [Cell(passages)],
            [Cell(query, "accent")],
        ],
        width,
    )
