"""What a database looks like, as data of BIRD's shape and in the sentences that a task begins with."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from runner.types import Mode

Columns: TypeAlias = list[tuple[int, str]]
"""Per column the number of its table and its name; the first row is ``(-1, "*")`` and stands for no column."""


class Schema(msgspec.Struct, frozen=True, kw_only=True):
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
