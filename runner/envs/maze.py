"""Maze: walk a fixed 10 x 13 grid to its goal, seeing only the position and the adjacent walls.

The grid, texts and quirks are those of AgentGym's ``agentenv-lmrlgym/agentenv_lmrlgym/maze/environment.py`` and
``utils.py``.
"""

from __future__ import annotations

from collections import deque
from functools import cache
from typing import ClassVar, TypeAlias

from runner.envs.base import EmbeddedEnvironment, Grammar, StepText, choice, command
from runner.types import Action, CellRun, Cells, InvalidAction, merge_runs

Position: TypeAlias = tuple[int, int]

GRID = (
    "#############",
    "#.....#.....#",
    "###.#####.###",
    "###.#####.###",
    "###.#####.###",
    "###.......###",
    "######.######",
    "######.######",
    "######.######",
    "#############",
)
GOAL: Position = (8, 6)
STARTS: tuple[Position, ...] = (
    *((1, column) for column in range(1, 6)),
    *((1, column) for column in range(7, 12)),
    *((2, 3), (3, 3), (4, 3), (5, 3), (5, 4), (5, 5), (5, 6), (6, 6), (7, 6)),
    *((5, 7), (5, 8), (5, 9), (4, 9), (3, 9), (2, 9)),
)
MAX_STEPS = 50

_OFFSETS: dict[str, Position] = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}
_MOVES = {f"move {direction}": offset for direction, offset in _OFFSETS.items()}
_SIDES = {"to your right": "right", "to your left": "left", "above you": "up", "below you": "down"}

_WALL, _FREE, _WALKED = CellRun("██", "dim"), CellRun("  "), CellRun("· ", "cyan")
_AGENT, _GOAL = CellRun("● ", "yellow"), CellRun("★ ", "green")
_LEGEND = (_AGENT, CellRun("agent   "), _GOAL, CellRun("goal   "), _WALKED, CellRun("way walked"))
_MOVE = command(
    "move {direction}",
    "Move one cell. Moving into a wall leaves you where you are and still counts as a step.",
    {"direction": choice(_OFFSETS)},
)


class Maze(EmbeddedEnvironment):
    """The double-T maze of LMRL-Gym (MIT); task ``i`` starts at ``STARTS[i]``.

    Reaching the goal gives 1 and ends the episode. Moves into a wall and invalid texts count as steps. After 50
    steps, the next action is not executed: it gives -1 and ends the episode as truncated.

    ``compat`` keeps a quirk of AgentGym's server (``maze/environment.py``): a move with surrounding white space, such
    as the newline at the end of a model's answer, is invalid. ``strict`` ignores the white space. The
    texts of both modes are equal.
    """

    name: ClassVar[str] = "Maze"
    grammar = Grammar([_MOVE], expected=f"exactly one of: {', '.join(_MOVES)}")
    n_tasks = len(STARTS)

    position: Position = STARTS[0]
    """Position of the agent: row and column, from 0."""
    _steps = 0
    _walked: list[Position]

    def admissible_actions(self) -> list[str]:
        return list(_MOVES)

    def parse(self, text: str) -> Action | InvalidAction:
        if self._trimmed(text) not in _MOVES:
            return InvalidAction(text, self.grammar.expected)
        return super().parse(text)

    def oracle(self, seed: int | None) -> MazeOracle:
        return MazeOracle(self)

    def render_cells(self) -> Cells:
        marks = {**dict.fromkeys(self._walked, _WALKED), GOAL: _GOAL, self._walked[-1]: _AGENT}
        rows = [
            merge_runs(marks.get((row, column), _WALL if char == "#" else _FREE) for column, char in enumerate(line))
            for row, line in enumerate(GRID)
        ]
        return Cells([*rows, (), _LEGEND])

    def _reset(self, task_index: int) -> str:
        self.position = STARTS[task_index]
        self._walked = [self.position]
        self._steps = 0
        return _describe(self.position)

    def _step(self, text: str) -> StepText:
        if self._steps >= MAX_STEPS:
            self.truncated = True
            return "Failure\n", -1.0, True
        self._steps += 1
        self.position = _moved(self.position, _MOVES.get(self._trimmed(text), (0, 0)))
        self._walked.append(self.position)
        if self.position == GOAL:
            return "Success\n", 1.0, True
        return _describe(self.position), 0.0, False

    def _trimmed(self, text: str) -> str:
        return text.strip() if self.mode == "strict" else text


class MazeOracle:
    """Walks a shortest path to the goal, at most 12 moves from any start."""

    def __init__(self, maze: Maze) -> None:
        self._maze = maze

    def next_action(self) -> str:
        distances = _distances()
        position = self._maze.position
        return min(_MOVES, key=lambda move: distances[_moved(position, _MOVES[move])])


@cache
def _distances() -> dict[Position, int]:
    distances = {GOAL: 0}
    queue = deque([GOAL])
    while queue:
        cell = queue.popleft()
        for offset in _OFFSETS.values():
            neighbor = _moved(cell, offset)
            if neighbor not in distances:
                distances[neighbor] = distances[cell] + 1
                queue.append(neighbor)
    return distances


def _moved(position: Position, offset: Position) -> Position:
    row, column = position[0] + offset[0], position[1] + offset[1]
    return position if GRID[row][column] == "#" else (row, column)


def _describe(position: Position) -> str:
    row, column = position
    goal = f"The goal is at position {GOAL[0]}, {GOAL[1]}."
    return f"{goal} Your current position is at position {row}, {column}. {_walls(position)}"


def _walls(position: Position) -> str:
    walls = [side for side, direction in _SIDES.items() if _moved(position, _OFFSETS[direction]) == position]
    if not walls:
        return "There are no walls near you."
    if len(walls) == 1:
        return f"There is a wall {walls[0]}."
    return f"There are walls {', '.join(walls)}."
