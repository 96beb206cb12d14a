"""The SQLGym environment, ``SQLGym``, and its oracle, ``SQLGymOracle``."""

from __future__ import annotations

import re
from typing import ClassVar

import msgspec

from runner.envs.base import EmbeddedEnvironment, StepText
from runner.envs.command_grammar import CommandPattern, Grammar
from runner.envs.data_labels import DataLabel, data_folder
from runner.envs.sqlgym.sandbox import evaluate
from runner.envs.sqlgym.tasks import DatabaseSchema, Split, Task, catalogue
from runner.errors import EnvironmentFault
from runner.types import Action, InvalidAction, Mode

_GRAMMAR = Grammar(
    [
        CommandPattern(
            name="query",
            description="Answer the question with one SQLite query, which can only read. There is a single try.",
            template="{sql}",
            pattern=re.compile(r"(?P<sql>.*\S.*)", re.DOTALL),
            parameters={"sql": {"type": "string", "description": "One statement, as in SELECT name FROM members."}},
        )
    ],
    expected="one SQL query, by itself or in a ```sql block",
)
_FENCE = re.compile(r"```sql(?:ite)?\b", re.IGNORECASE)


class SQLGym(EmbeddedEnvironment):
    """One query per task; a result with the same set of rows as the gold query gives 1.

    The first observation describes the database and asks a question. The single step returns the query's rows or its
    error, cut to 100 characters, and ends the episode. Each query runs read-only in its own process, with limits on
    time, memory and rows.

    The databases are those of ``data/sqlgym``, or BIRD if ``AGENTENV_SQLGYM_BIRD_PATH`` names its folder.

    ``compat`` keeps the quirks of AgentGym's ``agentenv-sqlgym/agentenv_sqlgym/environment.py``: names are shown in
    words instead of as identifiers, the columns of foreign keys are off by one, steps after the end of the episode are
    executed, and a query gets 0 if the gold query has an error. In strict mode that is an error of the task.
    """

    name: ClassVar[str] = "SQLGym"
    open_files: ClassVar[int] = 8
    """Descriptors of the pipes to a query's process while it starts; see ``runner.batch.slots``."""
    data_label = DataLabel("sqlgym")
    grammar = _GRAMMAR
    steps_after_end = True

    def __init__(self, *, mode: Mode = "strict") -> None:
        super().__init__(mode=mode)
        self._catalogue = catalogue(data_folder(self.name))
        self.n_tasks = len(self._catalogue)
        self._split: Split
        self._task: Task
        self._schema: DatabaseSchema

    def parse(self, text: str) -> Action | InvalidAction:
        """Parse a query: the last ```` ```sql ```` block of ``text``, or the whole text if it has no such block."""
        return msgspec.structs.replace(super().parse(_query_in(text)), text=text)

    def admissible_actions(self) -> list[str]:
        """Return one row-count query per table, a small selection for agents that choose from a list."""
        names = [name.replace('"', '""') for name in self._schema.table_names_original]
        return [f'SELECT count(*) FROM "{name}"' for name in names]

    def oracle(self, seed: int | None) -> SQLGymOracle:
        """Return an oracle with the gold query; ``seed`` has no effect."""
        return SQLGymOracle(self._task.gold)

    def _reset(self, task_index: int) -> str:
        self._split, self._task = self._catalogue[task_index]
        self._schema = self._split.schema(self._task)
        return f"{self._schema.described(self.mode)}\n\n{self._task.question}"

    def _step(self, text: str) -> StepText:
        verdict = evaluate(self._split.database(self._task), _query_in(text), self._task.gold)
        if verdict.solved is None and self.mode == "strict":
            raise EnvironmentFault(
                f"SQLGym's task {self.task_index} cannot be scored, because its gold query has an error. "
                "Leave out this task, or use --compat, which scores it 0"
            )
        return verdict.observation, float(verdict.solved or False), True


def _query_in(text: str) -> str:
    fences = list(_FENCE.finditer(text))
    return text[fences[-1].end() :].partition("```")[0] if fences else text


class SQLGymOracle:
    """Oracle that returns the gold query of the task.

    Args:
        gold: the gold query.
    """

    def __init__(self, gold: str) -> None:
        self._gold = gold

    def next_action(self) -> str:
        """Return the gold query; an episode has only one step."""
        return self._gold
