"""Cheapest route through a whole world by Dijkstra's algorithm, with costs for doors and for objects in the way."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from runner.envs.babyai.path_search import FORWARD, LEFT, RIGHT, TOGGLE

if TYPE_CHECKING:
    from runner.envs.babyai.levels import Item, World

GridCell: TypeAlias = tuple[int, int]
WorldPose: TypeAlias = tuple[int, int, int]
"""Column, row and heading; heading 0 is to the right, 1 to 3 follow clockwise."""

PORTABLE = ("key", "ball", "box")
_HEADINGS = ((1, 0), (0, 1), (-1, 0), (0, -1))
_COST_OF_CLEARING = 10
"""Approximate number of steps to carry an object out of the way."""
_COST_OF_A_KEY = 40
"""Approximate number of steps to fetch the key of a locked door."""


class PathStep(NamedTuple):
    """A low-level step, the pose after the step, and the object to unlock or carry away before the step, if any."""

    move: int
    pose: WorldPose
    obstacle: Item | None = None


class _Edge(NamedTuple):
    cost: int
    origin: WorldPose
    steps: list[PathStep]


def cell_ahead(pose: WorldPose) -> GridCell:
    column, row = _HEADINGS[pose[2]]
    return pose[0] + column, pose[1] + row


def turn_pose(pose: WorldPose, move: int) -> WorldPose:
    return pose[0], pose[1], (pose[2] + (1 if move == RIGHT else -1)) % 4


def agent_pose(world: World) -> WorldPose:
    return int(world.agent_pos[0]), int(world.agent_pos[1]), int(world.agent_dir)


def item_at(world: World, cell: GridCell) -> Item | None:
    """The outermost cells are walls."""
    return world.grid.grid[cell[1] * world.grid.width + cell[0]]


def grid_items(world: World) -> Iterator[tuple[GridCell, Item | None]]:
    for index, item in enumerate(world.grid.grid):
        row, column = divmod(index, world.grid.width)
        yield (column, row), item


def is_key(item: Item | None, door: Item) -> bool:
    return item is not None and item.type == "key" and item.color == door.color


def find_route(
    world: World, goals: Collection[GridCell], blocked: Collection[GridCell], *, free_only: bool
) -> list[PathStep] | None:
    """Return the cheapest steps to a pose that faces one of the goal cells; None if there is no route.

    Cells in ``blocked`` count as walls. With ``free_only``, objects and locked doors whose key the agent does not carry
    count as walls, too.
    """
    start = agent_pose(world)
    arrivals: dict[WorldPose, _Edge | None] = {start: None}
    settled: set[WorldPose] = set()
    order = count()
    queue = [(0, next(order), start)]
    while queue:
        cost, _, pose = heapq.heappop(queue)
        if pose in settled:
            continue
        settled.add(pose)
        if cell_ahead(pose) in goals:
            return _trace_path(arrivals, pose)
        for edge in _edges(world, pose, blocked, free_only):
            following = edge.steps[-1].pose
            previous = arrivals.get(following)
            if following != start and (previous is None or cost + edge.cost < previous.cost):
                arrivals[following] = edge._replace(cost=cost + edge.cost)
                heapq.heappush(queue, (cost + edge.cost, next(order), following))
    return None


def _edges(world: World, pose: WorldPose, blocked: Collection[GridCell], free_only: bool) -> Iterator[_Edge]:
    cell = cell_ahead(pose)
    if cell not in blocked:
        yield from _forward(world, pose, (*cell, pose[2]), free_only)
    for move in (LEFT, RIGHT):
        yield _Edge(1, pose, [PathStep(move, turn_pose(pose, move))])


def _forward(world: World, pose: WorldPose, entered: WorldPose, free_only: bool) -> Iterator[_Edge]:
    item = item_at(world, entered[:2])
    if item is None:
        yield _Edge(1, pose, [PathStep(FORWARD, entered)])
    elif item.type == "door":
        if item.is_open:
            yield _Edge(1, pose, [PathStep(FORWARD, entered)])
        elif not item.is_locked or is_key(world.carrying, item):
            yield _Edge(2, pose, [PathStep(TOGGLE, pose), PathStep(FORWARD, entered)])
        elif not free_only:
            yield _Edge(_COST_OF_A_KEY, pose, [PathStep(FORWARD, entered, item)])
    elif item.type in PORTABLE and not free_only:
        yield _Edge(_COST_OF_CLEARING, pose, [PathStep(FORWARD, entered, item)])


def _trace_path(arrivals: dict[WorldPose, _Edge | None], pose: WorldPose) -> list[PathStep]:
    steps: list[PathStep] = []
    while (edge := arrivals[pose]) is not None:
        steps = edge.steps + steps
        pose = edge.origin
    return steps
