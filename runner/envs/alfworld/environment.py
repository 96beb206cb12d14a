"""The ALFWorld environment."""

from __future__ import annotations

import json
from typing import ClassVar

from runner.envs.alfworld.commands import GRAMMARS, STRICT, as_agentgym_commands, as_agentgym_text
from runner.envs.alfworld.engine import NOTHING_HAPPENS
from runner.envs.alfworld.oracle import Planner, make_planner
from runner.envs.alfworld.tasks import Game, RequiredPackages, catalogue, data_folder
from runner.envs.base import EmbeddedEnvironment, StepText
from runner.envs.data_labels import DataLabel
from runner.envs.grammar import Grammar
from runner.types import Action, Mode

MAX_STEPS = 50


class ALFWorld(EmbeddedEnvironment):
    """Find things in a room, heat, cool, clean or light them, put them somewhere; that gives 1 and ends the episode.

    Each observation ends with a list of what can be done now; anything else is answered with ``Nothing happens.``.
    After 50 steps the episode is over. The rules and texts are those of ALFWorld 0.4.2, on rooms of our own (see
    ``data/alfworld/LICENSE``), so no result here is a score on ALFWorld; where ``ALFWORLD_DATA`` names its data, those
    games are played by its own engine, which the extra ``alfworld`` installs.

    ``compat`` words things as AgentGym's server does, whose ALFWorld is older: ``put … in/on …`` instead of ``move … to
    …``, no ``help``, no "You arrive at …" and no empty lines. Either wording is understood in both modes.
    """

    name: ClassVar[str] = "ALFWorld"
    data_label = DataLabel("alfworld")
    packages = RequiredPackages()

    def __init__(self, *, mode: Mode = "strict") -> None:
        super().__init__(mode=mode)
        self._catalogue = catalogue(data_folder())
        self.n_tasks = self._catalogue.n_tasks
        self.observation = ""
        """The newest observation without the list of what can be done."""
        self._steps = 0
        self._game: Game

    @property
    def grammar(self) -> Grammar:
        """The commands, in the words of the mode."""
        return GRAMMARS[self.mode]

    @property
    def task_type(self) -> str:
        """What AgentGym's server tells of a task: its kind and where it comes from."""
        return self._catalogue.name(self.task_index)

    def admissible_actions(self) -> list[str]:
        """What can be done now."""
        return self._game.admissible if self.mode == "strict" else as_agentgym_commands(self._game.admissible)

    def oracle(self, seed: int | None) -> Planner:
        """A planner for the running task; there is nothing random in it."""
        return make_planner(self._game)

    def _reset(self, task_index: int) -> str:
        self._game = self._catalogue.start(task_index)
        self._steps = 0
        return self._told(self._game.opening)

    def _step(self, text: str) -> StepText:
        self._steps += 1
        told, won = self._told(self._played(text)), self._game.won
        self._truncated = self._steps >= MAX_STEPS and not won
        return told, float(won), won or self._truncated

    def _played(self, text: str) -> str:
        parsed = self.parse(text)
        command = STRICT.render(parsed.tool_calls[0]) if isinstance(parsed, Action) else parsed
        return self._game.act(command) if isinstance(command, str) else NOTHING_HAPPENS

    def _told(self, text: str) -> str:
        self.observation = text if self.mode == "strict" else as_agentgym_text(text)
        return f"{self.observation}\nAvailable actions: {json.dumps(self.admissible_actions())}"
