"""Path search of BabyAI's commands: breadth-first over cells and headings, in the exact order of AgentGym's server.

AgentGym's search (``agentenv-babyai/agentenv_babyai/environment.py``) marks a pose as visited only when it takes the
pose from its queue. A pose can therefore be in the queue several times; it is expanded each time, and the last
expansion decides its predecessor. Every move changes the parity of the sum of column, row and heading, so all poses at
one distance are expanded before any pose at the next one is taken. Two orders per distance therefore replace the queue:
the order of first occurrence decides which goal pose ends the search, that of last occurrence the predecessors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cache
from typing import Final, TypeAlias

LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE = range(6)
"""Minigrid's actions."""

Cell: TypeAlias = tuple[int, int]
"""Steps ahead of the agent and steps to its right; the view has 0 to 6 ahead and -3 to 3 to the right."""
_Pose: TypeAlias = tuple[Cell, int]
"""Cell and heading relative to the agent's: 0 is ahead, 1 to 3 follow clockwise."""
_Expanded: TypeAlias = dict[_Pose, tuple[_Pose, int]]
"""Pose -> the pose before it, and the move between them."""

_START: Final[_Pose] = (0, 0), 0
_OFFSETS: Final = ((1, 0), (0, 1), (-1, 0), (0, -1))
_AREAS: Final = ((-1, 3), (-1, 4), (0, 4), (0, 3))
"""First row and last column that the search may enter, by the agent's heading in the world: 0 is to the right.

AgentGym derives the area from two opposite corners of the view in world coordinates; where the second corner is the
lower one, it includes one cell more.
"""


class PathSearch:
    """Shortest paths from the agent to the cells of its view.

    Args:
        obstacles: cells that the agent cannot enter; its own cell is never one.
        heading: the agent's heading in the world; 0 is to the right, 1 to 3 clockwise.
    """

    def __init__(self, obstacles: Collection[Cell], heading: int) -> None:
        first_row, last_column = _AREAS[heading]
        area = {(ahead, right) for ahead in range(first_row, 7) for right in range(-3, last_column + 1)}
        self._free = area.difference(obstacles)
        self._reachable = self._flood()
        self._visited: set[_Pose] = set()
        self._predecessors: _Expanded = {}
        self._first_on: dict[Cell, _Pose] = {}
        self._first_facing: dict[Cell, _Pose] = {}
        self._by_first: Iterable[_Pose] = [_START]
        self._by_last_reversed: Iterable[_Pose] = [_START]
        self._visit(self._by_first)

    def can_face(self, cell: Cell) -> bool:
        return any(neighbor in self._reachable for neighbor in _around(cell))

    def can_enter(self, cell: Cell) -> bool:
        return cell in self._reachable

    def path_to_face(self, cell: Cell) -> list[int]:
        """Return the moves after which ``cell`` is straight ahead; ``can_face`` must hold."""
        return self._path(self._first_facing, cell)

    def path_to_enter(self, cell: Cell) -> list[int]:
        """Return the moves after which the agent stands on ``cell``; ``can_enter`` must hold."""
        return self._path(self._first_on, cell)

    def _flood(self) -> set[Cell]:
        reached, grown = set[Cell](), {_START[0]}
        while grown:
            reached |= grown
            grown = {each for cell in grown for each in _around(cell)} & self._free - reached
        return reached

    def _path(self, first: dict[Cell, _Pose], cell: Cell) -> list[int]:
        while cell not in first:
            self._search_next_distance()
        pose, moves = first[cell], []
        while pose != _START:
            pose, move = self._predecessors[pose]
            moves.append(move)
        return moves[::-1]

    def _search_next_distance(self) -> None:
        self._by_first = self._expand(self._by_first, 1)
        # the last occurrences, from the end, are the first occurrences of a search in reversed order
        self._by_last_reversed = expanded = self._expand(self._by_last_reversed, -1)
        self._predecessors |= expanded
        self._visit(self._by_first)

    def _visit(self, poses: Iterable[_Pose]) -> None:
        for pose in poses:
            self._visited.add(pose)
            self._first_on.setdefault(pose[0], pose)
            self._first_facing.setdefault(_neighbors(pose)[0][0][0], pose)

    def _expand(self, poses: Iterable[_Pose], direction: int) -> _Expanded:
        expanded: _Expanded = {}
        for pose in poses:
            for neighbor, move in _neighbors(pose)[::direction]:
                if neighbor[0] in self._free and neighbor not in self._visited:
                    expanded.setdefault(neighbor, (pose, move))
        return expanded


@cache
def _around(cell: Cell) -> tuple[Cell, ...]:
    return tuple((cell[0] + ahead, cell[1] + right) for ahead, right in _OFFSETS)


@cache
def _neighbors(pose: _Pose) -> tuple[tuple[_Pose, int], ...]:
    (ahead, right), heading = pose
    entered = ahead + _OFFSETS[heading][0], right + _OFFSETS[heading][1]
    turns = ((heading + 3) % 4, LEFT), ((heading + 1) % 4, RIGHT)
    return ((entered, heading), FORWARD), *(((pose[0], turned), move) for turned, move in turns)
