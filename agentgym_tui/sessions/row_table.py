"""Table of list rows in memory, from which the results of opened files are aggregated."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, Final

from runner.errors import StoreError
from runner.results.summary import ResultSource
from runner.store.index_schema import RESULT_COLUMNS, EpisodeRow

_COLUMNS: Final = ("episode_id", *RESULT_COLUMNS)


class RowTable(ResultSource):
    """A table ``episodes`` with the columns that results need; usable in any thread.

    Args:
        rows: the rows. Those that SQLite cannot hold, such as one with a task index of 2**63, are left out.
    """

    def __init__(self, rows: Iterable[EpisodeRow]) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._connection.execute(f"CREATE TABLE episodes ({', '.join(_COLUMNS)})")
        self._connection.execute("BEGIN")
        insert = f"INSERT INTO episodes VALUES ({', '.join('?' * len(_COLUMNS))})"
        for values in map(attrgetter(*_COLUMNS), rows):
            try:
                self._connection.execute(insert, values)
            except (OverflowError, UnicodeEncodeError):
                continue
        self._connection.execute("COMMIT")

    def select(self, query: str, parameters: tuple[object, ...] | Mapping[str, object] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return self._connection.execute(query, parameters).fetchall()
            except sqlite3.Error as exc:
                raise self.unusable(exc) from exc

    def unusable(self, exc: Exception) -> StoreError:
        return StoreError(f"the opened episodes have no results: {exc}")
