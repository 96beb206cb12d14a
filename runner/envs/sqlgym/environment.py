"""The SQLGym environment, ``SQLGym``, its oracle, ``SQLGymOracle``, and queries in worker processes (``worker.py``)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import ClassVar, NamedTuple

import msgspec

from runner.envs.base import EmbeddedEnvironment, StepText
from runner.envs.command_grammar import CommandPattern, Grammar
from runner.envs.data_labels import DataLabel, data_folder
from runner.envs.sqlgym import worker
from runner.envs.sqlgym.tasks import (
    Database,
    DatabaseSchema,
    QueryResult,
    Split,
    Task,
    catalogue,
    draw_database,
)
from runner.errors import EnvironmentFault
from runner.types import Action, Cells, InvalidAction, Mode

ENGINE_FAILED = "The query was stopped because the database engine failed or ran out of memory."
_WORKER_TIMEOUT_S = worker.ALARM_S + worker.GOLD_LIMIT_S + worker.ALARM_S + 20
_worker_slots = threading.BoundedSemaphore(2 * (os.cpu_count() or 1))
"""Limit of concurrent queries, since each query may keep a CPU busy until its time limit."""
_COMMAND = (sys.executable, "-I", "-S", str(Path(worker.__file__)))


class Verdict(NamedTuple):
    """Result of a query: the text for the agent, and whether the query's rows equal those of the gold query.

    ``solved`` is None if the query works and the gold query has an error.
    """

    observation: str
    solved: bool | None


def evaluate(database: Database, sql: str, gold: str) -> Verdict:
    """Run an untrusted query and compare its rows with those of the gold query.

    Raises:
        EnvironmentFault: if the database cannot be opened or the gold query takes too long; the message hides the gold
            query.
    """
    request = {"sql": sql, "gold": gold, **msgspec.structs.asdict(database)}
    done = _run(json.dumps(request).encode())  # unlike msgspec, json accepts lone surrogates
    match [json.loads(line) for line in done.stdout.splitlines()]:
        case ["ready", str() as observation, bool() as solved] | [
            "ready",
            str() as observation,
            "known",
            bool() as solved,
        ]:
            return Verdict(observation, solved)
        case ["ready", str() as observation, "known"]:
            return Verdict(observation, solved=False)
        case ["ready", str() as observation, "failed"]:
            return Verdict(observation, solved=None)
        case ["ready"]:
            timed_out = done.returncode == -signal.SIGALRM
            return Verdict(worker.STOPPED if timed_out else ENGINE_FAILED, solved=False)
        case ["ready", str()]:
            limit = f"{worker.GOLD_LIMIT_S:.0f} s"
            raise EnvironmentFault(f"The gold query of this task took longer than {limit} or ran out of memory")
    raise EnvironmentFault(f"SQLGym could not open the database of this task: {_last_line(done.stderr)}")


def _run(request: bytes) -> subprocess.CompletedProcess[bytes]:
    # in its own process group, so that Ctrl-C does not reach it; its alarm ends it
    try:
        with _worker_slots:
            return subprocess.run(
                _COMMAND, input=request, capture_output=True, timeout=_WORKER_TIMEOUT_S, check=False, process_group=0
            )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise EnvironmentFault(f"SQLGym could not run a query: {type(exc).__name__}") from exc


def _last_line(stderr: bytes) -> str:
    lines = stderr.decode("utf-8", "replace").split("\n")
    return next((line[:200] for line in reversed(lines) if line), "no error output")


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
        self._result: QueryResult | None = None

    def parse(self, text: str) -> Action | InvalidAction:
        """Parse a query: the last ```` ```sql ```` block of ``text``, or the whole text if it has no such block."""
        return msgspec.structs.replace(super().parse(_query_in(text)), text=text)

    def admissible_actions(self) -> list[str]:
        """Return one row-count query per table, a small selection for agents that choose from a list."""
        names = [name.replace('"', '""') for name in self._schema.table_names_original]
        return [f'SELECT count(*) FROM "{name}"' for name in names]

    def oracle(self, seed: int | None) -> SQLGymOracle:
        return SQLGymOracle(self._task.gold)

    def render_cells(self) -> Cells:
        return draw_database(self._schema, self._task.question, self._result)

    def _reset(self, task_index: int) -> str:
        self._split, self._task = self._catalogue[task_index]
        self._schema = self._split.schema(self._task)
        self._result = None
        return f"{self._schema.described(self.mode)}\n\n{self._task.question}"

    def _step(self, text: str) -> StepText:
        sql = _query_in(text)
        verdict = evaluate(self._split.database(self._task), sql, self._task.gold)
        self._result = QueryResult(sql, verdict.observation, bool(verdict.solved))
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
    def __init__(self, gold: str) -> None:
        self._gold = gold

    def next_action(self) -> str:
        return self._gold
