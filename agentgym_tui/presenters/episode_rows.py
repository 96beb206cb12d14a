"""Rows of the episode list, the line above the list, and the heading of one episode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from agentgym_tui.presenters.answering_endpoint import FALLBACK_MARK
from agentgym_tui.presenters.cells import (
    UNSAFE_BADGE,
    Cell,
    Column,
    Line,
    Tone,
    flag_unsafe,
    indented_rows,
    join_parts,
    line_width,
    match_cells,
    sorting_cells,
    unsafe_texts,
)
from agentgym_tui.presenters.number_format import (
    UNKNOWN,
    format_cost,
    format_count,
    format_duration,
    format_energy,
    format_reward,
    format_time,
    pluralize,
)
from agentgym_tui.presenters.status_line import outcome_cell
from agentgym_tui.presenters.text_width import cut, cut_start, display_width, shorten_environment
from agentgym_tui.safe_text import SafeText, fill_in, join, masked_line, sanitize_line, trusted
from agentgym_tui.state.data_model import Episode
from agentgym_tui.state.episode_list import (
    EpisodeList,
    FoundLog,
    ListedEpisode,
    ListEntry,
    ReadProgress,
    SearchProgress,
    UnreadableFile,
    entry_key,
    searchable_fields,
)
from agentgym_tui.state.normalize import as_aware
from runner.types import GpuUse, WorkerInfo

ENV_WIDTH: Final = 11
MAX_TAGS: Final = 20
"""Largest number of tags of an episode that are shown."""
OUTCOME_WIDTH: Final = 24
MIN_OUTCOME: Final = 9
"""Columns of the outcome before flags."""
FLAG_MARK: Final = trusted("⚑")
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
        return _row(entry, self._episodes.tags.get(entry.episode_id, ()))


def list_summary(episodes: EpisodeList, state: SafeText, key: str, width: int) -> Line:
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
            [Cell(trusted(f"▶ {episodes.n_running} running"), "accent")] if episodes.n_running else [],
            sorting_cells(episodes.sorting),
            [Cell(state, "warn")] if state else [],
            [Cell(trusted(f"✗ {pluralize(n_unreadable, 'file')} cannot be read"), "bad")] if n_unreadable else [],
            [Cell(pluralize(episodes.n_logs, "log"))] if episodes.n_logs else [],
        ],
        width,
    )


def reading_progress(progress: ReadProgress | None) -> SafeText:
    """Return how many of the found files have been read; the number is omitted while ``progress`` is None."""
    if progress is None:
        return trusted("reading …")
    return trusted(f"reading {progress.n_read:,} of {pluralize(progress.n_found, 'file')}")


def search_progress(progress: SearchProgress) -> SafeText:
    """Return how many of the episodes the full-text index has; "" if it has all."""
    if progress.is_complete:
        return trusted("")
    return trusted(f"{progress.n_searched:,} of {pluralize(progress.n_episodes, 'episode')} are searched")


def empty_episodes_lines(episodes: EpisodeList, key: Callable[[str], str], read_only: str, width: int) -> list[Line]:
    """Return the text shown while the episode list has no rows.

    Args:
        episodes: the list.
        key: returns the key label of a command id.
        read_only: why this session cannot start a run; "" if it can.
        width: columns available.
    """
    if episodes.query:
        words = sanitize_line(episodes.query.text, 60)
        return [
            [Cell(trusted("No episode matches "), "head"), Cell(words, "accent")],
            [_key_cell(key("episodes.clear")), Cell(trusted("shows all episodes"))],
        ]
    head: Line = [Cell(trusted("No episodes yet."), "head")]
    if read_only:
        return [head, *indented_rows(masked_line(read_only), width)]
    return [
        head,
        [_key_cell(key("app.live")), Cell(trusted("shows the environments; press there"))],
        [_key_cell(key("run.selected")), Cell(trusted("to run the selected one; its episode appears here"))],
    ]


def episode_heading(
    entry: ListEntry | None,
    state: SafeText,
    position: SafeText,
    width: int,
    path: Path | None = None,
    tags: Sequence[str] = (),
    shares: Line = (),
    currency: str = "",
) -> list[Line]:
    """Return four lines that describe an episode and its outcome, the last with its error or where its time went.

    Args:
        entry: the episode; None if it is unknown.
        state: additional status, such as ``loading …``; may be empty.
        position: position of the episode in the list; may be empty.
        width: columns of the terminal.
        path: path of the episode's file; None if it is not known.
        tags: tags of the episode, as untrusted text.
        shares: where the time of the episode's steps went; empty if that is not known.
        currency: currency of the cost; empty if it is not known.
    """
    status: Line = [Cell(state, "warn")] if state else []
    where: Line = [Cell(position, "dim")] if position else []
    if entry is None or isinstance(entry, UnreadableFile):
        name = sanitize_line(entry.path.name, 120) if entry else trusted("episode")
        return [join_parts([[Cell(name, "head")], status, where], width), [], [], []]
    room = max(width // 3, 8)
    outcome = outcome_cell(entry, room)
    shown = Cell(cut(outcome.text, room), outcome.tone)
    badge = [[UNSAFE_BADGE]] if unsafe_fields(entry) else []
    return [
        join_parts([_task_cells(entry, room), [shown], *badge, status, where, *_result_parts(entry)], width),
        join_parts([*([[Cell(tag_text(tags), "accent")]] if tags else []), *_agent_parts(entry, currency)], width),
        join_parts(_id_parts(entry, path, width), width),
        join_parts([[Cell(error, "bad")] if (error := error_text(entry)) else [], shares], width),
    ]


def error_text(entry: ListEntry | None) -> SafeText:
    """Return type and first line of the error that ended an episode; an empty text if there is no error."""
    if entry is None or isinstance(entry, UnreadableFile):
        return trusted("")
    parts = (entry.error_type, entry.error_message if isinstance(entry, Episode) else None)
    texts = [masked_line(part.strip().partition("\n")[0]) for part in parts if part]
    return trusted(f"✗ {': '.join(texts)}" if texts else "")


def _key_cell(key: str) -> Cell:
    return Cell(trusted(f"  {sanitize_line(key, 20)}  "), "accent")


def _row(episode: ListedEpisode, tags: Sequence[str]) -> Sequence[Cell]:
    return [
        Cell(format_time(as_aware(episode.started_at)), "dim"),
        Cell(flag_unsafe(_env_text(episode, ENV_WIDTH), unsafe_fields(episode))),
        Cell(format_exact(episode.task_index), "dim"),
        _flagged_outcome(episode),
        Cell(format_reward(episode.reward), _reward_tone(episode)),
        Cell(format_count(episode.rounds)),
        Cell(format_duration(episode.duration_s)),
        Cell(join([tag_text(tags), trusted(" " * bool(tags)), _agent_text(episode)])),
        Cell(sanitize_line(episode.data_label, 20) or UNKNOWN, "dim"),
        Cell(sanitize_line(episode.node, 64) or UNKNOWN, "dim"),
        Cell(sanitize_line(episode.episode_id, 40), "dim"),
    ]


def _flagged_outcome(episode: ListedEpisode) -> Cell:
    """Return the outcome and the flags that say more than it does."""
    names = [name for name, _ in _flags(episode) if name != "truncated"]
    if not names:
        return outcome_cell(episode, OUTCOME_WIDTH)
    marks = cut(fill_in(" {}{}", FLAG_MARK, sanitize_line(",".join(names), OUTCOME_WIDTH)), OUTCOME_WIDTH - MIN_OUTCOME)
    room = OUTCOME_WIDTH - display_width(marks)
    outcome = outcome_cell(episode, room)
    return Cell(join([cut(outcome.text, room), marks]), outcome.tone)


def _flags(episode: ListedEpisode) -> Sequence[tuple[str, int | None]]:
    """Return the flags of an episode, each with the step where it begins if that is known."""
    if isinstance(episode, Episode):
        return episode.found_flags
    return [(name, None) for name in episode.flags.split(",")] if episode.flags else []


def _flag_text(name: str, step: int | None) -> SafeText:
    start = trusted("" if step is None else f" from step {step:,}")
    return join([sanitize_line(name, 20), start])


def tag_text(tags: Sequence[str]) -> SafeText:
    """Return tags in one line, each after a ``#``; an empty text without tags."""
    return join(
        [fill_in("{}#{}", trusted(" " * bool(n)), sanitize_line(tag, 64)) for n, tag in enumerate(tags[:MAX_TAGS])]
    )


