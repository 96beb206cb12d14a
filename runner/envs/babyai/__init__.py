"""BabyAI: grid worlds with missions in words, seen and acted on as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from runner.envs.babyai.actions import NO_CHANGE, ActionMenu
from runner.envs.babyai.commands import GRAMMAR
from runner.envs.babyai.levels import N_TASKS, make_world
from runner.envs.babyai.observe import View
from runner.envs.base import EmbeddedEnvironment, StepText
from runner.envs.grammar import Grammar

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
"""AgentGym's servers take back ``done`` when the reward is not above this."""


class BabyAI(EmbeddedEnvironment):
    """The forty BabyAI levels: task ``i`` is level ``i % 40`` with the seed ``i // 40``.

    Strict: the mission's reward comes once, the episode ends with the mission or with minigrid's step limit. Compat:
    there is no step limit, every reply repeats the reward of the last low-level step, even where nothing was done, and
    an episode whose reward is not above 0.5 goes on.
    """

    name: ClassVar[str] = "BabyAI"
    packages: ClassVar[tuple[str, ...]] = ("minigrid",)
    n_tasks = N_TASKS
    world: World
    """The minigrid environment underneath, from the first ``reset`` on."""
    menu: ActionMenu
    """What can be done in the present view."""

    @property
    def grammar(self) -> Grammar:
        """The commands of BabyAI, the same for all levels."""
        return GRAMMAR

    def admissible_actions(self) -> list[str] | None:
        """The actions that the observation lists."""
        return list(self.menu.texts) if self._running else None

    def oracle(self, seed: int | None) -> Planner:
        """A planner over this instance, which reads the whole grid; ``seed`` feeds its last resort, exploring."""
        from runner.envs.babyai.oracle import Planner

        return Planner(self, seed)

    def _reset(self, task_index: int) -> str:
        self.world, observation = make_world(task_index)
        self._reward, self._over, self._ending = 0.0, False, ""
        self._image: NDArray[np.uint8] = observation["image"]
        mission = self.world.mission.replace("then", "and").replace("after you", "and")
        return f"Your goal: {mission}\n{self._look()}"

    def _step(self, text: str) -> StepText:
        command = text.strip().lower()
        if "check" in command:
            return self._reply(f"You can take the following actions: {', '.join(self.menu.texts)}")
        moves = self.menu.moves(command)
        if isinstance(moves, str):
            return self._reply(moves)
        if not self._play(moves):
            return self._reply(NO_CHANGE)
        return self._look(), self._reward, self._done()

    def _play(self, moves: list[int]) -> bool:
        """Take low-level steps until one of them ends the episode or changes nothing; whether any changed something."""
        changed = False
        for move in moves:
            before = self._situation()
            self._advance(move)
            if self._over:
                return True
            if self._situation() == before:
                break
            changed = True
        return changed

    def _advance(self, move: int) -> None:
        observation, reward, terminated, truncated, _ = self.world.step(move)
        self._image = observation["image"]
        self._reward = float(reward)
        self._truncated = truncated and not terminated and self.mode == "strict"
        self._over = terminated or self._truncated
        self._ending = _LIMIT if self._truncated else ""
        if terminated:
            self._ending = _COMPLETED if self._reward else _FAILED

    def _situation(self) -> tuple[object, ...]:
        """What has to differ after a step that did something; AgentGym's servers compare the picture only."""
        image = self._image.tobytes()
        return (image,) if self.mode == "compat" else (image, self.world.agent_pos, self.world.agent_dir)

    def _look(self) -> str:
        held = self.world.carrying
        view = View(self._image.tolist(), (held.color, held.type) if held else None)
        self.menu = ActionMenu(view)
        return f"{view.text()}{self._ending}\n{self.menu}"

    def _reply(self, text: str) -> StepText:
        return f"{text}\n{self.menu}", self._reward, self._done()

    def _done(self) -> bool:
        return self._over if self.mode == "strict" else self._reward > _COMPAT_DONE_ABOVE
