"""The cheapest way through a whole world, closed doors, locked doors and things in the way included."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from runner.envs.babyai.actions import FORWARD, LEFT, RIGHT, TOGGLE

if TYPE_CHECKING:
    from runner.envs.babyai.levels import Item, World

Spot: TypeAlias = tuple[int, int]
Stance: TypeAlias = tuple[int, int, int]
"""Column, row and heading: 0 right, then clockwise."""

PORTABLE = ("key", "ball", "box")
_HEADINGS = ((1, 0), (0, 1), (-1, 0), (0, -1))
_COST_OF_CLEARING = 10
"""About what it takes to carry a thing out of the way."""
_COST_OF_A_KEY = 40
"""About what it takes to find the key of a locked door."""


class Step(NamedTuple):
    """A low-level step, where one stands after it, and what has to be unlocked or carried away before."""

    move: int
    stance: Stance
    obstacle: Item | None = None


class _Edge(NamedTuple):
    cost: int
    origin: Stance
    steps: list[Step]


def ahead(stance: Stance) -> Spot:
    """The cell in front."""
    column, row = _HEADINGS[stance[2]]
    return stance[0] + column, stance[1] + row


def turned(stance: Stance, move: int) -> Stance:
    """Where one stands after a turn."""
    return stance[0], stance[1], (stance[2] + (1 if move == RIGHT else -1)) % 4


def stance_of(world: World) -> Stance:
    """Where the agent stands."""
    return int(world.agent_pos[0]), int(world.agent_pos[1]), int(world.agent_dir)


def item_at(world: World, spot: Spot) -> Item | None:
    """What is in a cell; every world has walls all round."""
    return world.grid.grid[spot[1] * world.grid.width + spot[0]]


def items(world: World) -> Iterator[tuple[Spot, Item | None]]:
    """All cells with what is in them."""
    for index, item in enumerate(world.grid.grid):
        row, column = divmod(index, world.grid.width)
        yield (column, row), item


def is_key(item: Item | None, door: Item) -> bool:
    """Whether ``item`` opens ``door``."""
    return item is not None and item.type == "key" and item.color == door.color


def route(world: World, goals: Collection[Spot], shut: Collection[Spot], *, free_only: bool) -> list[Step] | None:
    """The cheapest steps to stand before one of ``goals`` and face it, or None.

    Cells in ``shut`` are walls; with ``free_only`` so are locked doors without a key and things.
    """
    start = stance_of(world)
    came: dict[Stance, _Edge | None] = {start: None}
    settled: set[Stance] = set()
    order = count()
    queue = [(0, next(order), start)]
    while queue:
        cost, _, stance = heapq.heappop(queue)
        if stance in settled:
            continue
        settled.add(stance)
        if ahead(stance) in goals:
            return _unroll(came, stance)
        for edge in _edges(world, stance, shut, free_only):
            following = edge.steps[-1].stance
            known = came.get(following)
            if following != start and (known is None or cost + edge.cost < known.cost):
                came[following] = edge._replace(cost=cost + edge.cost)
                heapq.heappush(queue, (cost + edge.cost, next(order), following))
    return None


def _edges(world: World, stance: Stance, shut: Collection[Spot], free_only: bool) -> Iterator[_Edge]:
    spot = ahead(stance)
    if spot not in shut:
        yield from _forward(world, stance, (*spot, stance[2]), free_only)
    for move in (LEFT, RIGHT):
        yield _Edge(1, stance, [Step(move, turned(stance, move))])


def _forward(world: World, stance: Stance, entered: Stance, free_only: bool) -> Iterator[_Edge]:
    item = item_at(world, entered[:2])
    if item is None:
        yield _Edge(1, stance, [Step(FORWARD, entered)])
    elif item.type == "door":
        if item.is_open:
            yield _Edge(1, stance, [Step(FORWARD, entered)])
        elif not item.is_locked or is_key(world.carrying, item):
            yield _Edge(2, stance, [Step(TOGGLE, stance), Step(FORWARD, entered)])
        elif not free_only:
            yield _Edge(_COST_OF_A_KEY, stance, [Step(FORWARD, entered, item)])
    elif item.type in PORTABLE and not free_only:
        yield _Edge(_COST_OF_CLEARING, stance, [Step(FORWARD, entered, item)])


def _unroll(came: dict[Stance, _Edge | None], stance: Stance) -> list[Step]:
    steps: list[Step] = []
    while (edge := came[stance]) is not None:
        steps = edge.steps + steps
        stance = edge.origin
    return steps
