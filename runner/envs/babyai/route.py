"""The cheapest way through a whole world, closed doors, locked doors and things in the way included."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from runner.envs.babyai.actions import FORWARD, LEFT, RIGHT, TOGGLE

if TYPE_CHECKING:
    from runner.envs.babyai.levels import Item, World

GridCell: TypeAlias = tuple[int, int]
WorldPose: TypeAlias = tuple[int, int, int]
"""Column, row and heading: 0 right, then clockwise."""

PORTABLE = ("key", "ball", "box")
_HEADINGS = ((1, 0), (0, 1), (-1, 0), (0, -1))
_COST_OF_CLEARING = 10
"""About what it takes to carry a thing out of the way."""
_COST_OF_A_KEY = 40
"""About what it takes to find the key of a locked door."""


class PathStep(NamedTuple):
    """A low-level step, where one stands after it, and what has to be unlocked or carried away before."""

    move: int
    stance: WorldPose
    obstacle: Item | None = None


class _Edge(NamedTuple):
    cost: int
    origin: WorldPose
    steps: list[PathStep]


def cell_ahead(stance: WorldPose) -> GridCell:
    """The cell in front."""
    column, row = _HEADINGS[stance[2]]
    return stance[0] + column, stance[1] + row


def turn_pose(stance: WorldPose, move: int) -> WorldPose:
    """Where one stands after a turn."""
    return stance[0], stance[1], (stance[2] + (1 if move == RIGHT else -1)) % 4


def agent_pose(world: World) -> WorldPose:
    """Where the agent stands."""
    return int(world.agent_pos[0]), int(world.agent_pos[1]), int(world.agent_dir)


def item_at(world: World, spot: GridCell) -> Item | None:
    """What is in a cell; every world has walls all round."""
    return world.grid.grid[spot[1] * world.grid.width + spot[0]]


def grid_items(world: World) -> Iterator[tuple[GridCell, Item | None]]:
    """All cells with what is in them."""
    for index, item in enumerate(world.grid.grid):
        row, column = divmod(index, world.grid.width)
        yield (column, row), item


def is_key(item: Item | None, door: Item) -> bool:
    """Whether ``item`` opens ``door``."""
    return item is not None and item.type == "key" and item.color == door.color


def find_route(
    world: World, goals: Collection[GridCell], shut: Collection[GridCell], *, free_only: bool
) -> list[PathStep] | None:
    """The cheapest steps to stand before one of ``goals`` and face it, or None.

    Cells in ``shut`` are walls; with ``free_only`` so are locked doors without a key and things.
    """
    start = agent_pose(world)
    came: dict[WorldPose, _Edge | None] = {start: None}
    settled: set[WorldPose] = set()
    order = count()
    queue = [(0, next(order), start)]
    while queue:
        cost, _, stance = heapq.heappop(queue)
        if stance in settled:
            continue
        settled.add(stance)
        if cell_ahead(stance) in goals:
            return _unroll(came, stance)
        for edge in _edges(world, stance, shut, free_only):
            following = edge.steps[-1].stance
            known = came.get(following)
            if following != start and (known is None or cost + edge.cost < known.cost):
                came[following] = edge._replace(cost=cost + edge.cost)
                heapq.heappush(queue, (cost + edge.cost, next(order), following))
    return None


def _edges(world: World, stance: WorldPose, shut: Collection[GridCell], free_only: bool) -> Iterator[_Edge]:
    spot = cell_ahead(stance)
    if spot not in shut:
        yield from _forward(world, stance, (*spot, stance[2]), free_only)
    for move in (LEFT, RIGHT):
        yield _Edge(1, stance, [PathStep(move, turn_pose(stance, move))])


def _forward(world: World, stance: WorldPose, entered: WorldPose, free_only: bool) -> Iterator[_Edge]:
    item = item_at(world, entered[:2])
    if item is None:
        yield _Edge(1, stance, [PathStep(FORWARD, entered)])
    elif item.type == "door":
        if item.is_open:
            yield _Edge(1, stance, [PathStep(FORWARD, entered)])
        elif not item.is_locked or is_key(world.carrying, item):
            yield _Edge(2, stance, [PathStep(TOGGLE, stance), PathStep(FORWARD, entered)])
        elif not free_only:
            yield _Edge(_COST_OF_A_KEY, stance, [PathStep(FORWARD, entered, item)])
    elif item.type in PORTABLE and not free_only:
        yield _Edge(_COST_OF_CLEARING, stance, [PathStep(FORWARD, entered, item)])


def _unroll(came: dict[WorldPose, _Edge | None], stance: WorldPose) -> list[PathStep]:
    steps: list[PathStep] = []
    while (edge := came[stance]) is not None:
        steps = edge.steps + steps
        stance = edge.origin
    return steps
