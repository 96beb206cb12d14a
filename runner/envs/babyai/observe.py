"""Text of the agent's 7x7 view: each object with its position relative to the agent.

The wording follows AgentGym's ``agentenv-babyai/agentenv_babyai/environment.py``.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from runner.envs.babyai.path_search import Cell

SIZE = 7
UNSEEN, EMPTY, WALL, FLOOR, DOOR, KEY, BALL, BOX = range(8)
KINDS = ("unseen", "empty", "wall", "floor", "door", "key", "ball", "box")
COLORS = ("red", "green", "blue", "purple", "yellow", "grey")
DOOR_STATES = ("open", "closed", "locked")
PORTABLE = (KEY, BALL, BOX)


class Thing(NamedTuple):
    """A key, ball, box or door in view; ``number`` counts the things of its name, e.g. ``red closed door``, from 1."""

    name: str
    number: int
    kind: int
    color: str
    state: str
    cell: Cell


class View:
    """A decoded observation.

    Attributes:
        kinds: cell -> kind of the object in the cell.
        carrying: color and kind of the carried object, e.g. ``("red", "key")``; None if there is none.
        heading: the agent's heading in the world; 0 is to the right, 1 to 3 follow clockwise.
    """

    def __init__(self, image: list[list[list[int]]], carrying: tuple[str, str] | None, heading: int) -> None:
        """Decode minigrid's ``image``: 7 columns of 7 cells (kind, color, state); the agent is at the bottom center."""
        self.kinds: dict[Cell, int] = {}
        self.carrying = carrying
        self.heading = heading
        visible: list[tuple[int, int, str, str, Cell]] = []
        for row in range(SIZE):
            for column in range(SIZE):
                kind, color, state = image[column][row]
                cell = (SIZE - 1 - row, column - SIZE // 2)
                self.kinds[cell] = kind
                if kind in (DOOR, *PORTABLE) and cell != (0, 0):
                    distance = cell[0] + abs(cell[1])
                    visible.append((distance, kind, COLORS[color], DOOR_STATES[state] if kind == DOOR else "", cell))
        visible.sort(key=lambda item: item[0])
        self.things = _numbered(visible)

    def text(self) -> str:
        facing = self._facing()
        held = f"a {' '.join(self.carrying)}" if self.carrying else ""
        return (
            f"{self._listing()}The room has walls around you. {facing}"
            f"{f'You are carrying {held}.' if held else 'You are not carrying anything.'}"
        )

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


def _numbered(visible: list[tuple[int, int, str, str, Cell]]) -> list[Thing]:
    counts: Counter[str] = Counter()
    things = []
    for _, kind, color, state, cell in visible:
        name = f"{color} {state} {KINDS[kind]}" if state else f"{color} {KINDS[kind]}"
        counts[name] += 1
        things.append(Thing(name, counts[name], kind, color, state, cell))
    return things


def _place(cell: Cell) -> str:
    forward, right = cell
    if right == 0:
        return f"right in front of you {forward} steps away"
    side = "right" if right > 0 else "left"
    return f"{forward} steps in front of you and {abs(right)} steps to your {side}"
