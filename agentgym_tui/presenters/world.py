"""The picture of an environment as lines; its texts and names of colors are untrusted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, cast

import msgspec

from agentgym_tui.presenters.cells import Cell, Line, Tone, line_width
from agentgym_tui.presenters.text_width import display_width, wrap_offsets
from agentgym_tui.state.episode import Episode
from runner.types import CellRow, CellRun, unpack_cells
from runner.types.cells import MAX_COLUMNS

_MIN_WIDTH: Final = 8
"""Columns below which a line is cut, because its rows would be too short to read."""

NO_PICTURE: Final[list[Line]] = [
    [Cell("No picture of the environment.", "dim")],
    [],
    [Cell("It draws none, its server draws none, or", "dim")],
    [Cell("the profile lacks episode.world: true.", "dim")],
]
"""Shown where there is no picture."""
NO_STEP_YET: Final[list[Line]] = [[Cell("The first step brings the first picture.", "dim")]]
"""Shown while an episode runs whose first step has not ended."""


def world_lines(packed: bytes, width: int = MAX_COLUMNS) -> list[Line]:
    """Return the lines of a picture as it is stored, wrapped to ``width`` columns; a note if there is none."""
    try:
        cells = unpack_cells(msgspec.json.decode(packed or b"null"))
    except (ValueError, RecursionError):
        cells = None
    if cells is None:
        return NO_PICTURE
    return [line for row in cells.rows for line in _wrapped(_line(row), width)]


def world_at(episode: Episode, step: int, *, before: bool = False) -> bytes:
    """Return the stored picture of an episode after a step, or before it; empty if there is none."""
    shown = step - before
    if shown < 0:
        return episode.reset_world
    return next((each.world for each in reversed(episode.steps) if each.index == shown), b"")


def ended_step(episode: Episode, step: int) -> int:
    """Return a step, or the newest one that has ended while the model still answers; -1 is the reset."""
    return min(step, episode.last_step_index)


def step_world_lines(episode: Episode, step: int, width: int = MAX_COLUMNS, *, before: bool = False) -> list[Line]:
    """Return the picture of an episode after a step, or before it, wrapped to ``width``; a note if there is none."""
    if episode.running and not episode.steps and not episode.reset_world:
        return NO_STEP_YET
    return world_lines(world_at(episode, ended_step(episode, step), before=before), width)


def world_title(episode: Episode, step: int, key: str) -> Line:
    """Return which picture a pane shows, and what the key ``key`` does."""
    shown = ended_step(episode, step)
    when = "after the reset" if shown < 0 else f"after step {shown}"
    return [
        Cell("World", "head"),
        Cell(f" · {when} · {key}: transcript", "dim"),
    ]


def world_heading(step: int, key: str, *, before: bool) -> Line:
    """Return which picture is shown, and what the key ``key`` does; step -1 is the reset."""
    if step < 0:
        return [Cell("after the reset", "head")]
    shown, other = ("before", "after") if before else ("after", "before")
    return [
        Cell(f"{shown} step {step}", "head"),
        Cell(f" · {key}: {other} it", "dim"),
    ]


def has_pictures(episode: Episode) -> bool:
    """Return whether an episode has any picture."""
    return bool(episode.reset_world) or any(step.world for step in episode.steps)


def _line(row: CellRow) -> Line:
    cells = [Cell(run.text, _tone(run)) for run in row]
    if display_width("".join(cell.text for cell in cells)) == line_width(cells):
        return cells
    # A terminal joins characters across runs, such as flags, so the runs would not be where they are drawn.
    return [Cell("".join(run.text for run in row))]


def _wrapped(line: Line, width: int) -> Iterator[Line]:
    """Yield the rows of a line; those that continue it are indented as it is."""
    text = "".join(cell.text for cell in line)
    indent = len(text) - len(text.lstrip(" "))
    if display_width(text) <= width or width - indent < _MIN_WIDTH:
        yield line
        return
    for start, stop in wrap_offsets(text[indent:], width - indent):
        yield [Cell(" " * indent), *_part(line, indent + start, indent + stop)]


def _part(line: Line, start: int, stop: int) -> Iterator[Cell]:
    offset = 0
    for cell in line:
        if offset < stop and offset + len(cell.text) > start:
            yield cell._replace(text=cell.text[max(start - offset, 0) : stop - offset])
        offset += len(cell.text)


def _tone(run: CellRun) -> Tone:
    return cast(Tone, f"{run.color}-{run.fill}" if run.fill else run.color)