def _unreadable_row(file: UnreadableFile) -> Sequence[Cell]:
    if isinstance(file, FoundLog):
        text = fill_in("{} · {}", sanitize_line(file.path.name, 200), sanitize_line(file.reason, 80))
        return [Cell(trusted("≡ log"), "accent"), Cell(flag_unsafe(text, unsafe_fields(file)))]
    name, reason = file.path.name, file.reason.replace(str(file.path), file.path.name)
    text = masked_line(reason if name in reason else f"{name}: {reason}", 400)
    return [Cell(trusted("✗ unreadable"), "bad"), Cell(flag_unsafe(text, unsafe_fields(file)), "bad")]


def _env_text(episode: ListedEpisode, width: int) -> SafeText:
    return shorten_environment(sanitize_line(episode.env, 60), width) or UNKNOWN


def _agent_text(episode: ListedEpisode) -> SafeText:
    agent = sanitize_line(episode.agent, 60) or UNKNOWN
    agent_and_model = trusted(f"{agent} {sanitize_line(episode.model, 80)}") if episode.model else agent
    if not episode.fallback:
        return agent_and_model
    return fill_in("{} {}, {}", FALLBACK_MARK, masked_line(episode.fallback, 40), agent_and_model)


def _reward_tone(episode: ListedEpisode) -> Tone:
    if episode.outcome is None:
        return "plain"
    return "good" if episode.success else "dim"


def _task_cells(episode: ListedEpisode, room: int) -> Line:
    return [
        Cell(cut(_env_text(episode, room), room), "head"),
        Cell(trusted(f" task {format_exact(episode.task_index)}")),
    ]


