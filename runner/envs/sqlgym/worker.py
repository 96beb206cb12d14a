"""Runs the query of one step and judges its rows: a program of its own, which needs the standard library alone.

    python -I -S worker.py < request

A query can make SQLite busy where nothing can interrupt it, such as common table expressions that double at each level
and are unfolded before the first row, and SQLite itself may have faults. So a query has a process for itself, without
files to write, with little memory and with an alarm that ends it. It is imported quickly, since each step starts one.
Whatever depends on a model's rows is part of that: rows can be made that take Python hours to put into a set.

The request is a JSON object with ``sql``, ``gold`` and ``script`` or ``uri``. The reply has a line of JSON for each
part that was reached: ``"ready"`` once the database is open, the observation, ``"known"`` once there are the rows of
the gold query where they matter, and whether the query has them.
"""

from __future__ import annotations

import contextlib
import json
import math
import resource
import signal
import sqlite3
import sys
import time

TIME_LIMIT_S = 1.25
"""Seconds after which a query is interrupted."""
ALARM_S = 1.4
"""Seconds after which the process ends, where the query could not be interrupted."""
GOLD_LIMIT_S = 30.0
MAX_ROWS = 100_000
MAX_VALUE = 1_000_000
"""Bytes of the longest text or row, of a literal as of anything computed."""
MEMORY = 1 << 30
"""Bytes for the query; the gold query gets as many again, whatever the query's rows take."""
N_SHOWN = 100
"""Characters of an observation."""
STOPPED = f"The query was stopped because it ran for more than {TIME_LIMIT_S} s."
TOO_MANY_ROWS = f"The query was stopped because it has more than {MAX_ROWS} rows."

_READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_NOT_WRITING = {
    sqlite3.SQLITE_ATTACH,
    sqlite3.SQLITE_DETACH,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_PRAGMA,
    sqlite3.SQLITE_SAVEPOINT,
    sqlite3.SQLITE_TRANSACTION,
}
_PROGRESS_STEPS = 1_000
"""How many instructions of SQLite's machine lie between two looks at the clock."""

Row = tuple[object, ...]
Rows = list[Row]


class QueryRunner:
    """A database that can only be read, for a limited time."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Restrict ``connection`` for good."""
        self._connection = connection
        self._deadline = math.inf
        self._denied: set[int] = set()
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        connection.set_progress_handler(self._is_late, _PROGRESS_STEPS)
        connection.set_authorizer(self._authorize)

    def answer(self, sql: str) -> tuple[Rows | None, str]:
        """The rows of a model's query, None where it has none, and what the model is told."""
        self._deadline = time.monotonic() + TIME_LIMIT_S
        try:
            cursor = self._connection.execute(sql)
            rows: Rows = cursor.fetchmany(MAX_ROWS + 1)
            if len(rows) > MAX_ROWS:
                return None, TOO_MANY_ROWS
            return rows if cursor.description else None, str(rows[: N_SHOWN + 1])
        except MemoryError:
            return None, "out of memory"
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as exc:
            return None, self._reason(exc)

    def gold(self, sql: str) -> set[Row]:
        """The rows of the gold query."""
        self._deadline = time.monotonic() + GOLD_LIMIT_S
        return set(self._connection.execute(sql))

    def _is_late(self) -> int:
        return time.monotonic() > self._deadline

    def _authorize(self, action: int, *where: str | None) -> int:
        if action in _READING:
            return sqlite3.SQLITE_OK
        self._denied.add(action)
        return sqlite3.SQLITE_DENY

    def _reason(self, exc: Exception) -> str:
        match getattr(exc, "sqlite_errorcode", None):
            case sqlite3.SQLITE_INTERRUPT:
                return STOPPED
            case sqlite3.SQLITE_AUTH if self._denied - _NOT_WRITING:
                return "attempt to write a readonly database"
        return str(exc)


def open_database(script: str | None, uri: str | None) -> sqlite3.Connection:
    """The database of a script, in memory, or that of a URI, which says that it is only to be read."""
    connection = sqlite3.connect(uri or ":memory:", uri=True, isolation_level=None, cached_statements=0)
    connection.executescript(script or "")
    connection.execute("SELECT count(*) FROM sqlite_schema")  # a file that is no database says so here
    return connection


def confine() -> None:
    """Take from this process what no query needs; a limit that the system does not know is left out."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        _limit(kind, 0, 0)
    _limit(resource.RLIMIT_AS, MEMORY, 2 * MEMORY)


def _limit(kind: int, soft: int, hard: int) -> None:
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (soft, hard))


def same_rows(rows: Rows, gold: set[Row]) -> bool:
    """Whether the rows are those of ``gold``, in any order and any number of times.

    The rows are looked up in ``gold`` and not put into a set: rows of equal hash, which are easily made, would have to
    be compared each with each.
    """
    missing = gold.copy()
    for row in rows:
        if row not in gold:
            return False
        missing.discard(row)
    return not missing


def truncate(text: str) -> str:
    """A text as it is shown."""
    return text if len(text) <= N_SHOWN else f"{text[:N_SHOWN]}..."


def main() -> None:
    """Serve the request on standard input."""
    request = json.loads(sys.stdin.buffer.read())
    reader = QueryRunner(open_database(request["script"], request["uri"]))
    confine()
    _say("ready")
    signal.setitimer(signal.ITIMER_REAL, ALARM_S)
    rows, observation = reader.answer(request["sql"])
    signal.setitimer(signal.ITIMER_REAL, GOLD_LIMIT_S + ALARM_S)  # first: from here on it is not the query's alarm
    _say(truncate(observation))
    if rows is None:
        _say(False)
        return
    _limit(resource.RLIMIT_AS, 2 * MEMORY, 2 * MEMORY)
    gold = reader.gold(request["gold"])
    signal.setitimer(signal.ITIMER_REAL, ALARM_S)
    _say("known")
    _say(same_rows(rows, gold))


def _say(part: str | bool) -> None:
    sys.stdout.write(f"{json.dumps(part)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
