"""Where tasks and their databases come from: the ones that ship with the runner, or BIRD on this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

import msgspec

from runner.errors import ConfigError
from runner.types import Mode
from runner.util.package_data import package_resource

Columns: TypeAlias = list[tuple[int, str]]
"""Per column the number of its table and its name; the first row is ``(-1, "*")`` and stands for no column."""


class DatabaseSchema(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a ``tables.json``; keys are row numbers of the columns, a list of them is a composite key.

    ``*_original`` are the names that a query has to use, the others are those names in words.
    """

    db_id: str
    table_names: list[str]
    table_names_original: list[str]
    column_names: Columns
    column_names_original: Columns
    primary_keys: list[int | list[int]]
    foreign_keys: list[tuple[int, int]]

    def described(self, mode: Mode) -> str:
        """The schema as sentences; ``compat`` has AgentGym's two quirks.

        AgentGym names things in words, ``customer id`` for ``customer_id``, and a foreign key's column is the one after
        the column that is meant.
        """
        strict = mode == "strict"
        tables = self.table_names_original if strict else [name.lower() for name in self.table_names]
        columns = self.column_names_original if strict else [(at, name.lower()) for at, name in self.column_names]
        sentences = [f"{self.db_id} contains tables such as {', '.join(tables)}."]
        for number, table in enumerate(tables):
            own = [name for at, name in columns if at == number]
            sentences.append(f"Table {table} has columns such as {', '.join(own)}.")
            if (key := self._primary_key(number, columns, strict)) or not strict:
                sentences.append(f"{key} is the primary key.")
        shift: Literal[0, 1] = 0 if strict else 1
        for pair in self.foreign_keys:
            (column, table), (other, its_table) = (_named(row, shift, tables, columns) for row in pair)
            sentences.append(f"The {column} of {table} is the foreign key of {other} of {its_table}.")
        return " ".join(sentences)

    def _primary_key(self, table: int, columns: Columns, strict: bool) -> str:
        """The names of a table's key columns; AgentGym does not see composite keys."""
        rows = [row for row in self.primary_keys if isinstance(row, int)]
        if strict:
            rows += [row for key in self.primary_keys if isinstance(key, list) for row in key]
        return ", ".join(name for row, (at, name) in enumerate(columns) if at == table and row in rows)


def _named(row: int, shift: int, tables: list[str], columns: Columns) -> tuple[str, str]:
    """A column's name, ``shift`` rows further on and from the last one on to the first, and that of its table."""
    shifted = (row - 1 + shift) % (len(columns) - 1) + 1
    return columns[shifted][1], tables[columns[row][0]]


BIRD_VARIABLE = "AGENTENV_SQLGYM_BIRD_PATH"
"""The folder with BIRD's ``train`` and ``dev``, each as BIRD's archives unpack; AgentGym's server reads it too."""

_SPLITS = ("train", "dev")
_DATABASE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_T = TypeVar("_T")


class Task(msgspec.Struct, frozen=True):
    """A question about a database and the query that answers it, which no agent may see."""

    db_id: str
    question: str
    gold: str = msgspec.field(name="SQL")


class Database(msgspec.Struct, frozen=True):
    """Either the script that makes a database or a URI that opens one for reading."""

    script: str | None = None
    uri: str | None = None


class Split:
    """The tasks of one folder and what they are about.

    Args:
        tasks: a JSON list of tasks.
        tables: a JSON list with the schema of each of their databases.
        databases: a folder with ``<name>.sql`` each, or a path with ``<name>/<name>.sqlite`` each.
    """

    def __init__(self, tasks: Traversable, tables: Traversable, databases: Traversable) -> None:
        self.tasks = _read(tasks, list[Task])
        self._schemas: Mapping[str, DatabaseSchema] = {
            schema.db_id: schema for schema in _read(tables, list[DatabaseSchema])
        }
        self._databases = databases

    def schema(self, task: Task) -> DatabaseSchema:
        """The schema of a task's database.

        Raises:
            ConfigError: where the data has none.
        """
        if task.db_id not in self._schemas:
            raise ConfigError(f"There is no schema for the database {task.db_id!r}; the data of SQLGym is incomplete")
        return self._schemas[task.db_id]

    def database(self, task: Task) -> Database:
        """The database of a task.

        Raises:
            ConfigError: where the data has none.
        """
        name = task.db_id
        if not _DATABASE_NAME.fullmatch(name):
            raise ConfigError(f"{name!r} is no name of a database")
        script = self._databases / f"{name}.sql"
        if script.is_file():
            return Database(script=script.read_text("utf-8"))
        file = Path(str(self._databases), name, f"{name}.sqlite")
        if not file.is_file():
            raise ConfigError(f"There is no database {file}; the data of SQLGym is incomplete")
        return Database(uri=f"{file.as_uri()}?mode=ro")


class Catalogue:
    """All tasks, those of one split after those of the other."""

    def __init__(self, splits: list[Split]) -> None:
        """Number the tasks of ``splits``."""
        self._places = [(split, task) for split in splits for task in split.tasks]
        self.n_tasks = len(self._places)

    def __getitem__(self, task_index: int) -> tuple[Split, Task]:
        """A task and the split that it belongs to."""
        return self._places[task_index]


def bird_folder() -> str | None:
    """The folder of BIRD as the environment variable names it, or None where the shipped databases are played."""
    return os.environ.get(BIRD_VARIABLE) or None


@cache
def catalogue(bird: str | None) -> Catalogue:
    """The tasks of the folder ``bird``, or the shipped ones.

    With both of its splits the task numbers of BIRD are AgentGym's: train from 0, dev after it.

    Raises:
        ConfigError: where the folder has no tasks, or a file of it cannot be read.
    """
    if bird is None:
        folder = package_resource("data", "sqlgym")
        return Catalogue([Split(folder / "tasks.json", folder / "tables.json", folder)])
    root = Path(bird).absolute()
    splits = [
        Split(root / name / f"{name}.json", root / name / f"{name}_tables.json", root / name / f"{name}_databases")
        for name in _SPLITS
        if (root / name / f"{name}.json").is_file()
    ]
    found = Catalogue(splits)
    if not found.n_tasks:
        wanted = " nor ".join(f"{name}/{name}.json" for name in _SPLITS)
        raise ConfigError(f"{BIRD_VARIABLE} is {bird!r}, which has neither {wanted} with tasks")
    return found


def _read(file: Traversable, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise ConfigError(f"{file} cannot be read as data of SQLGym: {exc}") from exc
