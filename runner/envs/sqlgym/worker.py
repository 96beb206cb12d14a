"""Worker program that runs one query and compares its rows with those of the gold query; standard library only.

    python -I -S worker.py < request

Some queries keep SQLite busy without a chance to interrupt them, such as common table expressions that double at each
level and are expanded before the first row, and SQLite itself may crash. Therefore each query runs in its own process
that cannot write files, has little memory and is ended by an alarm. The rows are compared in the same process, since
crafted rows can keep a Python set busy for hours. The program must start fast, because every step starts a process.

The request is a JSON object with ``sql``, ``gold`` and ``script`` or ``uri``. The reply is one line of JSON per
completed part: ``"ready"`` when the database is open, the observation, ``"known"`` when the rows of the gold query are
known (if they are needed) or ``"failed"`` when it has an error, and whether the rows are equal.
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
"""Seconds after which the process is ended if the query could not be interrupted."""
GOLD_LIMIT_S = 30.0
MAX_ROWS = 100_000
MAX_VALUE = 1_000_000
"""Maximum size of a row and of a literal or computed text, in bytes."""
MEMORY = 1 << 30
"""Memory for the agent's query, in bytes; the gold query gets the same amount in addition."""
N_SHOWN = 100
"""Maximum length of an observation in characters, as in AgentGym's ``agentenv_sqlgym/environment.py``."""
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
"""SQLite virtual machine instructions between two checks of the time limit."""

Row = tuple[object, ...]
Rows = list[Row]


class GuardedQueries:
    """Runs queries on a connection that is restricted for good: read-only, limited sizes, interruptible."""

    def __init__(self, connection: sqlite3.Connection) -> None:
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
        """Run the agent's query; return its rows (None if there is no usable result) and the observation."""
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
    connection = sqlite3.connect(uri or ":memory:", uri=True, isolation_level=None, cached_statements=0)
    connection.executescript(script or "")
    connection.execute("SELECT count(*) FROM sqlite_schema")  # fails here if the file is not a database
    return connection


def confine() -> None:
    """Limit this process's files, core dumps and memory; limits that the system does not support are skipped."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        _limit(kind, 0, 0)
    _limit(resource.RLIMIT_AS, MEMORY, 2 * MEMORY)


def _limit(kind: int, soft: int, hard: int) -> None:
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (soft, hard))


def same_rows(rows: Rows, gold: set[Row]) -> bool:
    """Return whether ``rows`` and ``gold`` are equal as sets.

    ``rows`` are looked up in ``gold`` instead of being put into a set, because creating a set of crafted rows with
    equal hashes would take quadratic time.
    """
    missing = gold.copy()
    for row in rows:
        if row not in gold:
            return False
        missing.discard(row)
    return not missing


def truncate(text: str) -> str:
    return text if len(text) <= N_SHOWN else f"{text[:N_SHOWN]}..."


def main() -> None:
    request = json.loads(sys.stdin.buffer.read())
    reader = GuardedQueries(open_database(request["script"], request["uri"]))
    confine()
    _say("ready")
    signal.setitimer(signal.ITIMER_REAL, ALARM_S)
    rows, observation = reader.answer(request["sql"])
    signal.setitimer(signal.ITIMER_REAL, GOLD_LIMIT_S + ALARM_S)  # replaces the query's alarm before anything else
    _say(truncate(observation))
    if rows is None:
        _say(False)
        return
    _limit(resource.RLIMIT_AS, 2 * MEMORY, 2 * MEMORY)
    try:
        gold = reader.gold(request["gold"])
    except (sqlite3.Error, sqlite3.Warning) as exc:
        if getattr(exc, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
            raise
        _say("failed")
        return
    signal.setitimer(signal.ITIMER_REAL, ALARM_S)
    _say("known")
    _say(same_rows(rows, gold))


def _say(part: str | bool) -> None:
    sys.stdout.write(f"{json.dumps(part)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
