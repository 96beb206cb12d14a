"""Tables of the index, and the conversion between episodes and their rows."""

from __future__ import annotations

from datetime import datetime

import msgspec

from runner.store.episode_file import EpisodeRecord
from runner.store.episode_store import EpisodeFile
from runner.types import Mode, Outcome
from runner.util.safe_values import escape_surrogates
from runner.util.sqlite import SqliteSchema

_INT64_LIMIT = 2**63


class EpisodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """Row of an episode in the index.

    Attributes:
        model_s: total seconds of all model answers; None if no model answered.
        error_type: ``error.type`` of the error that ended the episode.
        fallback: model endpoints that answered in place of a failed one, joined by commas.
        unscored: whether the evaluation leaves the episode unscored, because idle play can succeed.
    """

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
    model_s: float | None = None
    error_type: str | None
    fallback: str | None = None
    unscored: bool = False


COLUMNS = ", ".join(EpisodeRow.__struct_fields__)

_VERSION = 4

SCHEMA = SqliteSchema(
    version=_VERSION,
    tables=f"""
    BEGIN IMMEDIATE;
    CREATE TABLE episodes ({COLUMNS}, size, mtime_ns, PRIMARY KEY (episode_id, batch_id)) WITHOUT ROWID;
    CREATE TABLE damaged (episode_id, batch_id, size, mtime_ns, reason, PRIMARY KEY (episode_id, batch_id))
        WITHOUT ROWID;
    PRAGMA user_version = {_VERSION};
    COMMIT;
""",
    probes=(
        f"SELECT {COLUMNS}, size, mtime_ns FROM episodes LIMIT 0",
        "SELECT episode_id, batch_id, size, mtime_ns, reason FROM damaged LIMIT 0",
    ),
)

_COMMON = [name for name in EpisodeRow.__struct_fields__ if name in EpisodeRecord.__struct_fields__]


def episode_row(record: EpisodeRecord) -> EpisodeRow:
    """Return the index row of an episode."""
    return EpisodeRow(
        **{name: getattr(record, name) for name in _COMMON},
        tokens_prompt=record.tokens.prompt,
        tokens_completion=record.tokens.completion,
        tokens_reasoning=record.tokens.reasoning,
        tokens_cached=record.tokens.cached,
        model_s=record.model_s,
        fallback=record.fallback,
        error_type=record.error.type if record.error else None,
        unscored=record.unscored,
    )


def to_columns(row: EpisodeRow, file: EpisodeFile) -> list[object]:
    """Return the column values of the table ``episodes``, converted to types of SQLite."""
    return [*map(_to_sqlite, msgspec.structs.astuple(row)), file.size, file.mtime_ns]


def from_columns(values: tuple[object, ...]) -> EpisodeRow:
    """Return the row for values selected with ``COLUMNS``; raises ``msgspec.ValidationError`` for invalid values."""
    named = dict(zip(EpisodeRow.__struct_fields__, values, strict=True))
    return msgspec.convert(named, EpisodeRow, strict=False)


def _to_sqlite(value: object) -> object:
    match value:
        case str():
            return escape_surrogates(value)
        case int():
            return max(-_INT64_LIMIT, min(value, _INT64_LIMIT - 1))
        case datetime():
            return value.isoformat()
    return value
