"""Heading of one episode: outcome, agent, ids, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from agentgym_tui.presenters.annotations import FLAG_MARK, annotation_count, episode_flags, flag_text, tag_text
from agentgym_tui.presenters.answering_endpoint import FALLBACK_MARK
from agentgym_tui.presenters.cells import (
    SEPARATOR,
    Cell,
    Line,
    cut_line,
    join_parts,
    line_width,
)
from agentgym_tui.presenters.episode_rows import format_exact, reward_tone
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
from agentgym_tui.presenters.text_width import cut, cut_start, environment_text
from agentgym_tui.safe_text import masked_line
from agentgym_tui.state.episode import Episode
from agentgym_tui.state.episode_list import (
    ListedEpisode,
    ListEntry,
    UnreadableFile,
)
from agentgym_tui.state.normalize import as_aware
from runner.types import IMPORTED, GpuUse, WorkerInfo


def episode_heading(
    entry: ListEntry | None,
    state: str,
    position: str,
    width: int,
    path: Path | None = None,
    tags: Sequence[str] = (),
    shares: Line = (),
    currency: str = "",
) -> list[Line]:
    """Return four lines that describe an episode and its outcome, the last with its error, and its times or gaps.

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
        name = entry.path.name if entry else "episode"
        return [join_parts([[Cell(name, "head")], status, where], width), [], [], []]
    room = max(width // 3, 8)
    outcome = outcome_cell(entry, room)
    shown = Cell(cut(outcome.text, room), outcome.tone)
    return [
        join_parts([_task_cells(entry, room), [shown], status, where, *_result_parts(entry)], width),
        join_parts([*([[Cell(tag_text(tags), "accent")]] if tags else []), *_agent_parts(entry, currency)], width),
        join_parts(_id_parts(entry, path, width), width),
        _last_line(entry, shares, width),
    ]


def _last_line(entry: ListedEpisode, shares: Line, width: int) -> Line:
    """Return the error and the shares, or, of an imported episode, the error and what its file lacks."""
    text = error_text(entry)
    error: Line = [Cell(text, "bad")] if text else []
    if not (isinstance(entry, Episode) and entry.imported):
        return join_parts([error, shares], width)
    origin = [Cell("from ", "dim"), Cell(entry.imported)]
    return cut_line([*error, *([SEPARATOR] if error else []), *origin], width)


def has_last_line(entry: ListEntry | None, shares: Line) -> bool:
    """Return whether the fourth line of a heading has something to show."""
    is_imported = isinstance(entry, Episode) and bool(entry.imported)
    return is_imported or bool(error_text(entry) or shares)


def error_text(entry: ListEntry | None) -> str:
    """Return type and first line of the error that ended an episode; an empty text if there is no error."""
    if entry is None or isinstance(entry, UnreadableFile):
        return ""
    parts = (entry.error_type, entry.error_message if isinstance(entry, Episode) else None)
    texts = [masked_line(part.strip().partition("\n")[0]) for part in parts if part]
    return f"✗ {': '.join(texts)}" if texts else ""


def _task_cells(episode: ListedEpisode, room: int) -> Line:
    return [
        Cell(cut(environment_text(episode.env, room), room), "head"),
        Cell(f" task {format_exact(episode.task_index)}"),
    ]


def _result_parts(episode: ListedEpisode) -> Iterator[Line]:
    yield [Cell(f"reward {format_reward(episode.reward)}", reward_tone(episode))]
    yield [Cell(pluralize(episode.rounds, "round"))]
    if episode.duration_s is not None:
        yield [Cell(format_duration(episode.duration_s))]


def _agent_parts(episode: ListedEpisode, currency: str) -> Iterator[Line]:
    yield [Cell("agent ", "dim"), Cell(episode.agent or UNKNOWN)]
    yield [Cell("model ", "dim"), Cell(episode.models or UNKNOWN)]
    if episode.fallback:
        yield [Cell(f"{FALLBACK_MARK} answered by {masked_line(episode.fallback, 60)}", "warn")]
    for label in filter(None, (episode.shape, episode.limits)):
        yield [Cell(label, "warn")]
    if isinstance(episode, Episode) and (noted := annotation_count(episode.notes)):
        yield [Cell(noted, "warn")]
    if flags := [flag_text(*flag) for flag in episode_flags(episode)]:
        yield [Cell(f"{FLAG_MARK} {', '.join(flags)}", "warn")]
    if tokens := _token_count(episode):
        yield [Cell("tokens ", "dim"), Cell(format_count(tokens))]
    if episode.cost is not None:
        yield [Cell("cost ", "dim"), Cell(format_cost(episode.cost, currency))]
    for name, value in (("data", episode.data_label), ("transport", episode.transport), ("node", episode.node)):
        if value:
            yield [Cell(f"{name} ", "dim"), Cell(value)]
    if isinstance(episode, Episode) and (worker := episode.worker) is not None:
        yield _worker_cells(worker)
    if isinstance(episode, Episode) and episode.gpu is not None:
        yield from gpu_parts(episode.gpu)
    if episode.mode == "compat":
        yield [Cell("unscored: compat", "warn")]
    if episode.unscored:
        is_imported = episode.transport == IMPORTED
        yield [Cell(f"unscored: {'its result is unknown' if is_imported else 'idle play can succeed'}", "warn")]


def gpu_parts(use: GpuUse, each: str = "") -> Iterator[Line]:
    """Return energy and GPU seconds; ``about`` where they are estimates, because several episodes shared the GPUs."""
    about = "about " if use.energy_shared else ""
    energy = None if use.energy_j is None else format_energy(use.energy_j)
    seconds = None if use.gpu_s is None else format_duration(use.gpu_s)
    for name, amount in (("GPU energy ", energy), ("GPU time ", seconds)):
        if amount is not None:
            yield [Cell(name, "dim"), Cell(f"{about}{amount}{each}")]


def _worker_cells(worker: WorkerInfo) -> Line:
    """Return the name of a worker; a Ray actor has only an id, and may run on another host than the node."""
    if worker.kind == "ray":
        return [Cell("worker ", "dim"), Cell(f"{worker.id[:12]} on {worker.host}")]
    return [Cell(worker.id)]


def _id_parts(episode: ListedEpisode, path: Path | None, width: int) -> list[Line]:
    """Return the ids and the path, whose start is cut; a known path has the id of the batch."""
    parts: list[Line] = [
        [Cell(episode.episode_id)],
        [Cell(format_time(as_aware(episode.started_at), "%Y-%m-%d %H:%M:%S"), "dim")],
        [Cell(f"attempt {format_count(episode.attempt)}", "dim")],
        [Cell(f"seed {format_exact(episode.seed)}", "dim")],
    ]
    if path is not None:
        room = width - line_width(join_parts([*parts[:1], [Cell("")]], width))
        return [parts[0], [Cell(cut_start(masked_line(path, 400), room), "dim")], *parts[1:]]
    parts.append([Cell("batch ", "dim"), Cell(episode.batch_id or UNKNOWN, "dim")])
    return [*parts, *([[Cell(episode.profile, "dim")]] if episode.profile else [])]


def _token_count(episode: ListedEpisode) -> int:
    return episode.tokens.total if isinstance(episode, Episode) else episode.tokens_prompt + episode.tokens_completion
