"""Picture of a BabyAI level: the whole grid, with the cells that the agent sees shaded; a cell is two columns wide.

The first column is the kind of an object, the second its color, so that no color is needed to read it.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from runner.types import CellRow, CellRun, Cells, merge_runs
from runner.types.cells import CellColor

if TYPE_CHECKING:
    from runner.envs.babyai.levels import World
    from runner.envs.babyai.observe import View

_ARROWS = ("► ", "▼ ", "◄ ", "▲ ")
_FORWARD = ((1, 0), (0, 1), (-1, 0), (0, -1))
_SYMBOLS = {"key": "k", "ball": "●", "box": "□", "goal": "★"}
_LETTERS = {"red": "r", "green": "g", "blue": "b", "purple": "p", "yellow": "y", "grey": "e"}
_COLORS: dict[str, CellColor] = {"r": "red", "g": "green", "b": "blue", "p": "purple", "y": "yellow"}
_EMPTY, _SEEN, _WALL, _SEEN_WALL = "  ", ": ", "░░", "▓▓"
_LEGEND = (
    (CellRun("k key  ● ball  □ box  : seen by the agent", "dim"),),
    (CellRun("doors: / open  + closed  ! locked", "dim"),),
    (CellRun("r red  g green  b blue  p purple  y yellow  e grey", "dim"),),
)


class LevelPainter:
    """Draws one level again and again: all but the cells before the agent stays the same between two pictures."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._texts: dict[object, str] = {None: _EMPTY}
        self._doors: list[Any] = []

    def draw(self, view: View) -> Cells:
        world, texts = self._world, self._texts
        grid: Any = world.grid  # minigrid has no type annotations
        for door in self._doors:
            texts[door] = _door_text(door)
        cells = [texts.get(thing) or self._add(thing) for thing in grid.grid]
        agent_x, agent_y = int(world.agent_pos[0]), int(world.agent_pos[1])
        cells[agent_y * grid.width + agent_x] = _ARROWS[world.agent_dir]
        seen = _seen_columns(agent_x, agent_y, world.agent_dir, view)
        rows = [
            _row("".join(cells[y * grid.width : (y + 1) * grid.width]), tuple(seen.get(y, ())))
            for y in range(grid.height)
        ]
        return Cells([*self._heading(), *rows, *_LEGEND])

    def _heading(self) -> list[CellRow]:
        carried = self._world.carrying
        held = CellRun("nothing", "dim")
        if carried is not None:
            held = CellRun(f"{carried.color} {carried.type}", _COLORS.get(_LETTERS.get(carried.color, ""), "dim"))
        mission = (CellRun("Mission: ", "dim"), CellRun(self._world.mission))
        return [mission, (CellRun("Carrying: ", "dim"), held)]

    def _add(self, thing: Any) -> str:  # noqa: ANN401
        if thing.type == "wall":
            text = _WALL
        elif thing.type == "door":
            self._doors.append(thing)
            text = _door_text(thing)
        else:
            text = _SYMBOLS.get(thing.type, "?") + _LETTERS.get(thing.color, " ")
        self._texts[thing] = text
        return text


def _door_text(door: Any) -> str:  # noqa: ANN401
    return ("/" if door.is_open else "!" if door.is_locked else "+") + _LETTERS.get(door.color, " ")


def _seen_columns(x: int, y: int, heading: int, view: View) -> dict[int, list[int]]:
    dx, dy = _FORWARD[heading]
    seen: dict[int, list[int]] = {}
    for (forward, right), kind in view.kinds.items():
        if kind:
            seen.setdefault(y + dy * forward + dx * right, []).append(x + dx * forward - dy * right)
    return seen


@lru_cache(1024)
def _row(text: str, seen: tuple[int, ...]) -> CellRow:
    # cached, because most rows are those of the previous picture
    cells = [text[start : start + 2] for start in range(0, len(text), 2)]
    return merge_runs(_cell(cell, column in seen) for column, cell in enumerate(cells))


@cache
def _cell(text: str, seen: bool) -> CellRun:
    if text in _ARROWS:
        return CellRun(text, "yellow", "solid")
    if seen:
        text = {_EMPTY: _SEEN, _WALL: _SEEN_WALL}.get(text, text)
    color = "plain" if text == _EMPTY else _COLORS.get(text[1], "dim")
    return CellRun(text, color, "shade" if seen else "")
