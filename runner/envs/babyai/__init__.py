"""BabyAI: grid worlds of the package ``minigrid``, each with a mission in words, played as text.

Texts, commands and quirks are those of AgentGym's ``agentenv-babyai/agentenv_babyai/environment.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from runner.envs.babyai.action_menu import GRAMMAR, NO_CHANGE, ActionMenu
from runner.envs.babyai.levels import N_TASKS, make_world
from runner.envs.babyai.observe import View, draw_level
from runner.envs.base import EmbeddedEnvironment, StepText
from runner.types import Cells

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from runner.envs.babyai.levels import World
    from runner.envs.babyai.oracle import Planner

__all__ = ["BabyAI"]

_COMPLETED = "\n The task is completed."
_FAILED = "\n The task has failed."
_LIMIT = "\n The step limit is reached."
_COMPAT_DONE_ABOVE = 0.5
"""Reward above which a step ends a ``compat`` episode, as on AgentGym's server (``agentenv_babyai/environment.py``)."""


class BabyAI(EmbeddedEnvironment):
    """The forty BabyAI levels: task ``i`` is level ``i % 40`` with seed ``i // 40``.

    Both modes have the commands, low-level steps and texts of AgentGym's server. ``strict``: the mission's reward is
    given once; a command stops, and the episode ends, with the mission or at minigrid's step limit; a failed mission is
    reported as such. ``compat`` (``agentenv_babyai/environment.py``): there is no step limit, a command goes on after
    the mission, every reply repeats the reward of the last low-level step, a failed mission is reported as completed,
    and a step with a reward of 0.5 or less does not end the episode.
    """

    name: ClassVar[str] = "BabyAI"
    packages: ClassVar[tuple[str, ...]] = ("minigrid",)
    grammar = GRAMMAR
    n_tasks = N_TASKS
    world: World
    """The underlying minigrid environment; set by ``reset``."""
    menu: ActionMenu
    """Commands available in the current view."""

    def admissible_actions(self) -> list[str] | None:
        return list(self.menu.texts) if self._running else None

    def oracle(self, seed: int | None) -> Planner:
        from runner.envs.babyai.oracle import Planner

        return Planner(self, seed)

    def render_cells(self) -> Cells:
        return draw_level(self.world, self._view)

    def _reset(self, task_index: int) -> str:
        self.world, observation = make_world(task_index, self.mode)
        self._reward, self._over, self._ending = 0.0, False, ""
        self._image: NDArray[np.uint8] = observation["image"]
        mission = self.world.mission.replace("then", "and").replace("after you", "and")
        return f"Your goal: {mission}\n{self._observe()}"

    def _step(self, text: str) -> StepText:
        command = text.strip().lower()
        if "check" in command:
            return self._reply(f"You can take the following actions: {', '.join(self.menu.texts)}")
        moves = self.menu.moves(command)
        if isinstance(moves, str):
            return self._reply(moves)
        if not moves:
            return self._reply(NO_CHANGE)
        for move in moves:  # until one leaves the view unchanged or, in strict mode, ends the episode
            before = self._image.tobytes()
            self._advance(move)
            if self._image.tobytes() == before or (self._over and self.mode == "strict"):
                break
        return self._observe(), self._reward, self._done()

    def _advance(self, move: int) -> None:
        observation, reward, terminated, truncated, _ = self.world.step(move)
        self._image = observation["image"]
        self._reward = float(reward)
        self.truncated = truncated and not terminated and self.mode == "strict"
        self._over = terminated or self.truncated
        self._ending = _LIMIT if self.truncated else ""
        if terminated:
            self._ending = _COMPLETED if self._reward or self.mode == "compat" else _FAILED

    def _observe(self) -> str:
        carried = self.world.carrying
        held = (carried.color, carried.type) if carried else None
        self._view = View(self._image.tolist(), held, self.world.agent_dir)
        self.menu = ActionMenu(self._view)
        return f"{self._view.text()}{self._ending}\n{self.menu}"

    def _reply(self, text: str) -> StepText:
        return f"{text}\n{self.menu}", self._reward, self._done()

    def _done(self) -> bool:
        return self._over if self.mode == "strict" else self._reward > _COMPAT_DONE_ABOVE
