"""Build ``data/sqlgym``: invented databases for SQLGym and questions about them.

    python -m scripts.build_sqlgym_data

The output is identical everywhere: the only source of randomness is ``random.Random.random``, whose sequence is stable.
``tables.json`` and ``tasks.json`` have the format of BIRD's files; each database is an SQL script.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sqlite3
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from scripts.sqlgym_domains import DOMAINS, Domain, Names, Table
from scripts.sqlgym_questions import YEARS, Draw, Question, Templates, quoted

TARGET = Path(__file__).resolve().parent.parent / "data" / "sqlgym"
QUESTIONS_EACH = 25
MOST_ROWS = 30
"""Maximum number of result rows; a question with more rows is dropped."""

_FIRST_DAY = date(YEARS[0], 1, 1)
_N_DAYS = (date(YEARS[-1], 12, 31) - _FIRST_DAY).days + 1
_NEVER = 9
"""No fact refers to every ninth row of the joined tables."""

Row: TypeAlias = list[str | int]


class Relation(NamedTuple):
    """A table with its rows; ``references`` maps a foreign-key column to its table."""

    name: str
    columns: list[str]
    references: dict[str, str]
    rows: list[Row]

    def type_of(self, column: str) -> str:
        """Return the SQL type of a column, derived from its values."""
        return "integer" if isinstance(self.rows[0][self.columns.index(column)], int) else "text"


def relations(domain: Domain, draw: Draw) -> list[Relation]:
    """Return the four tables of a database."""
    place, first, second, fact = domain[1:]
    belongs, has_first, has_second = (f"{table.one}_id" for table in (place, first, second))
    placed = [[*row, draw(place.n_rows) + 1] for row in _things(first, draw)]
    fact_columns = ["id", has_first, has_second, fact.day, fact.whole.name, fact.money.name]
    return [
        Relation(place.many, _columns(place), {}, _things(place, draw)),
        Relation(first.many, [*_columns(first), belongs], {belongs: place.many}, placed),
        Relation(second.many, _columns(second), {}, _things(second, draw)),
        Relation(
            fact.many,
            fact_columns,
            {has_first: first.many, has_second: second.many},
            [[number, *_fact(domain, draw)] for number in range(1, fact.n_rows + 1)],
        ),
    ]


def _columns(table: Table) -> list[str]:
    return ["id", "name", table.choice.name, table.whole.name]


def _things(table: Table, draw: Draw) -> list[Row]:
    values, whole = table.choice.values, table.whole
    names = drawn_names(table.names, table.n_rows, draw)
    return [
        [number, name, values[draw(len(values))], whole.low + draw(whole.high - whole.low + 1)]
        for number, name in enumerate(names, start=1)
    ]


def drawn_names(names: Names, n: int, draw: Draw) -> list[str]:
    """Return ``n`` distinct names, each a pair of words."""
    pairs = [" ".join(pair) for pair in itertools.product(*names)]
    return [pairs.pop(draw(len(pairs))) for _ in range(n)]


def _fact(domain: Domain, draw: Draw) -> Row:
    fact = domain.fact
    day = _FIRST_DAY + timedelta(days=draw(_N_DAYS))
    numbers = [column.low + draw(column.high - column.low + 1) for column in (fact.whole, fact.money)]
    return [_joined(domain.first, draw), _joined(domain.second, draw), day.isoformat(), *numbers]


def _joined(table: Table, draw: Draw) -> int:
    while (number := draw(table.n_rows) + 1) % _NEVER == 0:
        pass
    return number


def script(tables: Iterable[Relation]) -> str:
    """Return the SQL script that creates a database."""
    return "".join(_statements(table) for table in tables)


def _statements(table: Relation) -> str:
    columns = [f"{name} {table.type_of(name).upper()} NOT NULL" for name in table.columns]
    columns[0] = f"{table.columns[0]} INTEGER PRIMARY KEY"
    keys = [f"FOREIGN KEY ({name}) REFERENCES {other} (id)" for name, other in table.references.items()]
    rows = [f"({', '.join(quoted(v) if isinstance(v, str) else str(v) for v in row)})" for row in table.rows]
    declared, listed = ",\n  ".join(columns + keys), ",\n".join(rows)
    return f"CREATE TABLE {table.name} (\n  {declared}\n);\nINSERT INTO {table.name} VALUES\n{listed};\n"


def schema(name: str, tables: Sequence[Relation]) -> dict[str, Any]:
    """Return a database's entry in ``tables.json``; a column's number is its index in ``column_names``."""
    columns: list[tuple[int, str]] = [(-1, "*")]
    columns += [(number, column) for number, table in enumerate(tables) for column in table.columns]
    names = [table.name for table in tables]
    row_of = {(names[at], column): row for row, (at, column) in enumerate(columns) if at >= 0}
    return {
        "db_id": name,
        "table_names": names,
        "table_names_original": names,
        "column_names": [(at, column.replace("_", " ")) for at, column in columns],
        "column_names_original": columns,
        "column_types": ["text", *(table.type_of(column) for table in tables for column in table.columns)],
        "primary_keys": [row_of[table, "id"] for table in names],
        "foreign_keys": [
            (row_of[table.name, column], row_of[other, "id"])
            for table in tables
            for column, other in table.references.items()
        ],
    }


def questions(domain: Domain, tables: Sequence[Relation], draw: Draw, first_kind: int) -> list[Question]:
    """Return unambiguous questions about a database, cycling through all kinds of question from ``first_kind`` on."""
    names = {table.name: [str(row[1]) for row in table.rows] for table in tables}
    kinds = Templates(domain, names, draw).kinds()
    start = first_kind % len(kinds)
    connection = sqlite3.connect(":memory:")
    connection.executescript(script(tables))
    by_gold: dict[str, Question] = {}
    for make_question in itertools.cycle(kinds[start:] + kinds[:start]):
        question = make_question()
        if is_clear(connection, question):
            by_gold.setdefault(question.gold, question)
        if len(by_gold) == QUESTIONS_EACH:
            break
    connection.close()
    return list(by_gold.values())


def is_clear(connection: sqlite3.Connection, question: Question) -> bool:
    """Return whether a question has a short, non-trivial answer that does not depend on the order of ties."""
    rows = connection.execute(question.gold).fetchall()
    if not rows or len(rows) > MOST_ROWS or rows in ([(0,)], [(None,)]) or (question.single and len(rows) > 1):
        return False
    if " LIMIT " not in question.gold:
        return True
    orders = (question.gold.replace(" LIMIT ", f", name{order} LIMIT ") for order in ("", " DESC"))
    return all(set(connection.execute(gold)) == set(rows) for gold in orders)


def files() -> dict[str, str]:
    """Return the generated files: name -> content."""
    built: dict[str, str] = {}
    schemas, questions_by_domain = [], []
    for number, domain in enumerate(DOMAINS):
        source = random.Random(f"SQLGym {domain.name}")

        def draw(n: int, source: random.Random = source) -> int:
            return int(source.random() * n)

        tables = relations(domain, draw)
        built[f"{domain.name}.sql"] = script(tables)
        schemas.append(schema(domain.name, tables))
        questions_by_domain.append(questions(domain, tables, draw, first_kind=number * 5))
    tasks = [
        {"db_id": domain.name, "question": question.text, "SQL": question.gold}
        for round_of_questions in zip(*questions_by_domain, strict=True)
        for domain, question in zip(DOMAINS, round_of_questions, strict=True)
    ]
    return {**built, "tables.json": _lines(schemas), "tasks.json": _lines(tasks)}


def _lines(entries: Iterable[dict[str, Any]]) -> str:
    listed = ",\n".join(map(json.dumps, entries))
    return f"[\n{listed}\n]\n"


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description="Build the databases and questions of SQLGym.")
    parser.add_argument("--output", type=Path, default=TARGET)
    output: Path = parser.parse_args().output
    for name, content in files().items():
        (output / name).write_text(content, "utf-8")


if __name__ == "__main__":
    main()
