"""The tables of the outbox."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.errors import StoreError
from runner.store import sqlite as database

_VERSION = 1

# Columns that are compared have the same type, else SQLite uses no index for that.
# Each event has one mark per sink. Of events that are through everywhere only the id stays, in "settled".
_SCHEMA = database.Schema(
    version=_VERSION,
    tables=f"""
    BEGIN IMMEDIATE;
    CREATE TABLE events (n INTEGER PRIMARY KEY AUTOINCREMENT, id UNIQUE, subject, type, source, time, payload);
    CREATE TABLE marks (sink, n INTEGER, state, stream, seq, reason, at, PRIMARY KEY (sink, n)) WITHOUT ROWID;
    CREATE INDEX waiting ON marks (sink, n) WHERE state = 'pending';
    CREATE TABLE settled (id PRIMARY KEY) WITHOUT ROWID;
    CREATE TABLE sinks (name PRIMARY KEY, seen_at) WITHOUT ROWID;
    CREATE TABLE streams (sink, name, created, PRIMARY KEY (sink, name)) WITHOUT ROWID;
    PRAGMA user_version = {_VERSION};
    COMMIT;
""",
    probes=(
        "SELECT n, id, subject, type, source, time, payload FROM events LIMIT 0",
        "SELECT sink, n, state, stream, seq, reason, at FROM marks LIMIT 0",
        "SELECT n FROM marks INDEXED BY waiting WHERE sink = '' AND state = 'pending' LIMIT 0",
        "SELECT id FROM settled LIMIT 0",
        "SELECT name, seen_at FROM sinks LIMIT 0",
        "SELECT sink, name, created FROM streams LIMIT 0",
    ),
)


def connect(path: Path) -> sqlite3.Connection:
    """Open the outbox, or make a new one where there is none that can be used; raises a ``StoreError``."""
    try:
        with _locked(path.with_name(path.name + ".opening")):
            return database.connect(path, _SCHEMA)
    except OSError as exc:
        raise StoreError(f"{path} cannot be opened: {exc}; check its permissions") from exc


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
