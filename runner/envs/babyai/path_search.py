"""Path search of BabyAI's commands: breadth-first over cells and headings, in the exact order of AgentGym's server.

AgentGym's search (``agentenv-babyai/agentenv_babyai/environment.py``) marks a pose as visited only when it takes the
pose from its queue. A pose can therefore be in the queue several times; it is expanded each time, and the last
expansion decides its predecessor. Every move changes the parity of the sum of column, row and heading, so all poses at
one distance are expanded before any pose at the next one is taken. Two orders per distance therefore replace the queue:
the order of first occurrence decides which goal pose ends the search, that of last occurrence the predecessors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, TypeAlias

LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE = range(6)
"""Minigrid's actions."""

Cell: TypeAlias = tuple[int, int]
"""Steps ahead of the agent and steps to its right; the view has 0 to 6 ahead and -3 to 3 to the right."""

_BEHIND, _TO_THE_LEFT, _N_ROWS, _WIDTH = 2, 3, 10, 9
"""Offsets and size of the numbered cells: one row and column more on each side than the search may enter."""
_OFFSETS: Final = (_WIDTH, 1, -_WIDTH, -1)
"""Difference between the numbers of a cell and of the next one, by relative heading: 0 is ahead, 1 to 3 clockwise."""

# A pose is 4 x the number of its cell + its relative heading.
_N_CELLS: Final = _N_ROWS * _WIDTH
_START_CELL: Final = _BEHIND * _WIDTH + _TO_THE_LEFT
_START: Final = 4 * _START_CELL
_IN_ORDER: Final = tuple(
    (
        max(0, 4 * (pose // 4 + _OFFSETS[pose % 4]) + pose % 4),
        pose - pose % 4 + (pose + 3) % 4,
        pose - pose % 4 + (pose + 1) % 4,
    )
    for pose in range(4 * _N_CELLS)
)
"""Pose -> poses after a step ahead, a turn to the left and a turn to the right."""
_IN_REVERSE: Final = tuple(neighbors[::-1] for neighbors in _IN_ORDER)


def number_of(cell: Cell) -> int:
    """Also its bit in a mask of cells."""
    return (cell[0] + _BEHIND) * _WIDTH + cell[1] + _TO_THE_LEFT


def _area(first_ahead: int, last_right: int) -> tuple[int, bytes]:
    cells = [number_of((ahead, right)) for ahead in range(first_ahead, 7) for right in range(-3, last_right + 1)]
    closed = bytearray(b"\1" * (4 * _N_CELLS))
    for number in cells:
        closed[4 * number : 4 * number + 4] = bytes(4)
    return sum(1 << number for number in cells), bytes(closed)


_AREAS: Final = (_area(-1, 3), _area(-1, 4), _area(0, 4), _area(0, 3))
"""Cells that the search may enter, by the agent's heading in the world: 0 is to the right, 1 to 3 clockwise.

Each is a mask of cells, and one byte per pose that is 0 where the search may go. AgentGym derives the area from two
opposite corners of the view in world coordinates; where the second corner is the lower one, it includes one cell more.
"""


class PathSearch:
    """Shortest paths from the agent to the cells of its view.

    Args:
        obstacles: cells that the agent cannot enter; its own cell is never one.
        heading: the agent's heading in the world; 0 is to the right, 1 to 3 clockwise.
    """

    def __init__(self, obstacles: Collection[Cell], heading: int) -> None:
        self._free, closed = _AREAS[heading]
        self._closed = bytearray(closed)
        for cell in obstacles:
            number = number_of(cell)
            self._free &= ~(1 << number)
            self._closed[4 * number : 4 * number + 4] = b"\1\1\1\1"
        self._reachable = self._flood()
        self._predecessors: dict[int, int] = {}
        self._first_on: dict[int, int] = {}
        self._first_facing: dict[int, int] = {}
        self._by_first: Iterable[int] = [_START]
        self._by_last_reversed: Iterable[int] = [_START]
        self._visit([_START])

    def can_face(self, cell: Cell) -> bool:
        number = number_of(cell)
        return any(self._reachable >> number - offset & 1 for offset in _OFFSETS)

    def can_enter(self, cell: Cell) -> bool:
        return bool(self._reachable >> number_of(cell) & 1)

    def path_to_face(self, cell: Cell) -> list[int]:
        """Return the moves after which ``cell`` is straight ahead; ``can_face`` must hold."""
        return self._path(self._first_facing, number_of(cell))

    def path_to_enter(self, cell: Cell) -> list[int]:
        """Return the moves after which the agent stands on ``cell``; ``can_enter`` must hold."""
        return self._path(self._first_on, number_of(cell))

    def _flood(self) -> int:
        reached, grown = 0, 1 << _START_CELL
        while grown != reached:
            reached = grown
            grown |= (reached << _WIDTH | reached >> _WIDTH | reached << 1 | reached >> 1) & self._free
        return reached

    def _path(self, first: dict[int, int], number: int) -> list[int]:
        while number not in first:
            self._search_next_distance()
        pose, moves = first[number], []
        while pose != _START:
            previous = self._predecessors[pose]
            moves.append(FORWARD if pose >> 2 != previous >> 2 else RIGHT if pose - previous & 3 == 1 else LEFT)
            pose = previous
        return moves[::-1]

    def _search_next_distance(self) -> None:
        # the last occurrences, from the end, are the first occurrences of a search in reversed order
        self._by_first = self._expand(self._by_first, _IN_ORDER)
        by_last_reversed = self._expand(self._by_last_reversed, _IN_REVERSE)
        self._by_last_reversed = by_last_reversed
        self._predecessors.update(by_last_reversed)
        self._visit(self._by_first)

    def _expand(self, poses: Iterable[int], neighbors: tuple[tuple[int, int, int], ...]) -> dict[int, int]:
        expanded: dict[int, int] = {}
        closed = self._closed
        for pose in poses:
            for neighbor in neighbors[pose]:
                if not closed[neighbor] and neighbor not in expanded:
                    expanded[neighbor] = pose
        return expanded

    def _visit(self, poses: Iterable[int]) -> None:
        for pose in poses:
            self._closed[pose] = 1
            number = pose >> 2
            self._first_on.setdefault(number, pose)
            self._first_facing.setdefault(number + _OFFSETS[pose & 3], pose)
