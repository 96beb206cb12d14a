"""Oracle of BabyAI: plans with knowledge of the whole grid and the mission, and returns command texts."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from runner.envs.babyai.action_menu import CHECK, ActionMenu
from runner.envs.babyai.path_search import DROP, FORWARD, LEFT, PICKUP, RIGHT, TOGGLE
from runner.errors import RunnerError

if TYPE_CHECKING:
    from minigrid.envs.babyai.core.verifier import Instr, PutNextInstr

    from runner.envs.babyai.levels import Item, World


GridCell: TypeAlias = tuple[int, int]
WorldPose: TypeAlias = tuple[int, int, int]
"""Column, row and heading; heading 0 is to the right, 1 to 3 follow clockwise."""

Texts: TypeAlias = Iterator[str]
"""Command texts of a plan, one at a time; the plan reads the world again after the caller has executed a text."""

PORTABLE = ("key", "ball", "box")
_TEXTS = {LEFT: "turn left", RIGHT: "turn right", FORWARD: "move forward", DROP: "drop", TOGGLE: "toggle"}
_AROUND = ((1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0), (-1, -1), (0, -1), (1, -1))
_NOWHERE: frozenset[GridCell] = frozenset()
_HEADINGS = ((1, 0), (0, 1), (-1, 0), (0, -1))
_COST_OF_CLEARING = 10
"""Approximate number of steps to carry an object out of the way."""
_COST_OF_A_KEY = 40
"""Approximate number of steps to fetch the key of a locked door."""


class Played(Protocol):
    """What the oracle sees of the environment: the whole world, and the commands of the current view."""

    world: World
    menu: ActionMenu


class PathStep(NamedTuple):
    """A low-level step, the pose after the step, and the object to unlock or carry away before the step, if any."""

    move: int
    pose: WorldPose
    obstacle: Item | None = None


_Edge: TypeAlias = tuple[int, list[PathStep]]
"""Cost, and steps to the next pose."""


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
    order, settled = count(), set[WorldPose]()
    queue: list[tuple[int, int, WorldPose, list[PathStep]]] = [(0, next(order), agent_pose(world), [])]
    while queue:
        cost, _, pose, steps = heapq.heappop(queue)
        if pose in settled:
            continue
        settled.add(pose)
        if cell_ahead(pose) in goals:
            return steps
        for more, following in _edges(world, pose, blocked, free_only):
            heapq.heappush(queue, (cost + more, next(order), following[-1].pose, steps + following))
    return None


def _edges(world: World, pose: WorldPose, blocked: Collection[GridCell], free_only: bool) -> Iterator[_Edge]:
    cell = cell_ahead(pose)
    if cell not in blocked:
        yield from _forward(world, pose, (*cell, pose[2]), free_only)
    for move in (LEFT, RIGHT):
        yield 1, [PathStep(move, turn_pose(pose, move))]


def _forward(world: World, pose: WorldPose, entered: WorldPose, free_only: bool) -> Iterator[_Edge]:
    item = item_at(world, entered[:2])
    if item is None or (item.type == "door" and item.is_open):
        yield 1, [PathStep(FORWARD, entered)]
    elif item.type == "door" and (not item.is_locked or is_key(world.carrying, item)):
        yield 2, [PathStep(TOGGLE, pose), PathStep(FORWARD, entered)]
    elif item.type in ("door", *PORTABLE) and not free_only:
        yield _COST_OF_A_KEY if item.type == "door" else _COST_OF_CLEARING, [PathStep(FORWARD, entered, item)]


class _Stuck(RunnerError):
    pass


class Planner:
    """Chooses the action texts for one environment instance; the caller executes them.

    The plan follows the parts of the mission. Each text is the longest command that stays on the cheapest route, so
    that a long command never lowers the reward. Without a plan, the planner explores with random actions.
    """

    def __init__(self, env: Played, seed: int | None) -> None:
        self._env = env
        self._random = random.Random(f"babyai-{seed}")
        self._plan: Texts = iter(())
        self._world: object = None

    def next_action(self) -> str:
        if self._world is not self._env.world:
            self._world, self._plan = self._env.world, self._fulfil(self._env.world.instrs)
        for _ in range(2):
            try:
                return next(self._plan)
            except (StopIteration, _Stuck, RecursionError):
                self._plan = self._fulfil(self._env.world.instrs)
        return self._random.choice([text for text in self._env.menu.texts if text != CHECK])

    def _fulfil(self, instruction: Instr) -> Texts:
        from minigrid.envs.babyai.core import verifier

        if isinstance(instruction, verifier.SeqInstr):
            parts = [(instruction.instr_a, "a_done"), (instruction.instr_b, "b_done")]
            for part, done in reversed(parts) if isinstance(instruction, verifier.AfterInstr) else parts:
                if getattr(instruction, done) != "success":
                    yield from self._fulfil(part)
        elif isinstance(instruction, verifier.GoToInstr):
            yield from self._visit(instruction.desc.obj_poss)
        elif isinstance(instruction, verifier.OpenInstr):
            yield from self._open(instruction.desc.obj_set)
        elif isinstance(instruction, verifier.PickupInstr):
            yield from self._put_down()
            yield from self._fetch(instruction.desc.obj_set)
        elif isinstance(instruction, verifier.PutNextInstr):
            yield from self._put_next(instruction)

    def _visit(self, cells: Sequence[GridCell]) -> Texts:
        if cell_ahead(agent_pose(self._env.world)) in cells:
            yield "turn left"  # minigrid verifies the mission only after a step, so turn away and back
        yield from self._approach(lambda: cells)

    def _open(self, doors: Collection[Item]) -> Texts:
        closed = [door for door in doors if not door.is_open] or doors
        unlocked = [door for door in closed if not door.is_locked or is_key(self._env.world.carrying, door)]
        if not unlocked:
            ((cell, door), *_) = [(cell, door) for cell, door in grid_items(self._env.world) if door and door in closed]
            yield from self._unlock(cell, door, _NOWHERE)
        yield from self._approach(lambda: self._spots_of(unlocked or closed), [TOGGLE])

    def _put_next(self, instruction: PutNextInstr) -> Texts:
        yield from self._fetch(instruction.desc_move.obj_set)
        fixed = instruction.desc_fixed.obj_set
        yield from self._approach(lambda: self._free_beside(self._spots_of(fixed)), [DROP])

    def _fetch(self, things: Collection[Item], blocked: Collection[GridCell] = _NOWHERE) -> Texts:
        # things may contain walls, which a mission's "an object" matches
        if any(self._env.world.carrying is thing for thing in things):
            return
        yield from self._put_down(blocked)
        portable = [thing for thing in things if thing.type in PORTABLE]
        yield from self._approach(lambda: self._spots_of(portable), [PICKUP], blocked)

    def _put_down(self, blocked: Collection[GridCell] = _NOWHERE, keep_free: Collection[GridCell] = _NOWHERE) -> Texts:
        """Yield the texts that drop the carried object, if any, preferably in a cell where it blocks nothing."""
        if self._env.world.carrying is None:
            return
        free = {cell for cell, item in grid_items(self._env.world) if item is None} - set(keep_free)
        harmless = {cell for cell in free if self._is_harmless(cell)}
        cells = harmless if find_route(self._env.world, harmless, blocked, free_only=True) is not None else free
        yield from self._approach(lambda: cells, [DROP], blocked, free_only=True)

    def _approach(
        self,
        goals: Callable[[], Collection[GridCell]],
        finish: Sequence[int] = (),
        blocked: Collection[GridCell] = _NOWHERE,
        *,
        free_only: bool = False,
    ) -> Texts:
        arrived = False
        while not arrived:
            cells = goals()
            steps = find_route(self._env.world, cells, blocked, free_only=free_only)
            if steps is None:
                raise _Stuck("no route")
            if any(step.obstacle for step in steps):
                yield from self._make_way(steps, blocked, cells)
                continue
            pose = steps[-1].pose if steps else agent_pose(self._env.world)
            steps += [PathStep(move, pose) for move in finish]
            if not steps:
                return
            text, covered = self._longest_text(steps, cells)
            yield text
            arrived = covered == len(steps)

    def _make_way(self, steps: Sequence[PathStep], blocked: Collection[GridCell], goals: Collection[GridCell]) -> Texts:
        index, obstacle = next((index, step) for index, step in enumerate(steps) if step.obstacle)
        cell, item = obstacle.pose[:2], obstacle.obstacle
        if item and item.type == "door":
            yield from self._unlock(cell, item, blocked)
        elif index:
            yield self._longest_text(steps[:index], _NOWHERE)[0]
        elif item:
            yield from self._clear(item, blocked, {step.pose[:2] for step in steps} | set(goals))

    def _unlock(self, cell: GridCell, door: Item, blocked: Collection[GridCell]) -> Texts:
        """Fetch the key of a locked door; a carried object is put down, and picked up again once the door is open."""
        held = self._env.world.carrying
        yield from self._put_down(blocked)
        elsewhere = {*blocked, cell}
        if not self._keys(door):
            boxes = [box for _, box in grid_items(self._env.world) if box and is_key(box.contains, door)]
            yield from self._approach(lambda: self._spots_of(boxes), [TOGGLE], elsewhere)
        yield from self._fetch(self._keys(door), elsewhere)
        if held:
            yield from self._approach(lambda: [cell], [TOGGLE], blocked)
            yield from self._fetch([held], blocked)

    def _clear(self, thing: Item, blocked: Collection[GridCell], keep_free: Collection[GridCell]) -> Texts:
        held = self._env.world.carrying
        yield from self._put_down(blocked, keep_free)
        yield from self._fetch([thing], blocked)
        yield from self._put_down(blocked, keep_free)
        if held:
            yield from self._fetch([held], blocked)

    def _longest_text(self, steps: Sequence[PathStep], goals: Collection[GridCell]) -> tuple[str, int]:
        """Return the command text that covers most of ``steps`` at no extra cost, and the number of steps it covers."""
        start = agent_pose(self._env.world)
        reached: dict[str, int] = {}
        for text in self._env.menu.texts[:-1]:
            moves = self._env.menu.moves(text)
            reached[text] = 0 if isinstance(moves, str) else _reach(moves, start, steps, goals)
        if single := _TEXTS.get(steps[0].move):
            reached[single] = max(1, reached.get(single, 0))
        best = max(reached, key=lambda text: reached[text])
        if not reached[best]:
            raise _Stuck("the object ahead cannot be picked up")
        return best, reached[best]

    def _keys(self, door: Item) -> list[Item]:
        return [item for _, item in grid_items(self._env.world) if is_key(item, door) and item]

    def _spots_of(self, things: Collection[Item]) -> set[GridCell]:
        return {cell for cell, item in grid_items(self._env.world) if any(item is thing for thing in things)}

    def _free_beside(self, cells: Collection[GridCell]) -> set[GridCell]:
        beside = {(x + dx, y + dy) for x, y in cells for dx, dy in _HEADINGS}
        return {cell for cell in beside if item_at(self._env.world, cell) is None}

    def _is_harmless(self, cell: GridCell) -> bool:
        # an object in the cell would neither block a door nor separate free cells
        around = [item_at(self._env.world, (cell[0] + dx, cell[1] + dy)) for dx, dy in _AROUND]
        changes = sum((a is None) != (b is None) for a, b in zip(around, around[1:] + around[:1], strict=True))
        return changes <= 2 and not any(item and item.type == "door" for item in around)


def _reach(moves: Sequence[int], start: WorldPose, steps: Sequence[PathStep], goals: Collection[GridCell]) -> int:
    """Return how many of ``steps``, counted from the first, the ``moves`` of a command can replace.

    The moves can replace steps that have the same effects and end in the same pose. To replace all steps, the moves
    may instead end in any pose that faces a goal.
    """
    end = start
    for move in moves:
        end = _moved(end, move)
    for n_steps in range(len(steps), len(moves) - 1, -1):
        same_place = steps[n_steps - 1].pose == end or (n_steps == len(steps) and cell_ahead(end) in goals)
        if same_place and _effects(moves) == _effects(step.move for step in steps[:n_steps]):
            return n_steps
    return 0


def _moved(pose: WorldPose, move: int) -> WorldPose:
    if move in (LEFT, RIGHT):
        return turn_pose(pose, move)
    return (*cell_ahead(pose), pose[2]) if move == FORWARD else pose


def _effects(moves: Iterable[int]) -> list[int]:
    return [move for move in moves if move not in (LEFT, RIGHT, FORWARD)]
