"""Two episodes side by side: heading, rows of aligned steps, and the texts of one step in two columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Final, NamedTuple

from agentgym_tui.presenters.cells import Cell, Column, Line, TextSource, Tone
from agentgym_tui.presenters.number_format import format_count, format_duration, format_reward, pluralize
from agentgym_tui.presenters.status_line import outcome_cell
from agentgym_tui.presenters.text_width import cut, display_width, wrap_offsets
from agentgym_tui.safe_text import sanitize_line, sanitize_text
from agentgym_tui.state.episode_list import ListedEpisode
from runner.results.alignment import AlignedEpisodes, AlignedStep, word_segments

ALIGNED_COLUMNS: Final = (
    Column("#", 7, right=True),
    Column("action", None, min_width=24),
    Column("differs", 28, rank=1),
    Column("reward", 15, right=True, rank=2),
)
SIDES: Final = ("A", "B")
MAX_CHARS: Final = 20_000
"""Number of characters of a text that are compared on the screen."""

_GAP: Final = Cell(" │ ", "dim")
_FIRST: Final = "▶"
"""Marks the first step that differs."""


class AlignedRows(TextSource):
    """Aligned steps as rows of ``ALIGNED_COLUMNS``; the key of a row is the index of its step."""

    def __init__(self, aligned: AlignedEpisodes) -> None:
        self._aligned = aligned

    def __len__(self) -> int:
        return len(self._aligned.steps)

    def line(self, index: int, width: int) -> Line:
        step = self._aligned.steps[index]
        number = str(step.index)
        is_first = index == self._aligned.divergence
        tone: Tone = "plain" if step.differences else "dim"
        rewards = " / ".join(format_reward(side.reward) if side else "-" for side in (step.left, step.right))
        return [
            Cell(f"{_FIRST} {number}" if is_first else number, "warn" if is_first else "dim"),
            Cell(_actions(step), tone),
            Cell(_differences_text(step), "warn" if step.differences else "dim"),
            Cell(rewards, tone),
        ]


def _actions(step: AlignedStep) -> str:
    """Return the actions of a step in one line, only one if both are the same."""
    raw = [side.action for side in (step.left, step.right) if side is not None]
    texts = [sanitize_line(text) or "(nothing)" for text in dict.fromkeys(raw)]
    shown = " ≠ ".join(texts)
    if step.left is None or step.right is None:
        shown = f"only {SIDES[step.left is None]}: {shown}"
    return shown


def _differences_text(step: AlignedStep) -> str:
    return ", ".join("no such step" if each == "missing" else each for each in step.differences)


def alignment_heading(
    episodes: Sequence[ListedEpisode], aligned: AlignedEpisodes | None, width: int, *, failure: str
) -> list[Line]:
    """Return three lines: both episodes, and where they differ first."""
    lines = [_episode_line(side, episode, width) for side, episode in zip(SIDES, episodes, strict=False)]
    if failure:
        return [*lines, [Cell(cut(failure, width), "bad")]]
    return [*lines, [_summary_cell(aligned, width)]]


def _episode_line(side: str, episode: ListedEpisode, width: int) -> Line:
    outcome = outcome_cell(episode, max(width // 3, 8))
    who = " ".join(filter(None, (episode.agent, episode.models)))
    texts = [
        f"{episode.env} #{format_count(episode.task_index)}",
        who,
        f"reward {format_reward(episode.reward)}",
        pluralize(episode.rounds, "round"),
        format_duration(episode.duration_s),
        episode.episode_id,
    ]
    used = display_width(outcome.text) + 5
    rest = cut(" · ".join(texts), max(width - used, 0))
    return [Cell(side, "head"), Cell("  "), outcome, Cell("  "), Cell(rest)]


def _summary_cell(aligned: AlignedEpisodes | None, width: int) -> Cell:
    if aligned is None:
        return Cell("loading …", "dim")
    n = sum(bool(step.differences) for step in aligned.steps)
    steps = pluralize(len(aligned.steps), "step")
    if aligned.divergence is None:
        text = f"no difference in {steps}"
    else:
        first = str(aligned.steps[aligned.divergence].index)
        text = f"{format_count(n)} of {steps} differ, the first is step {first}"
    if aligned.reset_differs:
        text = f"the first observations differ · {text}"
    if note := aligned.shape_note:
        text = f"{note} · {text}"
    same = aligned.divergence is None and not aligned.reset_differs and not note
    return Cell(cut(text, width), "good" if same else "warn")


class _Part(NamedTuple):
    """A text of a step on both sides; a side without one is None."""

    title: str
    left: str | None
    right: str | None


def aligned_step_lines(step: AlignedStep | None, width: int) -> list[Line]:
    """Return the texts of both sides of a step in two columns; words that differ are marked by their tone."""
    if step is None:
        return []
    column = max((width - 3) // 2, 2)
    lines: list[Line] = []
    for part in _parts(step):
        differs = part.left is not None and part.right is not None and part.left != part.right
        title = f"{part.title} ≠" if differs else part.title
        left, right = _marked(part)
        lines.append([Cell(cut(title, width), "warn" if differs else "head")])
        for cells, others in zip_longest(_wrapped(left, column), _wrapped(right, column), fillvalue=()):
            lines.append([*cells, Cell(_padding(cells, column)), _GAP, *others])
    return lines


def _parts(step: AlignedStep) -> Iterator[_Part]:
    left, right = step.left, step.right
    for name in ("action", "observation", "thought"):
        texts = [None if side is None else getattr(side, name) for side in (left, right)]
        if any(texts):
            yield _Part(name, *texts)
    yield _Part("reward", *[None if side is None else format_reward(side.reward) for side in (left, right)])
    yield _Part("time", *[None if side is None else format_duration(side.time_s) for side in (left, right)])


def _marked(part: _Part) -> tuple[list[Cell], list[Cell]]:
    """Return the texts of both sides as cells; the tone of a cell is ``bad`` or ``good`` where the texts differ."""
    cells = _segment_cells(_shown(part.left), _shown(part.right))
    for side, whole in enumerate((part.left, part.right)):
        if whole is None:
            cells[side][:] = [Cell("(no such step)", "dim")]
        elif len(whole) > MAX_CHARS:
            hidden = format_count(len(whole) - MAX_CHARS)
            cells[side].append(Cell(f"\n… {hidden} more characters: open the episode", "dim"))
    return cells


def _shown(text: str | None) -> str:
    return sanitize_text((text or "")[:MAX_CHARS].replace("\t", "    "))


def _segment_cells(left: str, right: str) -> tuple[list[Cell], list[Cell]]:
    cells: tuple[list[Cell], list[Cell]] = ([], [])
    at = [0, 0]
    for segment in word_segments(left, right):
        for side, (text, piece) in enumerate(((left, segment.left), (right, segment.right))):
            tone: Tone = "plain" if segment.same else "good" if side else "bad"
            cells[side].append(Cell(text[at[side] : at[side] + len(piece)], tone))
            at[side] += len(piece)
    return cells


def _wrapped(cells: Sequence[Cell], width: int) -> Iterator[list[Cell]]:
    """Yield the rows of a text of several tones."""
    text = "".join([cell.text for cell in cells])
    tones: list[tuple[int, Tone]] = []
    end = 0
    for cell in cells:
        end += len(cell.text)
        tones.append((end, cell.tone))
    start = 0
    for line in text.split("\n"):  # offsets in the whole text
        for first, stop in wrap_offsets(line, width):
            yield list(_toned(text, start + first, start + stop, tones))
        start += len(line) + 1


def _toned(text: str, start: int, stop: int, tones: Sequence[tuple[int, Tone]]) -> Iterator[Cell]:
    for end, tone in tones:
        if start < min(end, stop):
            yield Cell(text[start : min(end, stop)], tone)
            start = min(end, stop)


def _padding(cells: Sequence[Cell], width: int) -> str:
    return " " * max(width - sum(display_width(cell.text) for cell in cells), 0)
