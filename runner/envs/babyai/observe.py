"""Text of the agent's 7x7 view, each object with its position relative to the agent, and picture of the whole level.

The wording follows AgentGym's ``agentenv-babyai/agentenv_babyai/environment.py``. In the picture, a cell is two columns
wide: the kind of an object and its color, so that no color is needed to read it.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from runner.envs.babyai.path_search import Cell
from runner.types import CellRun, Cells, merge_runs
from runner.types.cells import CellColor

if TYPE_CHECKING:
    from runner.envs.babyai.levels import World


SIZE = 7
UNSEEN, EMPTY, WALL, FLOOR, DOOR, KEY, BALL, BOX = range(8)
KINDS = ("unseen", "empty", "wall", "floor", "door", "key", "ball", "box")
COLORS = ("red", "green", "blue", "purple", "yellow", "grey")
DOOR_STATES = ("open", "closed", "locked")
PORTABLE = (KEY, BALL, BOX)

_ARROWS = ("► ", "▼ ", "◄ ", "▲ ")
_FORWARD = ((1, 0), (0, 1), (-1, 0), (0, -1))
_SYMBOLS = {"key": "k", "ball": "●", "box": "□", "goal": "★"}
_LETTERS = {"red": "r", "green": "g", "blue": "b", "purple": "p", "yellow": "y", "grey": "e"}
_COLORS: dict[str, CellColor] = {"r": "red", "g": "green", "b": "blue", "p": "purple", "y": "yellow"}
_EMPTY, _SEEN, _WALL, _SEEN_WALL = "  ", ": ", "░░", "▓▓"
_LEGEND = (
    (CellRun("k key  ● ball  □ box  : seen by the agent", "dim"),),
    (CellRun("doors: / open  + closed  ! locked", "dim"),),
    (CellRun("r red g green b blue p purple y yellow e grey", "dim"),),
)


class Thing(NamedTuple):
    """A key, ball, box or door in view; ``number`` counts the things of its name, e.g. ``red closed door``, from 1."""

    name: str
    number: int
    kind: int
    color: str
    state: str
    cell: Cell


class View:
    """A decoded ``image`` of minigrid: 7 columns of 7 cells (kind, color, state); the agent is at the bottom center.

    Attributes:
        kinds: cell -> kind of the object in the cell.
        carrying: color and kind of the carried object, e.g. ``("red", "key")``; None if there is none.
        heading: the agent's heading in the world; 0 is to the right, 1 to 3 follow clockwise.
    """

    def __init__(self, image: list[list[list[int]]], carrying: tuple[str, str] | None, heading: int) -> None:
        self.kinds: dict[Cell, int] = {}
        self.carrying = carrying
        self.heading = heading
        visible: list[tuple[Cell, int, str, str]] = []
        for row in range(SIZE):
            for column in range(SIZE):
                kind, color, state = image[column][row]
                cell = (SIZE - 1 - row, column - SIZE // 2)
                self.kinds[cell] = kind
                if kind in (DOOR, *PORTABLE) and cell != (0, 0):
                    visible.append((cell, kind, COLORS[color], DOOR_STATES[state] if kind == DOOR else ""))
        visible.sort(key=lambda item: item[0][0] + abs(item[0][1]))  # nearest first
        counts: Counter[str] = Counter()
        self.things: list[Thing] = []
        for cell, kind, shown, condition in visible:
            name = " ".join(filter(None, (shown, condition, KINDS[kind])))
            counts[name] += 1
            self.things.append(Thing(name, counts[name], kind, shown, condition, cell))

    def text(self) -> str:
        held = f"You are carrying a {' '.join(self.carrying)}." if self.carrying else "You are not carrying anything."
        return f"{self._listing()}The room has walls around you. {self._facing()}{held}"

    def _listing(self) -> str:
        if not self.things and WALL not in self.kinds.values():
            return "You cannot see any objects within sight."
        sentences = "".join(f"There is a {thing.name} {thing.number} {_place(thing.cell)}.  " for thing in self.things)
        return f"In front of you in this room, you can see several objects: {sentences}"

    def _facing(self) -> str:
        for steps in range(1, SIZE):
            kind = self.kinds[steps, 0]
            if kind in (WALL, BOX):
                return f"You are facing a {KINDS[kind]} {steps} steps away. "
        return ""


def _place(cell: Cell) -> str:
    forward, right = cell
    if right == 0:
        return f"right in front of you {forward} steps away"
    side = "right" if right > 0 else "left"
    return f"{forward} steps in front of you and {abs(right)} steps to your {side}"


def draw_level(world: World, view: View) -> Cells:
    """The cells of ``view`` that the agent sees are shaded."""
    grid: Any = world.grid  # minigrid has no type annotations
    agent_x, agent_y = int(world.agent_pos[0]), int(world.agent_pos[1])
    cells = list(map(_symbol, grid.grid))
    cells[agent_y * grid.width + agent_x] = _ARROWS[world.agent_dir]
    dx, dy = _FORWARD[world.agent_dir]
    seen = {
        (agent_x + dx * forward - dy * right, agent_y + dy * forward + dx * right)
        for (forward, right), kind in view.kinds.items()
        if kind
    }
    rows = [
        merge_runs(_cell(cells[y * grid.width + x], (x, y) in seen) for x in range(grid.width))
        for y in range(grid.height)
    ]
    held = CellRun("nothing", "dim")
    if (carried := world.carrying) is not None:
        held = CellRun(f"{carried.color} {carried.type}", _COLORS.get(_LETTERS.get(carried.color, ""), "dim"))
    mission = (CellRun("Mission: ", "dim"), CellRun(world.mission))
    return Cells([mission, (CellRun("Carrying: ", "dim"), held), *rows, *_LEGEND])


def _symbol(thing: Any) -> str:  # noqa: ANN401
    if thing is None:
        return _EMPTY
    if thing.type == "wall":
        return _WALL
    kind = _SYMBOLS.get(thing.type, "?")
    if thing.type == "door":
        kind = "/" if thing.is_open else "!" if thing.is_locked else "+"
    return kind + _LETTERS.get(thing.color, " ")


@cache
def _cell(text: str, seen: bool) -> CellRun:
    if text in _ARROWS:
        return CellRun(text, "yellow", "solid")
    if seen:
        text = {_EMPTY: _SEEN, _WALL: _SEEN_WALL}.get(text, text)
    color = "plain" if text == _EMPTY else _COLORS.get(text[1], "dim")
    return CellRun(text, color, "shade" if seen else "")
