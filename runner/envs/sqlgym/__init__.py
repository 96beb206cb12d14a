"""SQLGym: answer a question about a database with a single SQL query, which runs in a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from textwrap import wrap
from typing import ClassVar, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from runner.envs.base import BIRD_VARIABLE, DataLabel, EmbeddedEnvironment, Grammar, StepText, command, data_folder
from runner.envs.sqlgym import worker
from runner.errors import ConfigError, EnvironmentFault
from runner.types import Action, CellRow, CellRun, Cells, InvalidAction, Mode
from runner.types.cells import CellColor
from runner.util.files import package_resource

Columns: TypeAlias = list[tuple[int, str]]
"""``(table number, name)`` of each column; the first entry is ``(-1, "*")`` and stands for no column."""
_SPLITS = ("train", "dev")
_DATABASE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_T = TypeVar("_T")
_WIDTH = 76
_MAX_TABLES = 30
_FENCE = re.compile(r"```sql(?:ite)?\b", re.IGNORECASE)
ENGINE_FAILED = "The query was stopped because the database engine failed or ran out of memory."
_WORKER_TIMEOUT_S = worker.ALARM_S + worker.GOLD_LIMIT_S + worker.ALARM_S + 20
_worker_slots = threading.BoundedSemaphore(2 * (os.cpu_count() or 1))
"""Limit of concurrent queries, since each query may keep a CPU busy until its time limit."""
_COMMAND = (sys.executable, "-I", "-S", str(Path(worker.__file__)))


class DatabaseSchema(msgspec.Struct, frozen=True, kw_only=True):
    """Schema of one database, an entry of BIRD's ``tables.json``.

    A key is a column number; a composite key is a list of column numbers. Fields ``*_original`` contain the identifiers
    for queries; the fields without this suffix contain the same names in words.
    """

    db_id: str
    table_names: list[str]
    table_names_original: list[str]
    column_names: Columns
    column_names_original: Columns
    primary_keys: list[int | list[int]]
    foreign_keys: list[tuple[int, int]]

    def described(self, mode: Mode) -> str:
        """Return the schema as sentences.

        ``compat`` keeps two quirks of AgentGym's ``agentenv_sqlgym/environment.py``: it shows names in words
        (``customer id`` for ``customer_id``), and for each column of a foreign key it names the following column.
        """
        strict = mode == "strict"
        tables = self.table_names_original if strict else [name.lower() for name in self.table_names]
        columns = self.column_names_original if strict else [(at, name.lower()) for at, name in self.column_names]
        sentences = [f"{self.db_id} contains tables such as {', '.join(tables)}."]
        for number, table in enumerate(tables):
            table_columns = [name for at, name in columns if at == number]
            sentences.append(f"Table {table} has columns such as {', '.join(table_columns)}.")
            if (key := self._primary_key(number, columns, strict)) or not strict:
                sentences.append(f"{key} is the primary key.")
        shift: Literal[0, 1] = 0 if strict else 1
        for pair in self.foreign_keys:
            (column, table), (other, other_table) = (_column_and_table(row, shift, tables, columns) for row in pair)
            sentences.append(f"The {column} of {table} is the foreign key of {other} of {other_table}.")
        return " ".join(sentences)

    def _primary_key(self, table: int, columns: Columns, strict: bool) -> str:
        # AgentGym ignores composite keys
        rows = [row for row in self.primary_keys if isinstance(row, int)]
        if strict:
            rows += [row for key in self.primary_keys if isinstance(key, list) for row in key]
        return ", ".join(name for row, (at, name) in enumerate(columns) if at == table and row in rows)


def _column_and_table(row: int, shift: int, tables: list[str], columns: Columns) -> tuple[str, str]:
    # the column ``shift`` positions after ``row``, wrapping around, but the table of ``row``: AgentGym's quirk
    shifted = (row - 1 + shift) % (len(columns) - 1) + 1
    return columns[shifted][1], tables[columns[row][0]]


class Task(msgspec.Struct, frozen=True):
    """A question about a database and its gold query, which must not reach an agent."""

    db_id: str
    question: str
    gold: str = msgspec.field(name="SQL")


class Database(msgspec.Struct, frozen=True):
    """A database: either the script that creates it or a URI that opens it read-only."""

    script: str | None = None
    uri: str | None = None


class Split:
    """Tasks of one folder; ``databases`` has ``NAME.sql`` or ``NAME/NAME.sqlite``, the other files are JSON lists."""

    def __init__(self, tasks: Path, tables: Path, databases: Path) -> None:
        self.tasks = _read(tasks, list[Task])
        self._schemas: Mapping[str, DatabaseSchema] = {
            schema.db_id: schema for schema in _read(tables, list[DatabaseSchema])
        }
        self._databases = databases

    def schema(self, task: Task) -> DatabaseSchema:
        """Raises ``ConfigError`` if the data has no schema of the database."""
        if task.db_id not in self._schemas:
            raise ConfigError(f"SQLGym's data is incomplete: no schema for the database {task.db_id!r}")
        return self._schemas[task.db_id]

    def database(self, task: Task) -> Database:
        """Raises ``ConfigError`` if the database's name is invalid or its file does not exist."""
        name = task.db_id
        if not _DATABASE_NAME.fullmatch(name):
            raise ConfigError(f"{name!r} is not a valid database name")
        script = self._databases / f"{name}.sql"
        if script.is_file():
            return Database(script=script.read_text("utf-8"))
        file = Path(str(self._databases), name, f"{name}.sqlite")
        if not file.is_file():
            raise ConfigError(f"SQLGym's data is incomplete: no database {file}")
        return Database(uri=f"{file.as_uri()}?mode=ro")