def _result_parts(episode: ListedEpisode) -> Iterator[Line]:
    yield [Cell(trusted(f"reward {format_reward(episode.reward)}"), _reward_tone(episode))]
    yield [Cell(pluralize(episode.rounds, "round"))]
    if episode.duration_s is not None:
        yield [Cell(format_duration(episode.duration_s))]


def _agent_parts(episode: ListedEpisode, currency: str) -> Iterator[Line]:
    yield [Cell(trusted("agent "), "dim"), Cell(sanitize_line(episode.agent, 60) or UNKNOWN)]
    yield [Cell(trusted("model "), "dim"), Cell(sanitize_line(episode.model or UNKNOWN, 80))]
    if episode.fallback:
        yield [Cell(join([FALLBACK_MARK, trusted(" answered by "), masked_line(episode.fallback, 60)]), "warn")]
    if flags := [_flag_text(*flag) for flag in _flags(episode)]:
        yield [
            Cell(join([FLAG_MARK, *(fill_in(", {}" if n else " {}", flag) for n, flag in enumerate(flags))]), "warn")
        ]
    if tokens := _token_count(episode):
        yield [Cell(trusted("tokens "), "dim"), Cell(format_count(tokens))]
    if episode.cost is not None:
        yield [Cell(trusted("cost "), "dim"), Cell(format_cost(episode.cost, currency))]
    for name, value in (("data", episode.data_label), ("transport", episode.transport), ("node", episode.node)):
        if value:
            yield [Cell(trusted(f"{name} "), "dim"), Cell(sanitize_line(value, 64))]
    if isinstance(episode, Episode) and (worker := episode.worker) is not None:
        yield _worker_cells(worker)
    if isinstance(episode, Episode) and episode.gpu is not None:
        yield from gpu_parts(episode.gpu)
    if episode.mode == "compat":
        yield [Cell(trusted("unscored: compat"), "warn")]
    if isinstance(episode, Episode) and episode.imported:
        yield [Cell(trusted("from "), "dim"), Cell(sanitize_line(episode.imported, 200))]
    if episode.unscored:
        is_imported = episode.transport == "import"
        yield [
            Cell(trusted(f"unscored: {'its result is unknown' if is_imported else 'idle play can succeed'}"), "warn")
        ]


def gpu_parts(use: GpuUse, each: str = "") -> Iterator[Line]:
    """Return energy and GPU seconds; ``about`` where they are estimates, because several episodes shared the GPUs."""
    about = "about " if use.energy_shared else ""
    energy = None if use.energy_j is None else format_energy(use.energy_j)
    seconds = None if use.gpu_s is None else format_duration(use.gpu_s)
    for name, amount in (("GPU energy ", energy), ("GPU time ", seconds)):
        if amount is not None:
            yield [Cell(trusted(name), "dim"), Cell(join([trusted(about), amount, trusted(each)]))]


def _worker_cells(worker: WorkerInfo) -> Line:
    """Return the name of a worker; a Ray actor has only an id, and may run on another host than the node."""
    if worker.kind == "ray":
        return [Cell(trusted("worker "), "dim"), Cell(sanitize_line(f"{worker.id[:12]} on {worker.host}", 64))]
    return [Cell(sanitize_line(worker.id, 40))]


def _id_parts(episode: ListedEpisode, path: Path | None, width: int) -> list[Line]:
    """Return the ids and the path, whose start is cut; a known path has the id of the batch."""
    parts: list[Line] = [
        [Cell(sanitize_line(episode.episode_id, 40))],
        [Cell(format_time(as_aware(episode.started_at), "%Y-%m-%d %H:%M:%S"), "dim")],
        [Cell(trusted(f"attempt {format_count(episode.attempt)}"), "dim")],
        [Cell(trusted(f"seed {format_exact(episode.seed)}"), "dim")],
    ]
    if path is not None:
        room = width - line_width(join_parts([*parts[:1], [Cell(trusted(""))]], width))
        return [parts[0], [Cell(cut_start(masked_line(path, 400), room), "dim")], *parts[1:]]
    parts.append([Cell(trusted("batch "), "dim"), Cell(sanitize_line(episode.batch_id, 40) or UNKNOWN, "dim")])
    return [*parts, *([[Cell(sanitize_line(episode.profile, 64), "dim")]] if episode.profile else [])]


def _token_count(episode: ListedEpisode) -> int:
    return episode.tokens.total if isinstance(episode, Episode) else episode.tokens_prompt + episode.tokens_completion


def unsafe_fields(entry: ListEntry | None) -> str | None:
    """Return the searchable texts of an entry that contain unsafe characters; None if no text contains any."""
    if entry is None:
        return None
    return unsafe_texts([field for field in searchable_fields(entry) if field])


def format_exact(number: int | None) -> SafeText:
    """Format an integer with all its digits, up to 15 digits; a larger integer is abbreviated."""
    return trusted(str(number)) if number is not None and abs(number) < 10**15 else format_count(number)
