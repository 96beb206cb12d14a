"""Rows of the episode list, and the lines above it and in place of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from agentgym_tui.presenters.cells import (
    Cell,
    Column,
    Line,
    Tone,
    indented_rows,
    join_parts,
    key_line,
    match_cells,
    sorting_cells,
)
from agentgym_tui.presenters.episode_facts import FALLBACK_MARK, FLAG_MARK, episode_flags, tag_text
from agentgym_tui.presenters.number_format import (
    UNKNOWN,
    format_count,
    format_duration,
    format_reward,
    format_time,
    pluralize,
)
from agentgym_tui.presenters.status_line import outcome_cell
from agentgym_tui.presenters.text_width import ENV_WIDTH, cut, display_width, environment_text
from agentgym_tui.safe_text import masked_line
from agentgym_tui.state.episode_list import (
    EpisodeList,
    FoundLog,
    ListedEpisode,
    ReadProgress,
    SearchProgress,
    UnreadableFile,
    entry_key,
)
from agentgym_tui.state.normalize import as_aware

OUTCOME_WIDTH: Final = 24
MIN_OUTCOME: Final = 9
"""Columns of the outcome before flags."""
SELECTED: Final = "●"
"""Mark of a selected episode."""
EPISODE_COLUMNS: Final = (
    Column("started", 12),
    Column("environment", ENV_WIDTH),
    Column("task", 5, right=True, rank=3),
    Column("outcome", OUTCOME_WIDTH),
    Column("reward", 6, right=True),
    Column("rounds", 6, right=True, rank=2),
    Column("time", 7, right=True, rank=1),
    Column("agent", None),
    Column("data", 9, rank=4),
    Column("node", 14, rank=5),
    Column("id", 26, rank=6),
)


class EpisodeRows:
    """Rows of the episode list, with the columns ``EPISODE_COLUMNS``.

    The key of a row is the episode id; for an unreadable file it is the path.
    """

    def __init__(self, episodes: EpisodeList) -> None:
        self._episodes = episodes

    def __len__(self) -> int:
        """Return the number of rows that match the filter."""
        return len(self._episodes.shown)

    def key(self, index: int) -> str:
        """Return the episode id of a row; for an unreadable file, return its path."""
        return entry_key(self._episodes.shown[index])

    def line(self, index: int, width: int) -> Line:
        """Return the cells of a row, one per table column; for an unreadable file, the reason spans several columns."""
        entry = self._episodes.shown[index]
        if isinstance(entry, UnreadableFile):
            return _unreadable_row(entry)
        tags, is_selected = self._episodes.tags.get(entry.episode_id, ()), entry.episode_id in self._episodes.selected
        return _row(entry, tags, is_selected=is_selected)


def list_summary(episodes: EpisodeList, state: str, key: str, width: int) -> Line:
    """Return the line above the episode list: episode counts, filter words and sort order.

    Args:
        episodes: the list.
        state: additional status, such as how many files have been read; may be empty.
        key: label of the key that clears the filter.
        width: columns available.
    """
    n_unreadable = episodes.n_unreadable
    return join_parts(
        [
            [Cell(pluralize(episodes.n_episodes, "episode"), "head")],
            match_cells(len(episodes.shown), episodes.query.text, key, width),
            [Cell(f"▶ {episodes.n_running} running", "accent")] if episodes.n_running else [],
            _selection_cells(episodes),
            sorting_cells(episodes.sorting),
            [Cell(state, "warn")] if state else [],
            [Cell(f"✗ {pluralize(n_unreadable, 'file')} cannot be read", "bad")] if n_unreadable else [],
            [Cell(pluralize(episodes.n_logs, "log"))] if episodes.n_logs else [],
        ],
        width,
    )


def _selection_cells(episodes: EpisodeList) -> Line:
    if not episodes.selected:
        return []
    n_hidden = episodes.n_selected_hidden
    hidden = f", {n_hidden:,} of them not shown" if n_hidden else ""
    return [Cell(f"{SELECTED}{len(episodes.selected):,} selected{hidden}", "accent")]


def reading_progress(progress: ReadProgress | None) -> str:
    """Return how many of the found files have been read; the number is omitted while ``progress`` is None."""
    if progress is None:
        return "reading …"
    return f"reading {progress.n_read:,} of {pluralize(progress.n_found, 'file')}"


def search_progress(progress: SearchProgress) -> str:
    """Return how many of the episodes the full-text index has; "" if it has all."""
    if progress.is_complete:
        return ""
    return f"{progress.n_searched:,} of {pluralize(progress.n_episodes, 'episode')} are searched"


def empty_episodes_lines(episodes: EpisodeList, key: Callable[[str], str], read_only: str, width: int) -> list[Line]:
    """Return the text shown while the episode list has no rows.

    Args:
        episodes: the list.
        key: returns the key label of a command id.
        read_only: why this session cannot start a run; "" if it can.
        width: columns available.
    """
    if episodes.query:
        words = episodes.query.text
        return [
            [Cell("No episode matches ", "head"), Cell(words, "accent")],
            key_line(key("episodes.clear"), "shows all episodes"),
        ]
    head: Line = [Cell("No episodes yet.", "head")]
    if read_only:
        return [head, *indented_rows(masked_line(read_only), width)]
    return [
        head,
        key_line(key("app.live"), "shows the environments; press there"),
        key_line(key("run.selected"), "to run the selected one; its episode appears here"),
    ]


def _row(episode: ListedEpisode, tags: Sequence[str], *, is_selected: bool = False) -> Sequence[Cell]:
    started = format_time(as_aware(episode.started_at))
    return [
        Cell(f"{SELECTED}{started}", "accent") if is_selected else Cell(started, "dim"),
        Cell(environment_text(episode.env)),
        Cell(format_exact(episode.task_index), "dim"),
        _flagged_outcome(episode),
        Cell(format_reward(episode.reward), reward_tone(episode)),
        Cell(format_count(episode.rounds)),
        Cell(format_duration(episode.duration_s)),
        Cell(f"{tag_text(tags)}{' ' * bool(tags)}{_agent_text(episode)}"),
        Cell(episode.data_label or UNKNOWN, "dim"),
        Cell(episode.node or UNKNOWN, "dim"),
        Cell(episode.episode_id, "dim"),
    ]


def _flagged_outcome(episode: ListedEpisode) -> Cell:
    """Return the outcome and the flags that say more than it does."""
    names = [name for name, _ in episode_flags(episode) if name != "truncated"]
    if not names:
        return outcome_cell(episode, OUTCOME_WIDTH)
    marks = cut(f" {FLAG_MARK}{','.join(names)}", OUTCOME_WIDTH - MIN_OUTCOME)
    room = OUTCOME_WIDTH - display_width(marks)
    outcome = outcome_cell(episode, room)
    return Cell(f"{cut(outcome.text, room)}{marks}", outcome.tone)


def unreadable_line(files: Sequence[UnreadableFile]) -> Line:
    """Return how many files cannot be read and where they are listed; an empty line if there are none."""
    n = sum(not isinstance(file, FoundLog) for file in files)
    text = f"✗ {pluralize(n, 'file')} cannot be read and {'is' if n == 1 else 'are'} not counted; Episodes lists them"
    return [Cell(text, "bad")] if n else []


def _unreadable_row(file: UnreadableFile) -> Sequence[Cell]:
    if isinstance(file, FoundLog):
        text = f"{file.path.name} · {file.reason}"
        return [Cell("≡ log", "accent"), Cell(text)]
    name, reason = file.path.name, file.reason.replace(str(file.path), file.path.name)
    text = masked_line(reason if name in reason else f"{name}: {reason}", 400)
    return [Cell("✗ unreadable", "bad"), Cell(text, "bad")]


def _agent_text(episode: ListedEpisode) -> str:
    agent = episode.agent or UNKNOWN
    agent_and_model = f"{agent} {episode.models}" if episode.models else agent
    return f"{FALLBACK_MARK} {agent_and_model}" if episode.fallback else agent_and_model


def reward_tone(episode: ListedEpisode) -> Tone:
    """Return the tone of an episode's reward."""
    if episode.outcome is None:
        return "plain"
    return "good" if episode.success else "dim"


def format_exact(number: int | None) -> str:
    """Format an integer with all its digits, up to 15 digits; a larger integer is abbreviated."""
    return str(number) if number is not None and abs(number) < 10**15 else format_count(number)
