"""The heading of one episode, and two episodes side by side: heading, rows of aligned steps, and texts of one step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Final, TypeAlias

from agentgym_tui.presenters.cells import (
    SEPARATOR,
    Cell,
    Column,
    Line,
    TextSource,
    Tone,
    cut,
    cut_line,
    cut_start,
    display_width,
    environment_text,
    join_parts,
    line_width,
    wrap_offsets,
)
from agentgym_tui.presenters.episode_facts import (
    FALLBACK_MARK,
    FLAG_MARK,
    annotation_count,
    episode_flags,
    part_of,
    tag_text,
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
from agentgym_tui.safe_text import masked_line, player_text, sanitize_text
from agentgym_tui.state.episode import Episode
from agentgym_tui.state.episode_list import ListedEpisode, ListEntry, UnreadableFile
from agentgym_tui.state.normalize import as_aware
from runner.results.alignment import AlignedEpisodes, AlignedStep, word_segments
from runner.types import IMPORTED, GpuUse


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

    ``state`` is an additional status, such as ``loading …``, and ``shares`` where the time of the steps went.
    """
    status: Line = [Cell(state, "warn")] if state else []
    where: Line = [Cell(position, "dim")] if position else []
    if entry is None or isinstance(entry, UnreadableFile):
        name = entry.path.name if entry else "episode"
        return [join_parts([[Cell(name, "head")], status, where], width), [], [], []]
    room = max(width // 3, 8)
    outcome = outcome_cell(entry, room)
    env = Cell(environment_text(entry.env, room), "head").cut(room)
    first = [
        *([env, Cell(f" task {format_exact(entry.task_index)}")], [outcome.cut(room)], status, where),
        [Cell(f"reward {format_reward(entry.reward)}", reward_tone(entry))],
        [Cell(pluralize(entry.rounds, "round"))],
        [Cell(format_duration(entry.duration_s))] if entry.duration_s is not None else [],
    ]
    return [
        join_parts(first, width),
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
    origin = [Cell("from ", "dim"), Cell(masked_line(entry.imported))]
    return cut_line([*error, *([SEPARATOR] if error else []), *origin], width)


def has_last_line(entry: ListEntry | None, shares: Line) -> bool:
    """Return whether the fourth line of a heading has something to show."""
    return bool(shares or error_text(entry) or (isinstance(entry, Episode) and entry.imported))


def error_text(entry: ListEntry | None) -> str:
    """Return type and first line of the error that ended an episode; an empty text if there is no error."""
    if entry is None or isinstance(entry, UnreadableFile):
        return ""
    parts = (entry.error_type, entry.error_message if isinstance(entry, Episode) else None)
    texts = [masked_line(part.strip().partition("\n")[0]) for part in parts if part]
    return f"✗ {': '.join(texts)}" if texts else ""


def _agent_parts(episode: ListedEpisode, currency: str) -> Iterator[Line]:
    full = episode if isinstance(episode, Episode) else None
    yield [Cell("agent ", "dim"), Cell(episode.agent or UNKNOWN)]
    yield [Cell("model ", "dim"), Cell(masked_line(episode.models or UNKNOWN, 80))]
    fallback = f"{FALLBACK_MARK} answered by {masked_line(episode.fallback, 60)}" if episode.fallback else ""
    flags = [name if step is None else f"{name} from step {step:,}" for name, step in episode_flags(episode)]
    noted = annotation_count(full.notes) if full else ""
    flagged = f"{FLAG_MARK} {', '.join(flags)}" if flags else ""
    yield from ([Cell(text, "warn")] for text in (fallback, episode.shape, episode.limits, noted, flagged) if text)
    if n_tokens := _n_tokens(episode):
        yield [Cell("tokens ", "dim"), Cell(format_count(n_tokens))]
    if episode.cost is not None:
        yield [Cell("cost ", "dim"), Cell(format_cost(episode.cost, currency))]
    for name, value in (("data", episode.data_label), ("transport", episode.transport), ("node", episode.node)):
        if value:
            yield [Cell(f"{name} ", "dim"), Cell(value)]
    if full and (worker := full.worker) is not None:
        # a Ray actor has only an id, and may run on another host than the node
        is_ray = worker.kind == "ray"
        yield [Cell("worker ", "dim"), Cell(f"{worker.id[:12]} on {worker.host}")] if is_ray else [Cell(worker.id)]
    if full and full.gpu is not None:
        yield from gpu_parts(full.gpu)
    if episode.mode == "compat":
        yield [Cell("unscored: played by AgentGym's rules (compat)", "warn")]
    if episode.unscored:
        is_imported = episode.transport == IMPORTED
        yield [Cell(f"unscored: {'its result is unknown' if is_imported else 'idle play can succeed'}", "warn")]


def _n_tokens(episode: ListedEpisode) -> int:
    return episode.tokens.total if isinstance(episode, Episode) else episode.tokens_prompt + episode.tokens_completion


def gpu_parts(use: GpuUse, each: str = "") -> Iterator[Line]:
    """Return energy and GPU seconds; ``about`` where they are estimates, because several episodes shared the GPUs."""
    about = "about " if use.energy_shared else ""
    energy = None if use.energy_j is None else format_energy(use.energy_j)
    seconds = None if use.gpu_s is None else format_duration(use.gpu_s)
    for name, amount in (("GPU energy ", energy), ("GPU time ", seconds)):
        if amount is not None:
            yield [Cell(name, "dim"), Cell(f"{about}{amount}{each}")]


def _id_parts(episode: ListedEpisode, path: Path | None, width: int) -> list[Line]:
    """Return the ids and the path, whose start is cut; a known path has the id of the batch."""
    id: Line = [Cell(episode.episode_id)]
    others: list[Line] = [
        [Cell(format_time(as_aware(episode.started_at), "%Y-%m-%d %H:%M:%S"), "dim")],
        [Cell(f"attempt {format_count(episode.attempt + 1)}", "dim")],
        [Cell(f"seed {format_exact(episode.seed)}", "dim")],
    ]
    if path is not None:
        room = width - line_width(id) - line_width([SEPARATOR])
        return [id, [Cell(cut_start(masked_line(path, 400), room), "dim")], *others]
    others.append([Cell("batch ", "dim"), Cell(episode.batch_id or UNKNOWN, "dim")])
    return [id, *others, *([[Cell(episode.profile, "dim")]] if episode.profile else [])]


ALIGNED_COLUMNS: Final = (
    Column("#", 7, right=True),
    Column("action", None, min_width=24),
    Column("differs", 28, rank=1),
    Column("reward", 15, right=True, rank=2),
)
SIDES: Final = ("A", "B")
MAX_CHARS: Final = 20_000  # characters of a text that are compared on the screen
_FIRST: Final = "▶"  # marks the first step that differs
_Toned: TypeAlias = list[tuple[str, Tone]]  # pieces of a sanitized text of several lines


class AlignedRows(TextSource):
    """Aligned steps as rows of ``ALIGNED_COLUMNS``; the key of a row is the index of its step."""

    def __init__(self, aligned: AlignedEpisodes) -> None:
        self._aligned = aligned

    def __len__(self) -> int:
        return len(self._aligned.steps)

    def line(self, index: int, width: int) -> Line:
        step = self._aligned.steps[index]
        is_first = index == self._aligned.divergence
        tone: Tone = "plain" if step.differences else "dim"
        sides = (step.left, step.right)
        # only one action if both are the same
        actions = dict.fromkeys(side.action for side in sides if side is not None)
        shown = " ≠ ".join(text or "(nothing)" for text in actions)
        only = f"only {SIDES[step.left is None]}: " if None in sides else ""
        differences = ", ".join("no such step" if each == "missing" else each for each in step.differences)
        return [
            Cell(f"{_FIRST} {step.index}" if is_first else str(step.index), "warn" if is_first else "dim"),
            Cell(only + shown, tone),
            Cell(differences, "warn" if step.differences else "dim"),
            Cell(" / ".join(format_reward(side.reward) if side else "-" for side in sides), tone),
        ]


def alignment_heading(
    episodes: Sequence[ListedEpisode], aligned: AlignedEpisodes | None, width: int, marked: int = 0, *, failure: str
) -> list[Line]:
    """Return three lines: both episodes, of which the ``marked`` one can be opened, and where they differ first."""
    lines: list[Line] = []
    for number, (side, episode) in enumerate(zip(SIDES, episodes, strict=False)):
        outcome = outcome_cell(episode, max(width // 3, 8))
        texts = [
            f"{episode.env} #{format_count(episode.task_index)}",
            player_text(episode.agent, episode.models),
            f"reward {format_reward(episode.reward)}",
            pluralize(episode.rounds, "round"),
            format_duration(episode.duration_s),
            episode.episode_id,
        ]
        rest = Cell(" · ".join(texts)).cut(max(width - display_width(outcome.text) - 6, 0))
        mark = Cell("▸" if number == marked else " ", "accent")
        lines.append([mark, Cell(side, "head"), Cell("  "), outcome, Cell("  "), rest])
    return [*lines, [Cell(cut(failure, width), "bad") if failure else _summary_cell(aligned, width)]]


def _summary_cell(aligned: AlignedEpisodes | None, width: int) -> Cell:
    if aligned is None:
        return Cell("loading …", "dim")
    n = sum(bool(step.differences) for step in aligned.steps)
    steps = pluralize(len(aligned.steps), "step")
    text = f"no difference in {steps}"
    if aligned.divergence is not None:
        text = f"{format_count(n)} of {steps} differ, the first is step {aligned.steps[aligned.divergence].index}"
    resets = "the first observations differ" if aligned.reset_differs else ""
    same = aligned.divergence is None and not resets and not aligned.shape_note
    return Cell(cut(" · ".join(filter(None, (aligned.shape_note, resets, text))), width), "good" if same else "warn")


def aligned_step_lines(step: AlignedStep | None, width: int) -> list[Line]:
    """Return the texts of both sides of a step in two columns; words that differ are marked by their tone."""
    if step is None:
        return []
    column = max((width - 3) // 2, 2)
    lines: list[Line] = []
    for name, left, right in _parts(step):
        differs = left is not None and right is not None and left != right
        lines.append([Cell(cut(f"{name} ≠" if differs else name, width), "warn" if differs else "head")])
        sides = [_rows(text, column) for text in _marked(left, right)]
        for cells, others in zip_longest(*sides, fillvalue=[]):
            lines.append([*cells, Cell(" " * max(column - line_width(cells), 0)), Cell(" │ ", "dim"), *others])
    return lines


def _parts(step: AlignedStep) -> Iterator[tuple[str, str | None, str | None]]:
    """Yield the name and both texts of what a step has; a side without the step has None."""
    left, right = step.left, step.right
    for name in ("action", "observation", "thought"):
        texts: list[str | None] = [None if side is None else getattr(side, name) for side in (left, right)]
        if any(texts):
            yield name, texts[0], texts[1]
    yield "reward", format_reward(left.reward) if left else None, format_reward(right.reward) if right else None
    yield "time", format_duration(left.time_s) if left else None, format_duration(right.time_s) if right else None


def _marked(left: str | None, right: str | None) -> tuple[_Toned, _Toned]:
    """Return the texts of both sides in pieces; their tone is ``bad`` or ``good`` where the texts differ."""
    pieces: tuple[_Toned, _Toned] = ([], [])
    shown = [sanitize_text((text or "")[:MAX_CHARS].replace("\t", "    ")) for text in (left, right)]
    at = [0, 0]
    for segment in word_segments(*shown):
        for side, piece in enumerate((segment.left, segment.right)):
            tone: Tone = "plain" if segment.same else "good" if side else "bad"
            pieces[side].append((shown[side][at[side] : at[side] + len(piece)], tone))
            at[side] += len(piece)
    for side, whole in enumerate((left, right)):
        if whole is None:
            pieces[side][:] = [("(no such step)", "dim")]
        elif len(whole) > MAX_CHARS:
            hidden = format_count(len(whole) - MAX_CHARS)
            pieces[side].append((f"\n… {hidden} more characters: open the episode", "dim"))
    return pieces


def _rows(pieces: _Toned, width: int) -> Iterator[list[Cell]]:
    """Yield the rows of a text of several tones and lines."""
    line: _Toned = []
    for text, tone in [*pieces, ("\n", "plain")]:
        first, *others = text.split("\n")
        line.append((first, tone))
        for start in others:
            whole = "".join(part for part, _ in line)
            yield from (list(part_of(line, *place)) for place in wrap_offsets(whole, width))
            line = [(start, tone)]
