"""The ALFWorld environment: ``ALFWorld``."""

from __future__ import annotations

import json
from typing import ClassVar

from runner.envs.alfworld.commands import GRAMMARS, STRICT, as_agentgym_commands, as_agentgym_text
from runner.envs.alfworld.engine import NOTHING_HAPPENS
from runner.envs.alfworld.oracle import make_planner
from runner.envs.alfworld.tasks import Game, RequiredPackages, catalogue
from runner.envs.base import EmbeddedEnvironment, StepText
from runner.envs.data_labels import DataLabel, data_folder
from runner.types import Action, Mode, OraclePlanner

MAX_STEPS = 50


class ALFWorld(EmbeddedEnvironment):
    """Household tasks in a room: find objects, heat, cool, clean or light them, put them somewhere.

    Reaching the goal gives 1 and ends the episode; 50 steps end it without a reward. Each observation ends with the
    list of admissible actions; any other action returns ``Nothing happens.``. The rules and texts are those of ALFWorld
    0.4.2. The shipped rooms are invented (see ``data/alfworld/LICENSE``), so results are not ALFWorld scores. If the
    environment variable ``ALFWORLD_DATA`` is set, the tasks are ALFWorld's own games, played by ALFWorld's own engine,
    which the extra ``alfworld`` installs.

    ``compat`` uses the wording of AgentGym's server (``agentenv-alfworld/agentenv_alfworld/env_wrapper.py``), whose
    ALFWorld is 0.3.3: ``put … in/on …`` instead of ``move … to …``, no ``help``, no "You arrive at …" and no empty
    lines. Both modes accept commands in either wording.
    """

    name: ClassVar[str] = "ALFWorld"
    blocks_briefly = True
    data_label = DataLabel("alfworld")
    packages = RequiredPackages()

    def __init__(self, *, mode: Mode = "strict") -> None:
        super().__init__(mode=mode)
        self.grammar = GRAMMARS[mode]
        self._catalogue = catalogue(data_folder(self.name))
        self.n_tasks = self._catalogue.n_tasks
        self.observation = ""
        """Latest observation without the list of admissible actions."""
        self._steps = 0
        self._game: Game

    @property
    def task_type(self) -> str:
        """Name of the task, made of its kind and its room or game; AgentGym's server returns it as ``task_type``."""
        return self._catalogue.name(self.task_index)

    def admissible_actions(self) -> list[str]:
        """Return the actions that would have an effect in the current state."""
        return self._game.admissible if self.mode == "strict" else as_agentgym_commands(self._game.admissible)

    def oracle(self, seed: int | None) -> OraclePlanner:
        """Return a planner for the running task; ``seed`` has no effect."""
        return make_planner(self._game)

    def _reset(self, task_index: int) -> str:
        self._game = self._catalogue.start(task_index)
        self._steps = 0
        return self._observe(self._game.opening)

    def _step(self, text: str) -> StepText:
        self._steps += 1
        observation, won = self._observe(self._execute(text)), self._game.won
        self._truncated = self._steps >= MAX_STEPS and not won
        return observation, float(won), won or self._truncated

    def _execute(self, text: str) -> str:
        parsed = self.parse(text)
        command = STRICT.render(parsed.tool_calls[0]) if isinstance(parsed, Action) else parsed
        return self._game.act(command) if isinstance(command, str) else NOTHING_HAPPENS

    def _observe(self, text: str) -> str:
        self.observation = text if self.mode == "strict" else as_agentgym_text(text)
        return f"{self.observation}\nAvailable actions: {json.dumps(self.admissible_actions())}"
