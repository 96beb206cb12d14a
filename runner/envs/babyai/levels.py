"""The forty BabyAI levels in AgentGym's order, and the creation of their worlds without output on stdout.

Order and seeds are those of AgentGym's ``agentenv-babyai/agentenv_babyai/environment.py``. ``World``, ``Grid`` and
``Item`` declare the parts of minigrid's classes that this package uses.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from runner.types import Mode

if TYPE_CHECKING:
    import numpy as np
    from minigrid.envs.babyai.core.verifier import Instr
    from numpy.typing import NDArray


class Item(Protocol):
    """An object in a cell of the grid; only doors have ``is_open`` and ``is_locked``."""

    type: str
    color: str
    contains: Item | None
    is_open: bool
    is_locked: bool


class Grid(Protocol):
    """Cells of a world; ``grid`` lists the objects row by row, with None for an empty cell."""

    width: int
    grid: list[Item | None]


class World(Protocol):
    """The part of a minigrid environment that this package uses, declared because minigrid has no type annotations."""

    mission: str
    instrs: Instr
    grid: Grid
    agent_pos: tuple[int, int]
    agent_dir: int
    carrying: Item | None
    step_count: int
    max_steps: int

    def reset(self, *, seed: int) -> tuple[Mapping[str, NDArray[np.uint8]], Mapping[str, object]]: ...

    def step(self, action: int) -> tuple[Mapping[str, NDArray[np.uint8]], float, bool, bool, Mapping[str, object]]: ...


LEVELS = tuple(
    """
    GoToRedBallGrey GoToRedBall GoToRedBallNoDists GoToObjS6 GoToLocalS8N7 GoToObjMazeS7 GoToImpUnlock GoToSeqS5R2
    GoToRedBlueBall GoToDoor GoToObjDoor Open OpenRedDoor OpenDoorLoc OpenRedBlueDoorsDebug OpenDoorsOrderN4Debug Pickup
    UnblockPickup PickupLoc PickupDistDebug PickupAbove PutNextLocalS6N4 PutNextS7N4Carrying Unlock UnlockLocalDist
    KeyInBox UnlockPickupDist BlockedUnlockPickup UnlockToUnlock ActionObjDoor FindObjS7 KeyCorridorS6R3 OneRoomS20
    MoveTwoAcrossS8N9 SynthS5R2 SynthLoc SynthSeq MiniBossLevel BossLevel BossLevelNoUnlock
    """.split()  # noqa: SIM905 - forty quoted lines would read worse
)
_importing = threading.Lock()

N_TASKS = len(LEVELS) * 2**32
"""Number of tasks. AgentGym accepts any index; 2**32 seeds per level are more than any batch uses."""
_CHANGED_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {"GoToObjS6": {"room_size": 4}}
"""Arguments with which minigrid 2.3.1 registers a level, where later versions register it with others."""


def make_world(task_index: int, mode: Mode = "strict") -> tuple[World, Mapping[str, NDArray[np.uint8]]]:
    """Create and reset a world; return the world and its first observation.

    The level is ``task_index % 40``, the seed ``task_index // 40``. The level's class is instantiated without the
    checking wrappers of ``gymnasium.make``, which are slow and print warnings. In compat mode worlds are drawn as by
    minigrid 2.3.1, which AgentGym's server uses.
    """
    seed, level = divmod(task_index, len(LEVELS))
    entry_point, kwargs = _registered(LEVELS[level])
    module, name = entry_point.split(":")
    kind = getattr(importlib.import_module(module), name)
    if mode == "compat":
        kind, kwargs = _as_in_2_3_1(kind), {**kwargs, **_CHANGED_ARGUMENTS.get(LEVELS[level], {})}
    world: World = kind(**kwargs)
    observation, _ = world.reset(seed=seed)
    return world, observation


@cache
def _as_in_2_3_1(kind: type[Any]) -> type[Any]:
    """Return a class of levels with a fault of minigrid 2.3.1: a mission keeps the locked room of a rejected draft.

    The rejected draft's room is no longer in the grid, so that objects in the new room may be chosen.
    """
    from minigrid.envs.babyai.core.levelgen import LevelGen

    return type(kind.__name__, (kind,), {"locked_room": _KeptRoom()}) if issubclass(kind, LevelGen) else kind


class _KeptRoom:
    def __get__(self, level: Any, owner: type[Any]) -> Any:  # noqa: ANN401 - minigrid has no types
        return vars(level).get("locked_room")

    def __set__(self, level: Any, room: Any) -> None:  # noqa: ANN401
        if room is not None:
            vars(level)["locked_room"] = room


@cache
def _registered(level: str) -> tuple[str, Mapping[str, Any]]:
    """Return the entry point and arguments of a level, registered as v0 or, if minigrid fixed a bug in it, as v1."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    with _without_pygame():
        import gymnasium
        import minigrid.core.mission
        import minigrid.envs.babyai.core.roomgrid_level

    for module in (minigrid.core.mission, minigrid.envs.babyai.core.roomgrid_level):
        # In this module only: redirecting stdout would affect all threads of the process.
        vars(module)["print"] = lambda *_values, **_options: None
    registry = gymnasium.registry
    spec = registry.get(f"BabyAI-{level}-v0") or registry[f"BabyAI-{level}-v1"]
    return str(spec.entry_point), spec.kwargs


@contextmanager
def _without_pygame() -> Iterator[None]:
    """Let minigrid be imported where pygame is not installed: it imports pygame, but uses it only to draw worlds.

    The lock leaves pygame-ce out because of its licence, the LGPL. The placeholders are removed after the import, so
    that other environments find out whether pygame is installed.
    """
    with _importing:
        names = () if importlib.util.find_spec("pygame") else ("pygame", "pygame.freetype")
        sys.modules.update({name: ModuleType(name) for name in names})
        try:
            yield
        finally:
            for name in names:
                sys.modules.pop(name, None)
