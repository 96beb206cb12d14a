"""The SQLite file under the index: its tables, and what to do with one that is broken or of another version."""

from __future__ import annotations

import logging
import os
import sqlite3
from datetime import datetime
from pathlib import Path

import msgspec

from runner.errors import StoreError
from runner.store.episodes import EpisodeFile
from runner.store.records import EpisodeRecord
from runner.tracing.values import encodable
from runner.types import Mode, Outcome

logger = logging.getLogger(__name__)

VERSION = 1
"""Of the tables below; a file of another version is made anew."""

BUSY_TIMEOUT_S = 10.0

DATABASE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What SQLite's module raises; the latter when a broken file makes it describe the damage in no readable text."""

_SIDE_FILES = ("", "-wal", "-shm", "-journal")
_INT64 = 2**63

_NOT_THE_FILES_FAULT = frozenset(
    {
        sqlite3.SQLITE_AUTH,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
    }
)


class EpisodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """An episode in the index; ``error_type`` is the kind of its error."""

    episode_id: str
    batch_id: str
    battery_id: str | None
    node: str
    profile: str
    env: str
    transport: str
    data_label: str
    mode: Mode
    agent: str
    model: str | None
    task_index: int
    seed: int | None
    attempt: int
    started_at: datetime
    ended_at: datetime
    duration_s: float
    outcome: Outcome
    success: bool
    reward: float
    rounds: int
    tokens_prompt: int
    tokens_completion: int
    tokens_reasoning: int
    tokens_cached: int
    cost: float | None
    error_type: str | None


COLUMNS = ", ".join(EpisodeRow.__struct_fields__)

_TABLES = f"""
    BEGIN IMMEDIATE;
    CREATE TABLE episodes ({COLUMNS}, size, mtime_ns, PRIMARY KEY (episode_id, batch_id)) WITHOUT ROWID;
    CREATE TABLE damaged (episode_id, batch_id, size, mtime_ns, reason, PRIMARY KEY (episode_id, batch_id))
        WITHOUT ROWID;
    PRAGMA user_version = {VERSION};
    COMMIT;
"""

_COMMON = [name for name in EpisodeRow.__struct_fields__ if name in EpisodeRecord.__struct_fields__]


def episode_row(record: EpisodeRecord) -> EpisodeRow:
    """What the index keeps of an episode."""
    return EpisodeRow(
        **{name: getattr(record, name) for name in _COMMON},
        tokens_prompt=record.tokens.prompt,
        tokens_completion=record.tokens.completion,
        tokens_reasoning=record.tokens.reasoning,
        tokens_cached=record.tokens.cached,
        error_type=record.error.type if record.error else None,
    )


def to_columns(row: EpisodeRow, file: EpisodeFile) -> list[object]:
    """The values of a row of ``episodes``, as SQLite can hold them."""
    return [*map(_storable, msgspec.structs.astuple(row)), file.size, file.mtime_ns]


def from_columns(values: tuple[object, ...]) -> EpisodeRow:
    """A row read with ``COLUMNS``; raises ``msgspec.ValidationError`` for values that are none of ours."""
    named = dict(zip(EpisodeRow.__struct_fields__, values, strict=True))
    return msgspec.convert(named, EpisodeRow, strict=False)


def _storable(value: object) -> object:
    match value:
        case str():
            return encodable(value)
        case int():
            return max(-_INT64, min(value, _INT64 - 1))
        case datetime():
            return value.isoformat()
    return value


def connect(path: Path) -> sqlite3.Connection:
    """Open the database, or make a new one where there is none that can be used.

    Raises:
        StoreError: when the file can be neither used nor replaced, or others keep it locked.
    """
    try:
        try:
            return _open(path)
        except DATABASE_ERRORS as exc:
            if not _is_damage(exc):
                raise
            logger.warning("%s cannot be used (%s) and is made anew from the episode files", path, exc)
        for suffix in _SIDE_FILES:
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        return _open(path)
    except (*DATABASE_ERRORS, OSError) as exc:
        raise StoreError(f"{path} cannot be opened: {exc}; check its permissions and the room on the disk") from exc


def _open(path: Path) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite's side files take over its mode
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        _prepare(connection)
    except DATABASE_ERRORS:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (n_tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if version == 0 and n_tables == 0:
        connection.executescript(_TABLES)
        return
    if version != VERSION:
        raise sqlite3.DatabaseError(f"its schema is {version}, not {VERSION}")
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise sqlite3.DatabaseError(verdict)
    connection.execute(f"SELECT {COLUMNS}, size, mtime_ns FROM episodes LIMIT 0")
    connection.execute("SELECT episode_id, batch_id, size, mtime_ns, reason FROM damaged LIMIT 0")


def _is_damage(exc: Exception) -> bool:
    code = getattr(exc, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    return code & 0xFF not in _NOT_THE_FILES_FAULT
