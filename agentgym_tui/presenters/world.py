"""The picture of an environment as lines; its texts and names of colors are untrusted."""

from __future__ import annotations

from typing import Final, cast

import msgspec

from agentgym_tui.presenters.cells import Cell, Line, Tone, line_width
from agentgym_tui.presenters.text_width import display_width
from agentgym_tui.safe_text import SafeText, join, sanitize_line, trusted
from agentgym_tui.state.data_model import Episode
from runner.types import CellRow, CellRun, unpack_cells
from runner.types.cells import MAX_COLUMNS

NO_PICTURE: Final[list[Line]] = [
    [Cell(trusted("No picture of the environment."), "dim")],
    [],
    [Cell(trusted("It draws none, its server draws none, or"), "dim")],
    [Cell(trusted("the profile lacks episode.world: true."), "dim")],
]
"""Shown where there is no picture."""


def world_lines(packed: bytes) -> list[Line]:
    """Return the lines of a picture as it is stored; a note if there is none."""
    try:
        cells = unpack_cells(msgspec.json.decode(packed or b"null"))
    except (ValueError, RecursionError):
        cells = None
    if cells is None:
        return NO_PICTURE
    return [_line(row) for row in cells.rows]


def world_at(episode: Episode, step: int, *, before: bool = False) -> bytes:
    """Return the stored picture of an episode after a step, or before it; empty if there is none."""
    shown = step - before
    if shown < 0:
        return episode.reset_world
    return next((each.world for each in reversed(episode.steps) if each.index == shown), b"")


def shown_world(episode: Episode, step: int) -> bytes:
    """Return the picture after a step; that of the reset while there is no step."""
    return world_at(episode, step) if episode.steps else episode.reset_world


def world_title(episode: Episode | None, step: int, key: SafeText) -> Line:
    """Return which picture a pane shows, and what the key ``key`` does."""
    when = f"after step {step}" if episode is not None and episode.steps else "after the reset"
    return [
        Cell(trusted("World"), "head"),
        Cell(join([trusted(f" · {when} · "), key, trusted(": transcript")]), "dim"),
    ]


def world_heading(step: int, key: SafeText, *, before: bool) -> Line:
    """Return which picture is shown, and what the key ``key`` does."""
    shown, other = ("before", "after") if before else ("after", "before")
    return [
        Cell(trusted(f"{shown} step {step}"), "head"),
        Cell(join([trusted(" · "), key, trusted(f": {other} it")]), "dim"),
    ]


def has_pictures(episode: Episode) -> bool:
    """Return whether an episode has any picture."""
    return bool(episode.reset_world) or any(step.world for step in episode.steps)


def _line(row: CellRow) -> Line:
    cells = [Cell(sanitize_line(run.text, MAX_COLUMNS), _tone(run)) for run in row]
    if display_width("".join(cell.text for cell in cells)) == line_width(cells):
        return cells
    # A terminal joins characters across runs, such as flags, so the runs would not be where they are drawn.
    return [Cell(sanitize_line("".join(run.text for run in row), MAX_COLUMNS))]


def _tone(run: CellRun) -> Tone:
    return cast(Tone, f"{run.color}-{run.fill}" if run.fill else run.color)
