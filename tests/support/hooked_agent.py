"""An agent that calls a function of the test before each of its actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from runner.types import Action, Chat, EpisodeInfo, ToolSchema


def _ignore(task_index: int, step: int) -> None:
    pass


class HookedAgent:
    """Moves through Maze in a fixed order; ``before_act`` may do anything on the worker's thread."""

    before_act: ClassVar[Callable[[int, int], None]] = staticmethod(_ignore)

    def __init__(self) -> None:
        self.tracer: Any = None
        self._step = 0
        self._task_index = 0

    def enter(self, episode: EpisodeInfo) -> None:
        self._task_index = episode.header.task_index

    def init_after_reset(self) -> None:
        self._step = 0

    def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> tuple[list[Chat], Action]:
        type(self).before_act(self._task_index, self._step)
        direction = ("up", "right", "down", "left")[self._step % 4]
        self._step += 1
        return [], Action(text=f"move {direction}")
