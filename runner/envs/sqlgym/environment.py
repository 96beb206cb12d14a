"""The SQLGym environment."""

from __future__ import annotations

import re
from typing import ClassVar

import msgspec

from runner.envs.base import EmbeddedEnvironment, StepText
from runner.envs.data_labels import DataLabel
from runner.envs.grammar import CommandPattern, Grammar
from runner.envs.sqlgym.sandbox import evaluate
from runner.envs.sqlgym.tasks import DatabaseSchema, Split, Task, bird_folder, catalogue
from runner.types import Action, InvalidAction, Mode, StepResult

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
    """One query per task; the rows that were asked for, in any order and any number of times, give 1.

    The first observation describes the database and asks a question. The query's rows, or what is wrong with it, are
    the answer, cut at 100 characters, and the episode is over. A query runs read-only in a process of its own, bounded
    in time, memory and rows.

    The databases are those of ``data/sqlgym``, or BIRD where ``AGENTENV_SQLGYM_BIRD_PATH`` names it.

    ``compat`` keeps what AgentGym's server does otherwise: names are shown in words rather than as a query needs them,
    the columns of foreign keys are off by one, and the task can be stepped on after its end.
    """

    name: ClassVar[str] = "SQLGym"
    data_label = DataLabel("sqlgym")

    def __init__(self, *, mode: Mode = "strict") -> None:
        super().__init__(mode=mode)
        self._catalogue = catalogue(bird_folder())
        self.n_tasks = self._catalogue.n_tasks
        self._split: Split
        self._task: Task
        self._schema: DatabaseSchema

    @property
    def grammar(self) -> Grammar:
        """One command: a query."""
        return _GRAMMAR

    def step(self, action: Action) -> StepResult:
        """Take one action; see :meth:`EmbeddedEnvironment.step`."""
        result = super().step(action)
        self._running = self._running or self.mode == "compat"
        return result

    def parse(self, text: str) -> Action | InvalidAction:
        """The query that ``text`` holds: its last ```` ```sql ```` block, else all of it."""
        return msgspec.structs.replace(super().parse(_query_in(text)), text=text)

    def admissible_actions(self) -> list[str]:
        """How many rows each table has: a few of all queries, for agents that pick from a list."""
        names = [name.replace('"', '""') for name in self._schema.table_names_original]
        return [f'SELECT count(*) FROM "{name}"' for name in names]

    def oracle(self, seed: int | None) -> SQLGymOracle:
        """The planner that knows the gold query; there is nothing random in it."""
        return SQLGymOracle(self._task.gold)

    def _reset(self, task_index: int) -> str:
        self._split, self._task = self._catalogue[task_index]
        self._schema = self._split.schema(self._task)
        return f"{self._schema.described(self.mode)}\n\n{self._task.question}"

    def _step(self, text: str) -> StepText:
        verdict = evaluate(self._split.database(self._task), _query_in(text), self._task.gold)
        return verdict.observation, float(verdict.solved), True


def _query_in(text: str) -> str:
    fences = list(_FENCE.finditer(text))
    return text[fences[-1].end() :].partition("```")[0] if fences else text


class SQLGymOracle:
    """Answers with the query that the task was made with.

    Args:
        gold: that query.
    """

    def __init__(self, gold: str) -> None:
        self._gold = gold

    def next_action(self) -> str:
        """The gold query; there is only one step."""
        return self._gold
