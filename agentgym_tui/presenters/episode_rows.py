"""The episode list and the lines that a search in texts has found: rows, and the lines above and in place of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agentgym_tui.presenters.cells import (
    ENV_WIDTH,
    Cell,
    Field,
    Line,
    Listing,
    ListingRows,
    Tone,
    cut,
    display_width,
    environment_cell,
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
from agentgym_tui.safe_text import mask_secrets, masked_line, player_text
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

if TYPE_CHECKING:
    from agentgym_tui.sessions.library import FoundLine
    from runner.store.passages import Hit

OUTCOME_WIDTH: Final = 24
_MAX_OUTCOME: Final = 200
SELECTED: Final = "●"


class EpisodeRows(ListingRows[Any]):
    def __init__(self, episodes: EpisodeList) -> None:
        super().__init__(episode_listing(episodes), episodes)

    def line(self, index: int, width: int) -> Line:
        entry = self.rows.shown[index]
        return _unreadable_row(entry) if isinstance(entry, UnreadableFile) else super().line(index, width)


# fmt: off
def episode_listing(episodes: EpisodeList) -> Listing[Any]:
    return Listing(entry_key, str, [
        Field("started", 12, cell=lambda row: _started_cell(row, is_selected=row.episode_id in episodes.selected)),
        Field("environment", ENV_WIDTH, cell=lambda row: environment_cell(row.env), most=28),
        Field("task", 5, cell=lambda row: Cell(_task_text(row)), right=True, most=12),
        Field("outcome", OUTCOME_WIDTH, cell=_flagged_outcome, most=60),
        Field("reward", 6, cell=lambda row: Cell(format_reward(row.reward), reward_tone(row)), right=True),
        Field("rounds", 6, cell=lambda row: Cell(format_count(row.rounds)), right=True, rank=3),
        Field("time", 7, cell=lambda row: Cell(format_duration(row.duration_s)), right=True, rank=2),
        Field("agent", None, cell=lambda row: Cell(_agent_text(row)), most=60, min_width=10),
        Field("tags", 7, cell=lambda row: Cell(tag_text(episodes.tags.get(row.episode_id, ())), "accent"), rank=1,
              most=40, hides=True),
        Field("data", 9, lambda row: row.data_label, tone="dim", rank=5, most=24),
        Field("node", 14, lambda row: row.node, tone="dim", rank=6, most=30),
        Field("id", 26, lambda row: row.episode_id, tone="dim", rank=7),
    ])
# fmt: on


def list_summary(episodes: EpisodeList, state: str, key: str, width: int, effect: str = "clears") -> Line:
    n_unreadable, n_hidden = episodes.n_unreadable, episodes.n_selected_hidden
    hidden = f", {n_hidden:,} of them not shown" if n_hidden else ""
    return join_parts(
        [
            [Cell("Episodes", "head")],
            [Cell(pluralize(episodes.n_episodes, "episode"))],
            match_cells(len(episodes.shown), episodes.query.text, key, width - 6, effect),
            [Cell(f"▶ {episodes.n_running} running", "accent")] if episodes.n_running else [],
            [Cell(f"{SELECTED}{len(episodes.selected):,} selected{hidden}", "accent")] if episodes.selected else [],
            sorting_cells(episodes.sorting),
            [Cell(state, "warn")] if state else [],
            [Cell(f"✗ {pluralize(n_unreadable, 'file')} cannot be read", "bad")] if n_unreadable else [],
            [Cell(pluralize(episodes.n_logs, "log"))] if episodes.n_logs else [],
        ],
        width,
    )


def reading_progress(progress: ReadProgress | None) -> str:
    if progress is None:
        return "reading …"
    return f"reading {progress.n_read:,} of {pluralize(progress.n_found, 'file')}"


def search_progress(progress: SearchProgress) -> str:
    if progress.is_complete:
        return ""
    return f"{progress.n_searched:,} of {pluralize(progress.n_episodes, 'episode')} are searched"


def empty_episodes_lines(episodes: EpisodeList, key: Callable[[str], str], read_only: str, width: int) -> list[Line]:
    if episodes.query:
        head: Line = [Cell("No episode matches ", "head"), Cell(episodes.query.text, "accent")]
        return [head, key_line(key("episodes.clear"), "shows all episodes")]
    head = [Cell("No episodes yet.", "head")]
    if read_only:
        return [head, *indented_rows(masked_line(read_only), width)]
    return [
        head,
        key_line(key("app.live"), "shows the environments; press there"),
        key_line(key("run.selected"), "to run the selected one; its episode appears here"),
    ]


def _started_cell(episode: ListedEpisode, *, is_selected: bool) -> Cell:
    started = format_time(as_aware(episode.started_at))
    return Cell(f"{started}{SELECTED}", "accent") if is_selected else Cell(started, "dim")


def _flagged_outcome(episode: ListedEpisode) -> Cell:
    names = [name for name, _ in episode_flags(episode) if name != "truncated"]
    shown = partial(_outcome_text, episode, names)
    return Cell(shown(_MAX_OUTCOME), outcome_cell(episode).tone).or_shorter(shown)


def _outcome_text(episode: ListedEpisode, names: Sequence[str], width: int) -> str:
    """Return the outcome with all flags, or with their number where the outcome does not fit beside their names."""
    for marks in (f" {FLAG_MARK}{','.join(names)}", f" {FLAG_MARK}{len(names)}") if names else ("",):
        room = max(width - display_width(marks), 0)
        if display_width(text := outcome_cell(episode, room).text) <= room:
            break
    return f"{cut(text, room)}{marks}"


def unreadable_line(files: Sequence[UnreadableFile]) -> Line:
    """Return how many files cannot be read, and where they are listed."""
    n = sum(not isinstance(file, FoundLog) for file in files)
    text = f"✗ {pluralize(n, 'file')} cannot be read and {'is' if n == 1 else 'are'} not counted; Episodes lists them"
    return [Cell(text, "bad")] if n else []


def _unreadable_row(file: UnreadableFile) -> Sequence[Cell]:
    if isinstance(file, FoundLog):
        return [Cell("≡ log", "accent"), Cell(f"{file.path.name} · {file.reason}")]
    name, reason = file.path.name, file.reason.replace(str(file.path), file.path.name)
    text = masked_line(reason if name in reason else f"{name}: {reason}", 400)
    return [Cell("✗ unreadable", "bad"), Cell(text, "bad")]


def _agent_text(episode: ListedEpisode) -> str:
    mark = f"{FALLBACK_MARK} " if episode.fallback else ""
    return f"{mark}{player_text(episode.agent or UNKNOWN, episode.models)}"


def _task_text(episode: ListedEpisode) -> str:
    return format_exact(episode.task_index) + (f"·{episode.attempt + 1}" if episode.attempt else "")


def reward_tone(episode: ListedEpisode) -> Tone:
    return "plain" if episode.outcome is None else "good" if episode.success else "dim"


def format_exact(number: int | None) -> str:
    """Format an integer with all its digits if it has at most 15."""
    return str(number) if number is not None and abs(number) < 10**15 else format_count(number)


EPISODE_COLUMNS: Final = episode_listing(EpisodeList()).columns

RESET: Final = "reset"
MAX_LINE: Final = 300
MAX_BEFORE: Final = 24
"""Largest number of characters before the words in a line that is shown from its start on."""
CONTEXT: Final = 12
"""Number of characters that are shown before the words otherwise."""


class HitRow(NamedTuple):
    """A found line; only the first one of an episode has it."""

    found: FoundLine
    is_first: bool
    episode: ListedEpisode | None


# fmt: off
HITS: Final = Listing[HitRow](
    lambda row: f"{row.found.episode_id}/{row.found.number}",
    lambda row: row.found.hit.line,
    [
        Field("environment", ENV_WIDTH, most=28,
              cell=lambda row: environment_cell(row.episode.env) if row.episode else Cell("")),
        Field("task", 5, cell=lambda row: Cell(format_count(row.episode.task_index) if row.episode else ""),
              right=True, rank=2),
        Field("step", 5, lambda row: RESET if row.found.hit.step is None else str(row.found.hit.step), right=True),
        Field("kind", 11, lambda row: row.found.hit.kind, tone="dim", rank=1),
        Field("line", None, cell=lambda row: Cell(mask_secrets(_from_words(row.found.hit))[:MAX_LINE]), min_width=24),
        Field("id", 26, cell=lambda row: Cell(row.found.episode_id if row.is_first else "", "dim"), rank=3),
    ],
)
# fmt: on


def _from_words(hit: Hit) -> str:
    if hit.start <= MAX_BEFORE:
        return hit.line.strip()
    return f"… {hit.line[hit.start - CONTEXT :].strip()}"


def hits_heading(
    query: str, n_lines: int, n_read: int, n_episodes: int, n_passages: int | None, state: str, width: int
) -> Line:
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
