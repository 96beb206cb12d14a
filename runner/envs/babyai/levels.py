"""The forty BabyAI levels in AgentGym's order, and the making of their worlds without a word on stdout."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from minigrid.envs.babyai.core.verifier import Instr
    from numpy.typing import NDArray


class Item(Protocol):
    """Something that lies or stands in a cell; doors also have ``is_open`` and ``is_locked``."""

    type: str
    color: str
    contains: Item | None
    is_open: bool
    is_locked: bool


class Grid(Protocol):
    """The cells of a world; ``grid`` is the rows, one after the other."""

    width: int
    grid: list[Item | None]


class World(Protocol):
    """What is used of a minigrid environment, whose own methods are not annotated."""

    mission: str
    instrs: Instr
    grid: Grid
    agent_pos: tuple[int, int]
    agent_dir: int
    carrying: Item | None
    step_count: int
    max_steps: int

    def reset(self, *, seed: int) -> tuple[Mapping[str, NDArray[np.uint8]], Mapping[str, object]]:
        """Draw the level for a seed."""

    def step(self, action: int) -> tuple[Mapping[str, NDArray[np.uint8]], float, bool, bool, Mapping[str, object]]:
        """Take one low-level step: observation, reward, terminated, truncated, info."""


LEVELS = tuple(
    """
    GoToRedBallGrey GoToRedBall GoToRedBallNoDists GoToObjS6 GoToLocalS8N7 GoToObjMazeS7 GoToImpUnlock GoToSeqS5R2
    GoToRedBlueBall GoToDoor GoToObjDoor Open OpenRedDoor OpenDoorLoc OpenRedBlueDoorsDebug OpenDoorsOrderN4Debug Pickup
    UnblockPickup PickupLoc PickupDistDebug PickupAbove PutNextLocalS6N4 PutNextS7N4Carrying Unlock UnlockLocalDist
    KeyInBox UnlockPickupDist BlockedUnlockPickup UnlockToUnlock ActionObjDoor FindObjS7 KeyCorridorS6R3 OneRoomS20
    MoveTwoAcrossS8N9 SynthS5R2 SynthLoc SynthSeq MiniBossLevel BossLevel BossLevelNoUnlock
    """.split()  # noqa: SIM905 - forty quoted lines would read worse
)
N_TASKS = len(LEVELS) * 2**32
"""AgentGym takes any index; 2**32 seeds per level are more than an episode counter reaches."""


def make_world(task_index: int) -> tuple[World, Mapping[str, NDArray[np.uint8]]]:
    """A freshly reset world and its first observation: the level is ``task_index % 40``, the seed ``task_index // 40``.

    The class is built as ``gymnasium.make`` builds it, without its checking wrappers, which cost time and warn.
    """
    seed, level = divmod(task_index, len(LEVELS))
    entry_point, kwargs = _registered(LEVELS[level])
    module, name = entry_point.split(":")
    world: World = getattr(importlib.import_module(module), name)(**kwargs)
    observation, _ = world.reset(seed=seed)
    return world, observation


@cache
def _registered(level: str) -> tuple[str, Mapping[str, Any]]:
    """Entry point and arguments of a level; a level whose bugs were fixed is registered as v1 instead of v0."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    import gymnasium
    import minigrid.core.mission
    import minigrid.envs.babyai.core.roomgrid_level

    for module in (minigrid.core.mission, minigrid.envs.babyai.core.roomgrid_level):
        _silence(module)
    registry = gymnasium.registry
    spec = registry.get(f"BabyAI-{level}-v0") or registry[f"BabyAI-{level}-v1"]
    return str(spec.entry_point), spec.kwargs


def _silence(module: ModuleType) -> None:
    """Shadow ``print`` in one module: redirecting stdout would take it from the other threads of the process too."""
    vars(module)["print"] = _discard


def _discard(*_values: object, **_options: object) -> None:
    """Print nothing."""
