"""The oracle of BabyAI: it reads the whole world and the mission, and speaks in the environment's texts."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from runner.envs.babyai.actions import CHECK, DROP, FORWARD, LEFT, PICKUP, RIGHT, TOGGLE
from runner.envs.babyai.route import (
    PORTABLE,
    GridCell,
    PathStep,
    WorldPose,
    agent_pose,
    cell_ahead,
    find_route,
    grid_items,
    is_key,
    item_at,
    turn_pose,
)
from runner.errors import RunnerError

if TYPE_CHECKING:
    from minigrid.envs.babyai.core.verifier import Instr, PutNextInstr

    from runner.envs.babyai import BabyAI
    from runner.envs.babyai.levels import Item

Texts: TypeAlias = Iterator[str]
"""A plan: it looks at the world anew after each text, which the caller has carried out by then."""

_TEXTS = {LEFT: "turn left", RIGHT: "turn right", FORWARD: "move forward", DROP: "drop", TOGGLE: "toggle"}
_SIDES = ((1, 0), (0, 1), (-1, 0), (0, -1))
_AROUND = ((1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0), (-1, -1), (0, -1), (1, -1))
_NOWHERE: frozenset[GridCell] = frozenset()


class _Stuck(RunnerError):
    """A plan that cannot go on."""


class Planner:
    """Gives the next action text of one environment instance, which the caller steps.

    A plan is made of the mission's parts; each of its texts is the longest command that stays on the cheapest way, so
    the reward is not lowered for the sake of fewer texts. Where no plan is left it explores with a seeded choice.
    """

    def __init__(self, env: BabyAI, seed: int | None) -> None:
        """Plan for ``env``; nothing is read before the first ``next_action``."""
        self._env = env
        self._random = random.Random(f"babyai-{seed}")
        self._plan: Texts = iter(())
        self._world: object = None

    def next_action(self) -> str:
        """The text of a good next action; never fails, and works for a bounded time."""
        if self._world is not self._env.world:
            self._world, self._plan = self._env.world, self._fulfil(self._env.world.instrs)
        for _ in range(2):
            try:
                return next(self._plan)
            except (StopIteration, _Stuck, RecursionError):
                self._plan = self._fulfil(self._env.world.instrs)
        return self._random.choice([text for text in self._env.menu.texts if text != CHECK])

    def _fulfil(self, instruction: Instr) -> Texts:
        """Carry out an instruction, or what is left of it."""
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

    def _visit(self, spots: Sequence[GridCell]) -> Texts:
        if cell_ahead(agent_pose(self._env.world)) in spots:
            yield "turn left"  # the mission is judged after a step only, so look away and back
        yield from self._approach(lambda: spots)

    def _open(self, doors: Collection[Item]) -> Texts:
        closed = [door for door in doors if not door.is_open] or doors
        unlocked = [door for door in closed if not door.is_locked or is_key(self._env.world.carrying, door)]
        if not unlocked:
            ((spot, door), *_) = [(spot, door) for spot, door in grid_items(self._env.world) if door and door in closed]
            yield from self._unlock(spot, door, _NOWHERE)
        yield from self._approach(lambda: self._spots_of(unlocked or closed), [TOGGLE])

    def _put_next(self, instruction: PutNextInstr) -> Texts:
        yield from self._fetch(instruction.desc_move.obj_set)
        fixed = instruction.desc_fixed.obj_set
        yield from self._approach(lambda: self._free_beside(self._spots_of(fixed)), [DROP])

    def _fetch(self, things: Collection[Item], shut: Collection[GridCell] = _NOWHERE) -> Texts:
        """End up carrying one of ``things``; "an object" of a mission may also mean walls."""
        if any(self._env.world.carrying is thing for thing in things):
            return
        yield from self._put_down(shut)
        portable = [thing for thing in things if thing.type in PORTABLE]
        yield from self._approach(lambda: self._spots_of(portable), [PICKUP], shut)

    def _put_down(self, shut: Collection[GridCell] = _NOWHERE, keep_free: Collection[GridCell] = _NOWHERE) -> Texts:
        """Drop what is carried, if anything, preferably where it is in nobody's way."""
        if self._env.world.carrying is None:
            return
        free = {spot for spot, item in grid_items(self._env.world) if item is None} - set(keep_free)
        harmless = {spot for spot in free if self._is_harmless(spot)}
        spots = harmless if find_route(self._env.world, harmless, shut, free_only=True) is not None else free
        yield from self._approach(lambda: spots, [DROP], shut, free_only=True)

    def _approach(
        self,
        goals: Callable[[], Collection[GridCell]],
        finish: Sequence[int] = (),
        shut: Collection[GridCell] = _NOWHERE,
        *,
        free_only: bool = False,
    ) -> Texts:
        """Face one of the goals and take the finishing steps there, clearing the way as needed."""
        arrived = False
        while not arrived:
            spots = goals()
            steps = find_route(self._env.world, spots, shut, free_only=free_only)
            if steps is None:
                raise _Stuck("there is no way")
            if any(step.obstacle for step in steps):
                yield from self._make_way(steps, shut, spots)
                continue
            stance = steps[-1].stance if steps else agent_pose(self._env.world)
            steps += [PathStep(move, stance) for move in finish]
            if not steps:
                return
            text, covered = self._longest_text(steps, spots)
            yield text
            arrived = covered == len(steps)

    def _make_way(self, steps: Sequence[PathStep], shut: Collection[GridCell], goals: Collection[GridCell]) -> Texts:
        """Deal with the first obstacle on a way, or walk up to it; for a door, its key is fetched first."""
        index, obstacle = next((index, step) for index, step in enumerate(steps) if step.obstacle)
        spot, item = obstacle.stance[:2], obstacle.obstacle
        if item and item.type == "door":
            yield from self._unlock(spot, item, shut)
        elif index:
            yield self._longest_text(steps[:index], _NOWHERE)[0]
        elif item:
            yield from self._clear(item, shut, {step.stance[:2] for step in steps} | set(goals))

    def _unlock(self, spot: GridCell, door: Item, shut: Collection[GridCell]) -> Texts:
        """Fetch the key of a door; what was carried comes along, so then the door is opened right away."""
        held = self._env.world.carrying
        yield from self._put_down(shut)
        elsewhere = {*shut, spot}
        if not self._keys(door):
            boxes = [box for _, box in grid_items(self._env.world) if box and is_key(box.contains, door)]
            yield from self._approach(lambda: self._spots_of(boxes), [TOGGLE], elsewhere)
        yield from self._fetch(self._keys(door), elsewhere)
        if held:
            yield from self._approach(lambda: [spot], [TOGGLE], shut)
            yield from self._fetch([held], shut)

    def _clear(self, thing: Item, shut: Collection[GridCell], keep_free: Collection[GridCell]) -> Texts:
        """Carry a thing out of the way."""
        held = self._env.world.carrying
        yield from self._put_down(shut, keep_free)
        yield from self._fetch([thing], shut)
        yield from self._put_down(shut, keep_free)
        if held:
            yield from self._fetch([held], shut)

    def _longest_text(self, steps: Sequence[PathStep], goals: Collection[GridCell]) -> tuple[str, int]:
        """The text that gets furthest along ``steps`` without costing more, and how many of them it stands for."""
        start = agent_pose(self._env.world)
        reached: dict[str, int] = {}
        for text in self._env.menu.texts[:-1]:
            moves = self._env.menu.moves(text)
            reached[text] = 0 if isinstance(moves, str) else _reach(moves, start, steps, goals)
        if single := _TEXTS.get(steps[0].move):
            reached[single] = max(1, reached.get(single, 0))
        best = max(reached, key=lambda text: reached[text])
        if not reached[best]:
            raise _Stuck("what is in front cannot be picked up")
        return best, reached[best]

    def _keys(self, door: Item) -> list[Item]:
        return [item for _, item in grid_items(self._env.world) if is_key(item, door) and item]

    def _spots_of(self, things: Collection[Item]) -> set[GridCell]:
        return {spot for spot, item in grid_items(self._env.world) if any(item is thing for thing in things)}

    def _free_beside(self, spots: Collection[GridCell]) -> set[GridCell]:
        beside = {(x + dx, y + dy) for x, y in spots for dx, dy in _SIDES}
        return {spot for spot in beside if item_at(self._env.world, spot) is None}

    def _is_harmless(self, spot: GridCell) -> bool:
        """Whether a thing in ``spot`` would block no door and part no free cells."""
        around = [item_at(self._env.world, (spot[0] + dx, spot[1] + dy)) for dx, dy in _AROUND]
        changes = sum((a is None) != (b is None) for a, b in zip(around, around[1:] + around[:1], strict=True))
        return changes <= 2 and not any(item and item.type == "door" for item in around)


def _reach(moves: Sequence[int], start: WorldPose, steps: Sequence[PathStep], goals: Collection[GridCell]) -> int:
    """How many of ``steps`` a command does: the same effects, the same place or, at the end, the same thing faced."""
    end = start
    for move in moves:
        end = _moved(end, move)
    for count in range(len(steps), len(moves) - 1, -1):
        same_place = steps[count - 1].stance == end or (count == len(steps) and cell_ahead(end) in goals)
        if same_place and _effects(moves) == _effects(step.move for step in steps[:count]):
            return count
    return 0


def _moved(stance: WorldPose, move: int) -> WorldPose:
    if move in (LEFT, RIGHT):
        return turn_pose(stance, move)
    return (*cell_ahead(stance), stance[2]) if move == FORWARD else stance


def _effects(moves: Iterable[int]) -> list[int]:
    return [move for move in moves if move not in (LEFT, RIGHT, FORWARD)]
