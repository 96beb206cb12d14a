"""A picture of an environment in text: rows of runs, each with the name of a color that a theme maps.

``unpack_cells`` reads the JSON form, an array of rows: a run is its text alone if it is plain, else
``[text, color]`` or ``[text, color, fill]``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

import msgspec

CellColor: TypeAlias = Literal["plain", "dim", "red", "green", "yellow", "blue", "purple", "cyan"]
CellFill: TypeAlias = Literal["", "shade", "solid"]
"""Background of a run: none, slightly shaded, or filled with the run's color."""

COLORS: Final = frozenset(get_args(CellColor))
FILLS: Final = frozenset(get_args(CellFill))
MAX_ROWS: Final = 60
MAX_COLUMNS: Final = 160
"""Maximum number of characters of a row."""
MAX_CELLS_BYTES: Final = 8 * 1024
"""Maximum size of a picture as JSON."""

PackedCells: TypeAlias = list[Any]
"""The JSON form of ``Cells``."""


class CellRun(NamedTuple):
    """A piece of a row; what its color means must also be visible in its text."""

    text: str
    color: CellColor = "plain"
    fill: CellFill = ""


CellRow: TypeAlias = tuple[CellRun, ...]
"""The runs of a row from left to right."""


class Cells(msgspec.Struct, frozen=True):
    """A picture: its rows from top to bottom."""

    rows: list[CellRow]

    @property
    def text(self) -> str:
        return "\n".join("".join(run.text for run in row).rstrip() for row in self.rows)


_new_run = CellRun._make


def merge_runs(runs: Iterable[CellRun]) -> CellRow:
    merged: list[CellRun] = []
    texts: list[str] = []
    color, fill = "", ""
    for run in runs:
        if texts and (run[1] != color or run[2] != fill):
            merged.append(_new_run(("".join(texts), color, fill)))
            texts = []
        text, color, fill = run
        texts.append(text)
    if texts:
        merged.append(_new_run(("".join(texts), color, fill)))
    return tuple(merged)


def unpack_cells(packed: object) -> Cells | None:
    """Return the picture that a JSON value describes, with untrusted texts; None if it describes none.

    What exceeds ``MAX_ROWS`` is left out, and unknown names of colors read as plain.
    """
    if not isinstance(packed, list) or not packed:
        return None
    rows = [row if isinstance(row, list) else [row] for row in packed[:MAX_ROWS]]
    return Cells([tuple(_unpack_run(run) for run in row[:MAX_COLUMNS]) for row in rows])


def _unpack_run(run: object) -> CellRun:
    parts = run if isinstance(run, list) else [run]
    text, color, fill = [*parts, *("", "plain", "")[len(parts) :]][:3]
    if not isinstance(text, str):
        return CellRun("")
    return CellRun(
        text[:MAX_COLUMNS],
        color if isinstance(color, str) and color in COLORS else "plain",  # type: ignore[arg-type]
        fill if isinstance(fill, str) and fill in FILLS else "",  # type: ignore[arg-type]
    )
