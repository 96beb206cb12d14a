"""One id of Gymnasium as a text environment."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from runner.envs.base import EmbeddedEnvironment, StepText
from runner.envs.data_labels import DataLabel
from runner.envs.grammar import Grammar
from runner.envs.gymnasium.codec import load_codec
from runner.types import Mode, Trajectory

MAX_DRAWING_CHARS = 4000
"""Characters of what an environment draws of itself."""

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class GymnasiumEnvironment(EmbeddedEnvironment):
    """Any id with a text codec (``runner.envs.gymnasium.codec``); task ``i`` is ``env.reset(seed=i)``.

    An observation is the numbers of the observation space in words and, where the environment can draw itself in
    text, that drawing. An action is one of the names, or of the numbers, that the first observation lists; anything
    else is answered with them and changes nothing. Gymnasium's own step limits truncate.

    Args:
        id: as ``gymnasium.make`` takes it, e.g. ``FrozenLake-v1``.
        mode: there is no server of AgentGym's to be like, so both modes play the same.
    """

    n_tasks = 1_000_000
    data_label = DataLabel("gymnasium")
    packages: ClassVar[tuple[str, ...]] = ("gymnasium",)

    def __init__(self, *, id: str, mode: Mode = "strict") -> None:
        super().__init__(mode=mode)
        self._codec = load_codec(id)
        self._actions = {name: self._codec.first_action + index for index, name in enumerate(self._codec.known.actions)}
        self._environment: Any = None

    @staticmethod
    def check(id: str) -> None:
        """Raise a ``ConfigError`` for an id that cannot be played."""
        load_codec(id)

    @property
    def name(self) -> str:  # type: ignore[override]  # one class plays every id
        """The id."""
        return self._codec.id

    @property
    def grammar(self) -> Grammar:
        """One command: an action's name."""
        return self._codec.grammar

    def admissible_actions(self) -> list[str]:
        """All actions, everywhere."""
        return list(self._actions)

    def success(self, trajectory: Trajectory) -> bool:
        """As the codec says, see ``Goal``."""
        if self._codec.known.goal == "reward":
            return super().success(trajectory)
        ended = bool(trajectory.timesteps) and trajectory.timesteps[-1].done
        return ended and self.truncated == (self._codec.known.goal == "limit")

    def cleanup(self) -> None:
        """Close Gymnasium's instance; a reset makes another."""
        super().cleanup()
        if self._environment is not None:
            self._environment.close()
            self._environment = None

    def _reset(self, task_index: int) -> str:
        if self._environment is None:
            self._environment = self._codec.make()
        observation, _ = self._environment.reset(seed=task_index)
        known = self._codec.known
        return f"{known.task}\nActions: {', '.join(known.actions)}.\n{self._shown(observation)}"

    def _step(self, text: str) -> StepText:
        action = self._actions.get(text.strip())
        if action is None:
            return f"Invalid action. Expected {self.grammar.expected}.", 0.0, False
        observation, reward, terminated, truncated, _ = self._environment.step(action)
        self._truncated = bool(truncated) and not terminated
        return self._shown(observation), float(reward), bool(terminated or truncated)

    def _shown(self, observation: object) -> str:
        told = self._codec.told(observation)
        if not self._codec.drawn:
            return told
        drawing = _COLOURS.sub("", str(self._environment.render()))
        return f"{told}\n{drawing.strip()[:MAX_DRAWING_CHARS]}"