@cache
def catalogue(bird: str | None) -> list[tuple[Split, Task]]:
    """Return the tasks of BIRD's folder, numbered as AgentGym's (train from 0, then dev), or the shipped ones for None.

    Raises ``ConfigError`` if the folder has no tasks, or one of its files cannot be read.
    """
    if bird is None:
        folder = package_resource("data", "sqlgym")
        splits = [Split(folder / "tasks.json", folder / "tables.json", folder)]
    else:
        folders = {name: Path(bird).absolute() / name for name in _SPLITS}
        splits = [
            Split(folder / f"{name}.json", folder / f"{name}_tables.json", folder / f"{name}_databases")
            for name, folder in folders.items()
            if (folder / f"{name}.json").is_file()
        ]
    tasks = [(split, task) for split in splits for task in split.tasks]
    if not tasks:
        expected = " nor ".join(f"{name}/{name}.json" for name in _SPLITS)
        raise ConfigError(f"{BIRD_VARIABLE} is {bird!r}, which has neither {expected} with tasks")
    return tasks


def _read(file: Path, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise ConfigError(f"Cannot read SQLGym's data file {file}: {exc}") from exc


class QueryResult(NamedTuple):
    sql: str
    observation: str
    solved: bool


def draw_database(schema: DatabaseSchema, question: str, result: QueryResult | None) -> Cells:
    keys = {column for key in schema.primary_keys for column in (key if isinstance(key, list) else [key])}
    rows: list[CellRow] = [(CellRun("Database: ", "dim"), CellRun(schema.db_id, "cyan"))]
    for number, table in enumerate(schema.table_names_original[:_MAX_TABLES]):
        columns = [
            f"{name}*" if index in keys else name
            for index, (at, name) in enumerate(schema.column_names_original)
            if at == number
        ]
        rows.append((CellRun(f"▦ {table}", "yellow"),))
        rows += _wrapped(", ".join(columns), "plain", 3)
    rows += [(CellRun("* primary key", "dim"),), (), (CellRun("Question", "cyan"),), *_wrapped(question, "plain", 6)]
    return Cells([*rows, *_result_rows(result)])


def _result_rows(result: QueryResult | None) -> Iterator[CellRow]:
    yield ()
    if result is None:
        yield (CellRun("No query yet", "dim"),)
        return
    yield (CellRun("Query", "cyan"),)
    yield from _wrapped(result.sql, "plain", 10)
    yield (CellRun("✓ Result: right", "green") if result.solved else CellRun("✗ Result: not the answer", "red"),)
    yield from _wrapped(result.observation, "plain", 6)


def _wrapped(text: str, color: CellColor, max_lines: int) -> list[CellRow]:
    lines = wrap(text[:4096], _WIDTH, max_lines=max_lines, placeholder=" …")
    return [(CellRun("  "), CellRun(line, color)) for line in lines]


class Verdict(NamedTuple):
    """Text for the agent, and whether the rows equal those of the gold query; None if only that has an error."""

    observation: str
    solved: bool | None


def evaluate(database: Database, sql: str, gold: str) -> Verdict:
    """Raises ``EnvironmentFault`` if the database cannot be opened or the gold query, which it hides, is too slow."""
    request = {"sql": sql, "gold": gold, **msgspec.structs.asdict(database)}
    done = _run(json.dumps(request).encode())  # unlike msgspec, json accepts lone surrogates
    match [json.loads(line) for line in done.stdout.splitlines()]:
        case ["ready", str() as observation, *known, bool() as solved] if known in ([], ["known"]):
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
    lines = done.stderr.decode("utf-8", "replace").split("\n")
    last = next((line[:200] for line in reversed(lines) if line), "no error output")
    raise EnvironmentFault(f"SQLGym could not open the database of this task: {last}")


def _run(request: bytes) -> subprocess.CompletedProcess[bytes]:
    # in its own process group, so that Ctrl-C does not reach it; its alarm ends it
    try:
        with _worker_slots:
            return subprocess.run(
                _COMMAND, input=request, capture_output=True, timeout=_WORKER_TIMEOUT_S, check=False, process_group=0
            )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise EnvironmentFault(f"SQLGym could not run a query: {type(exc).__name__}") from exc


_QUERY = command(
    "{sql}",
    "Answer the question with one SQLite query, which can only read. There is a single try.",
    {"sql": (r".*\S.*", {"type": "string", "description": "One statement, as in SELECT name FROM members."})},
    name="query",
    flags=re.DOTALL,
)


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
    """Descriptors of the pipes to a query's process while it starts; see ``runner.batch.spec``."""
    data_label = DataLabel("sqlgym")
    grammar = Grammar([_QUERY], expected="one SQL query, by itself or in a ```sql block")
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
        return msgspec.structs.replace(super().parse(_query_in(text)), text=text)

    def admissible_actions(self) -> list[str]:
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
