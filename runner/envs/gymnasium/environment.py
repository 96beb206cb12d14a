"""One id of Gymnasium as a text environment."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from runner.envs.base import EmbeddedEnvironment, StepText
from runner.envs.data_labels import DataLabel
from runner.envs.gymnasium.codec import draw_text, load_codec
from runner.types import Cells, Mode, Trajectory

MAX_DRAWING_CHARS = 4000
"""Maximum length of a text rendering that is shown, in characters."""

_COLOR_CODES = re.compile(r"\x1b\[[0-9;]*m")


class GymnasiumEnvironment(EmbeddedEnvironment):
    """Any Gymnasium id that has a text codec (``runner.envs.gymnasium.codec``); task ``i`` is ``env.reset(seed=i)``.

    An observation lists the numbers of the observation space, with names where they are known, followed by the
    environment's text rendering if it has one. An action is one of the names or numbers that the first observation
    lists; an invalid text changes nothing. Gymnasium's step limits truncate the episode.

    Args:
        mode: has no effect, since AgentGym has no server for these environments.
    """

    n_tasks = 1_000_000
    data_label = DataLabel("gymnasium")
    packages: ClassVar[tuple[str, ...]] = ("gymnasium",)

    def __init__(self, *, id: str, mode: Mode = "strict") -> None:
        super().__init__(mode=mode)
        self._codec = load_codec(id)
        self.grammar = self._codec.grammar
        self._actions = {name: self._codec.first_action + index for index, name in enumerate(self._codec.info.actions)}
        self._environment: Any = None
        self._drawing = ""

    @staticmethod
    def check(id: str) -> None:
        load_codec(id)

    @property
    def name(self) -> str:  # type: ignore[override]  # one class plays every id
        return self._codec.id

    def admissible_actions(self) -> list[str]:
        return list(self._actions)

    def success(self, trajectory: Trajectory) -> bool:
        """The rule is the ``SuccessRule`` of the text codec."""
        if self._codec.info.goal == "reward":
            return super().success(trajectory)
        ended = bool(trajectory.timesteps) and trajectory.timesteps[-1].done
        return ended and self.truncated == (self._codec.info.goal == "limit")

    def cleanup(self) -> None:
        """A reset creates a new Gymnasium instance."""
        super().cleanup()
        if self._environment is not None:
            self._environment.close()
            self._environment = None

    def render_cells(self) -> Cells | None:
        return draw_text(self._drawing) if self._drawing else None

    def _reset(self, task_index: int) -> str:
        if self._environment is None:
            self._environment = self._codec.make()
        observation, _ = self._environment.reset(seed=task_index)
        info = self._codec.info
        return f"{info.task}\nActions: {', '.join(info.actions)}.\n{self._describe(observation)}"

    def _step(self, text: str) -> StepText:
        action = self._actions.get(text.strip())
        if action is None:
            return f"Invalid action. Expected {self.grammar.expected}.", 0.0, False
        observation, reward, terminated, truncated, _ = self._environment.step(action)
        self._truncated = bool(truncated) and not terminated
        return self._describe(observation), float(reward), bool(terminated or truncated)

    def _describe(self, observation: object) -> str:
        text = self._codec.describe(observation)
        if not self._codec.has_text_rendering:
            return text
        self._drawing = str(self._environment.render())
        drawing = _COLOR_CODES.sub("", self._drawing)
        return f"{text}\n{drawing.strip()[:MAX_DRAWING_CHARS]}"
