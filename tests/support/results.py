"""A table of results in memory, for values that no recorded episode has."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from runner.errors import StoreError
from runner.results.summary import ResultSource
from runner.store.index_schema import EpisodeRow
from tests.support.console.samples import row


class ResultTable(ResultSource):
    """Rows of the sample episode, each with some columns replaced."""

    def __init__(self, rows: Sequence[Mapping[str, object]]) -> None:
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        self._connection.execute(f"CREATE TABLE episodes ({', '.join(EpisodeRow.__struct_fields__)})")
        for number, columns in enumerate(rows):
            sample = row(number)
            values = {name: getattr(sample, name) for name in EpisodeRow.__struct_fields__} | dict(columns)
            texts = [str(value) if name.endswith("_at") else value for name, value in values.items()]
            self._connection.execute(f"INSERT INTO episodes VALUES ({', '.join('?' * len(texts))})", texts)

    def select(self, query: str, parameters: tuple[object, ...] | Mapping[str, object] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(query, parameters).fetchall()

    def unusable(self, exc: Exception) -> StoreError:
        return StoreError(f"the table cannot be used: {exc}")
