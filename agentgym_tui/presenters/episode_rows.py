"""The list of episodes, and the heading of one of them, as lines of safe text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Final

from agentgym_tui.presenters.cells import BADGE, Cell, Column, Line, Tone
from agentgym_tui.presenters.model_answer import FELL
from agentgym_tui.presenters.number_format import UNKNOWN, cost, counted, duration, quantity, reward
from agentgym_tui.presenters.segments import flagged, joined, told
from agentgym_tui.presenters.status_line import outcome_cell
from agentgym_tui.presenters.text_width import cut, wrapped
from agentgym_tui.safe_text import Safe, join, line, own
from agentgym_tui.sessions.protocols import Unusable
from agentgym_tui.state.episode_list import Entry, EpisodeList, Listed, exact, hostile_fields, key_of
from agentgym_tui.state.models import Episode, Progress
from agentgym_tui.state.steps import aware

EPISODE_COLUMNS: Final = (
    Column("started", 12),
    Column("environment", 11),
    Column("task", 5, right=True, rank=3),
    Column("outcome", 24),
    Column("reward", 6, right=True),
    Column("rounds", 6, right=True, rank=2),
    Column("time", 7, right=True, rank=1),
    Column("agent", None),
    Column("data", 9, rank=4),
    Column("node", 14, rank=5),
    Column("id", 26, rank=6),
)


class EpisodeRows:
    """What a list shows as rows of ``EPISODE_COLUMNS``; the key is an episode's id or a file's path."""

    def __init__(self, episodes: EpisodeList) -> None:
        """It is read anew at each drawing."""
        self._episodes = episodes

    def __len__(self) -> int:
        """How many are shown."""
        return len(self._episodes.shown)

    def key(self, index: int) -> str:
        """The id or path."""
        return key_of(self._episodes.shown[index])

    def line(self, index: int, width: int) -> Line:
        """A cell per column."""
        entry = self._episodes.shown[index]
        return _unusable(entry) if isinstance(entry, Unusable) else _row(entry)


def list_line(episodes: EpisodeList, state: Safe, width: int) -> Line:
    """What is above the list: how many there are, and ``state``, such as that they are being read."""
    sorting = episodes.sorting
    n_shown, n_unusable = len(episodes.shown), episodes.n_unusable
    found = [Cell(own(f"{n_shown:,} match "), "accent"), Cell(line(" ".join(episodes.words), 60), "accent")]
    return joined(
        [
            [Cell(counted(episodes.n_all, "episode"), "head")],
            [Cell(own(f"▶ {episodes.n_running} running"), "accent")] if episodes.n_running else [],
            found if episodes.words else [],
            [Cell(own(f"by {sorting.column} {sorting.sign}"), "accent")] if sorting is not None else [],
            [Cell(state, "warn")] if state else [],
            [Cell(own(f"✗ {counted(n_unusable, 'file')} cannot be shown"), "bad")] if n_unusable else [],
        ],
        width,
    )


def reading_text(progress: Progress | None) -> Safe:
    """How far files were read, as far as that is known."""
    if progress is None:
        return own("reading …")
    return own(f"reading {progress.n_read:,} of {counted(progress.n_found, 'file')}")


def no_rows(episodes: EpisodeList, key: Callable[[str], str], read_only: str, width: int) -> list[Line]:
    """What to say in the place of an empty list; ``read_only`` is why nothing can be played from here, or "".

    ``key`` gives what is pressed for a command.
    """
    if episodes.words:
        words = line(" ".join(episodes.words), 60)
        return [
            [Cell(own("No episode holds "), "head"), Cell(words, "accent")],
            [_pressed(key("episodes.clear")), Cell(own("shows all of them again"))],
        ]
    head: Line = [Cell(own("No episodes yet."), "head")]
    if read_only:
        return [head, *([Cell(own("  ")), Cell(row, "dim")] for row in wrapped(told(read_only), width - 2, 4))]
    return [
        head,
        [_pressed(key("app.live")), Cell(own("shows the environments; there press"))],
        [_pressed(key("run.selected")), Cell(own("to play the selected one, and its episode is listed here"))],
    ]


def heading_lines(entry: Entry | None, state: Safe, place: Safe, width: int) -> list[Line]:
    """What an episode is and how it ended: four lines.

    Args:
        entry: the episode; None where nothing is known of it.
        state: what is said of it beside that, such as that it is being read.
        place: where it is in the list.
        width: columns of the terminal.
    """
    told_of: Line = [Cell(state, "warn")] if state else []
    where: Line = [Cell(place, "dim")] if place else []
    if entry is None or isinstance(entry, Unusable):
        name = line(entry.path.name, 120) if entry else own("episode")
        return [joined([[Cell(name, "head")], told_of, where], width), [], [], []]
    room, outcome = max(width // 3, 8), outcome_cell(entry)
    shown = Cell(cut(outcome.text, room), outcome.tone)
    badge = [[BADGE]] if hostile_fields(entry) else []
    return [
        joined([_what(entry, room), [shown], *badge, told_of, where, *_numbers(entry)], width),
        joined(list(_played_by(entry)), width),
        joined(list(_names(entry)), width),
        joined([[Cell(error_of(entry), "bad")]], width),
    ]


def error_of(entry: Entry | None) -> Safe:
    """Type and first line of the error that ended an episode, "" where there is none."""
    if entry is None or isinstance(entry, Unusable):
        return own("")
    parts = (entry.error_type, entry.error_message if isinstance(entry, Episode) else None)
    given = [told(part.strip().partition("\n")[0]) for part in parts if part]
    return own(f"✗ {': '.join(given)}" if given else "")


def when(time: datetime, *, year: bool = False) -> Safe:
    """A time on the clock of this machine."""
    try:
        local = aware(time).astimezone()
    except (OverflowError, ValueError, OSError):  # year 1 and year 9999 have no local time everywhere
        return UNKNOWN
    return own(f"{local:%Y-%m-%d %H:%M:%S}" if year else f"{local:%m-%d %H:%M}")


def _pressed(key: str) -> Cell:
    return Cell(own(f"  {line(key, 20)}  "), "accent")


def _row(episode: Listed) -> Sequence[Cell]:
    return [
        Cell(when(episode.started_at), "dim"),
        Cell(flagged(line(episode.env, 60) or UNKNOWN, hostile_fields(episode))),
        Cell(exact(episode.task_index), "dim"),
        outcome_cell(episode),
        Cell(reward(episode.reward), _tone(episode)),
        Cell(quantity(episode.rounds)),
        Cell(duration(episode.duration_s)),
        Cell(_player(episode)),
        Cell(line(episode.data_label, 20) or UNKNOWN, "dim"),
        Cell(line(episode.node, 64) or UNKNOWN, "dim"),
        Cell(line(episode.episode_id, 40), "dim"),
    ]


def _unusable(file: Unusable) -> Sequence[Cell]:
    """Its name and the reason, which takes the whole of the line; the folder is known."""
    name, reason = file.path.name, file.reason.replace(str(file.path), file.path.name)
    text = told(reason if name in reason else f"{name}: {reason}", 400)
    return [Cell(own("✗ no episode"), "bad"), Cell(flagged(text, hostile_fields(file)), "bad")]


def _player(episode: Listed) -> Safe:
    agent = line(episode.agent, 60) or UNKNOWN
    player = own(f"{agent} {line(episode.model, 80)}") if episode.model else agent
    return join([FELL, own(" "), told(episode.fallback, 40), own(", "), player]) if episode.fallback else player


def _tone(episode: Listed) -> Tone:
    if episode.outcome is None:
        return "plain"
    return "good" if episode.success else "dim"


def _what(episode: Listed, room: int) -> Line:
    return [Cell(cut(line(episode.env, 60), room) or UNKNOWN, "head"), Cell(own(f" task {exact(episode.task_index)}"))]


def _numbers(episode: Listed) -> Iterator[Line]:
    yield [Cell(own(f"reward {reward(episode.reward)}"), _tone(episode))]
    yield [Cell(counted(episode.rounds, "round"))]
    if episode.duration_s is not None:
        yield [Cell(duration(episode.duration_s))]


def _played_by(episode: Listed) -> Iterator[Line]:
    yield [Cell(own("agent "), "dim"), Cell(line(episode.agent, 60) or UNKNOWN)]
    yield [Cell(own("model "), "dim"), Cell(line(episode.model or UNKNOWN, 80))]
    if episode.fallback:
        yield [Cell(join([FELL, own(" answered by "), told(episode.fallback, 60)]), "warn")]
    if tokens := _tokens(episode):
        yield [Cell(own("tokens "), "dim"), Cell(quantity(tokens))]
    if episode.cost is not None:
        yield [Cell(own("cost "), "dim"), Cell(cost(episode.cost))]
    for name, value in (("data", episode.data_label), ("over", episode.transport), ("node", episode.node)):
        if value:
            yield [Cell(own(f"{name} "), "dim"), Cell(line(value, 64))]
    if episode.mode == "compat":
        yield [Cell(own("unrated: compat"), "warn")]


def _names(episode: Listed) -> Iterator[Line]:
    yield [Cell(line(episode.episode_id, 40))]
    yield [Cell(when(episode.started_at, year=True), "dim")]
    yield [Cell(own(f"attempt {quantity(episode.attempt)}"), "dim")]
    yield [Cell(own(f"seed {exact(episode.seed)}"), "dim")]
    yield [Cell(own("batch "), "dim"), Cell(line(episode.batch_id, 40) or UNKNOWN, "dim")]
    if episode.profile:
        yield [Cell(line(episode.profile, 64), "dim")]


def _tokens(episode: Listed) -> int:
    return episode.tokens.total if isinstance(episode, Episode) else episode.tokens_prompt + episode.tokens_completion
