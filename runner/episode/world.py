"""Pictures of an environment for its episode: drawn by it or by the agent's copy, checked, made safe and bounded."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any, Final

import msgspec

from runner.errors import EnvironmentFault, catch_foreign, log_failure
from runner.types import Agent, CellRow, Cells, Environment, PackedCells, SupportsCells
from runner.types.cells import COLORS, FILLS, MAX_CELLS_BYTES, MAX_COLUMNS, MAX_ROWS
from runner.types.protocols import maybe_await, optional_method
from runner.util.display_text import one_line

logger = logging.getLogger(__name__)

_ENCODER = msgspec.json.Encoder()
_CUT: Final = ["…", "dim"]
"""The last row of a picture of which rows are left out."""
_CUT_BYTES: Final = 32


class WorldRecorder:
    """Takes the pictures of one episode, of the agent's copy if it draws none; no more after the first failure."""

    def __init__(self, environment: Environment, agent: Agent) -> None:
        renders = (optional_method(owner, SupportsCells.render_cells) for owner in (environment, agent))
        self._renders = [render for render in renders if render is not None]
        """Methods that draw; only the first one that has drawn is kept."""

    async def take(self) -> PackedCells | None:
        renders, self._renders = self._renders, []
        with catch_foreign(log_failure(logger, "drawing the environment; the episode continues without pictures:")):
            for render in renders:
                cells = await maybe_await(render())
                if cells is not None:
                    packed = pack_cells(cells)
                    self._renders = [render]
                    return packed
            self._renders = renders
        return None


def pack_cells(cells: object) -> PackedCells:
    """Return the JSON form with safe texts, cut to the limits; raises ``EnvironmentFault`` for what is no picture."""
    if not isinstance(cells, Cells):
        raise EnvironmentFault(f"render_cells should return Cells or None; got {type(cells).__name__}")
    try:
        rows = [_pack_row(row) for row in cells.rows[:MAX_ROWS]]
    except (TypeError, ValueError) as exc:
        raise EnvironmentFault(f"render_cells should return rows of (text, color, fill): {exc}") from exc
    left, packed = MAX_CELLS_BYTES - _CUT_BYTES, list[Any]()
    for row, size in rows:
        left -= size + 1
        if left < 0:
            break
        packed.append(row)
    return packed if len(packed) == len(cells.rows) else [*packed[: MAX_ROWS - 1], [_CUT]]


@lru_cache(2048)
def _pack_row(row: CellRow) -> tuple[list[Any], int]:
    """Return a row and its size as JSON; cached, because most rows are those of the previous picture."""
    room, packed = MAX_COLUMNS, list[Any]()
    for text, color, fill in row:
        if color not in COLORS or fill not in FILLS:
            raise ValueError(f"{color!r} with {fill!r} is no style")
        if not isinstance(text, str):
            raise TypeError(f"a text is {type(text).__name__}")
        shown = _safe_text(text)[:room]
        room -= len(shown)
        packed.append([shown, color, fill] if fill else shown if color == "plain" else [shown, color])
        if room <= 0:
            break
    return packed, len(_ENCODER.encode(packed))


@lru_cache(4096)
def _safe_text(text: str) -> str:
    return one_line(text[:MAX_COLUMNS], MAX_COLUMNS)[:MAX_COLUMNS]
