"""Tables of the index, and the conversion between episodes and their rows.

A trigger notes each new row in the transaction that adds it, until the outbox has its event, so no kill loses one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from runner.store.episode_file import EpisodeRecord, shared_fields
from runner.store.episode_store import EpisodeFile
from runner.store.failures import row_findings, shared_text
from runner.types import AgentGymScore, Mode, Outcome, best_agentgym_score, join_models
from runner.types.time_shares import Cause, TimedStep, time_shares
from runner.util.safe_values import escape_surrogates, finite
from runner.util.sqlite import SqliteSchema

_INT64_LIMIT = 2**63


class EpisodeRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Row of an episode in the index.

    Attributes:
        model_s: total seconds of all model answers; None if no model answered.
        agentgym_score: see ``AgentGymScore``, whose success follows from it.
        unscored: whether the evaluation leaves the episode unscored, because idle play can succeed.
        energy_j: energy of the GPUs in joules; None if it was not measured.
        energy_shared: whether energy and GPU seconds are shares by time, which are estimates.
        gpu_s: seconds during which GPUs were busy; None if they were not measured.
        queue_s: seconds of all steps in which requests waited at the model's server. This and the other parts of the
            time are None if no step has a split.
        unsplit_s: seconds of model answers that belong to none of the known parts.
        endpoint_s: seconds of failed requests.
        times_about: whether parts of the time are estimates from the server's metrics.
        flags: names of the flags, joined by commas; None if its steps are damaged.
        failure: ``Failure.line`` of a failed episode.
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
    reward: float | None
    agentgym_score: float | None = None
    rounds: int
    tokens_prompt: int
    tokens_completion: int
    tokens_reasoning: int
    tokens_cached: int
    cost: float | None
    model_s: float | None = None
    error_type: str | None
    models: str | None = None
    fallback: str | None = None
    shape: str = ""
    limits: str = ""
    unscored: bool = False
    energy_j: float | None = None
    energy_shared: bool = False
    gpu_s: float | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    unsplit_s: float | None = None
    env_s: float | None = None
    endpoint_s: float | None = None
    own_s: float | None = None
    times_about: bool = False
    flags: str | None = None
    failure: str | None = None
    failed_step: int | None = None
    currency: str | None = None

    @property
    def agentgym(self) -> AgentGymScore | None:
        """Return None if the reward is unknown."""
        score = self.agentgym_score
        return None if score is None else AgentGymScore(score, score == best_agentgym_score(self.env))


COLUMNS = ", ".join(EpisodeRow.__struct_fields__)

_VERSION = 14

TIME_COLUMNS: Final[Mapping[Cause, str]] = {
    "queue": "queue_s",
    "prefill": "prefill_s",
    "decode": "decode_s",
    "model": "unsplit_s",
    "environment": "env_s",
    "endpoint": "endpoint_s",
    "own": "own_s",
}

RESULT_COLUMNS = (
    *("batch_id", "env", "data_label", "mode", "agent", "models", "shape", "limits", "outcome", "unscored"),
    "transport",
    *("success", "reward", "agentgym_score", "rounds", "duration_s", "cost", "model_s"),
    *("tokens_prompt", "tokens_completion", "tokens_reasoning", "tokens_cached", "task_index", "battery_id", "model"),
    *("energy_j", "energy_shared", "gpu_s", *TIME_COLUMNS.values(), "times_about"),
)
_SHARED_COLUMNS = (
    *("batch_id", "battery_id", "node", "profile", "env", "transport", "data_label", "agent", "model"),
    *("error_type", "models", "fallback", "shape", "limits", "flags", "failure", "currency"),
)
"""Columns in which many rows have the same text."""
_SHARED_NUMBERS = ("reward", "agentgym_score", *TIME_COLUMNS.values())
_NUMBERS: Final[Mapping[object, float]] = {0.0: 0.0, 1.0: 1.0}
"""Numbers that these columns often have; 100,000 rows share them."""
_RESULT_INDEX = f"CREATE INDEX results ON episodes ({', '.join(RESULT_COLUMNS)})"
"""Covers the columns of results in the order in which they are grouped: 100,000 rows are summed without being sorted.

Without it, results take four times as long.
"""

# Compared columns have the same type, as SQLite does not use an index otherwise.
# "settled" rows have no event: episodes that were imported, or found in an archive.
SCHEMA = SqliteSchema(
    version=_VERSION,
    tables=f"""
    BEGIN IMMEDIATE;
    CREATE TABLE episodes ({COLUMNS}, size, mtime_ns, settled, PRIMARY KEY (episode_id, batch_id)) WITHOUT ROWID;
    CREATE TABLE damaged (episode_id, batch_id, size, mtime_ns, reason, PRIMARY KEY (episode_id, batch_id))
        WITHOUT ROWID;
    CREATE TABLE folders (batch_id PRIMARY KEY, stamp) WITHOUT ROWID;
    CREATE TABLE unannounced (n INTEGER PRIMARY KEY AUTOINCREMENT, episode_id, subject, played);
    CREATE TRIGGER announced AFTER INSERT ON episodes WHEN NOT new.settled BEGIN
        INSERT INTO unannounced (episode_id, played) VALUES (new.episode_id, 0);
    END;
    {_RESULT_INDEX};
    PRAGMA user_version = {_VERSION};
    COMMIT;
""",
    probes=(
        f"SELECT {COLUMNS}, size, mtime_ns, settled FROM episodes LIMIT 0",
        f"EXPLAIN INSERT INTO episodes SELECT {COLUMNS}, size, mtime_ns, settled FROM episodes",  # no further column
        "SELECT episode_id, batch_id, size, mtime_ns, reason FROM damaged LIMIT 0",
        "SELECT batch_id, stamp FROM folders LIMIT 0",
        "SELECT n, episode_id, subject, played FROM unannounced LIMIT 0",
    ),
)


def episode_row(record: EpisodeRecord, content: EpisodeRecord | None = None) -> EpisodeRow:
    return EpisodeRow(
        **(shared_fields(record, EpisodeRow) | {"models": join_models(record.model, record.models)}),
        agentgym_score=None if record.agentgym is None else record.agentgym.score,
        tokens_prompt=record.tokens.prompt,
        tokens_completion=record.tokens.completion,
        tokens_reasoning=record.tokens.reasoning,
        tokens_cached=record.tokens.cached,
        model_s=record.model_s,
        fallback=record.fallback,
        shape=record.shape,
        error_type=record.error.type if record.error else None,
        unscored=record.unscored,
        **time_values(record.timesteps),
        **row_findings(record, (content or record).timesteps),
    )


def time_values(steps: Iterable[TimedStep]) -> dict[str, Any]:
    shares = time_shares(steps)
    seconds = {column: finite(shares.seconds[cause]) for cause, column in TIME_COLUMNS.items()} if shares.n else {}
    return {**seconds, "times_about": shares.about}


def to_columns(row: EpisodeRow, file: EpisodeFile, *, settled: bool = False) -> list[object]:
    return [*map(_to_sqlite, msgspec.structs.astuple(row)), file.size, file.mtime_ns, settled]


def from_columns(values: tuple[object, ...]) -> EpisodeRow:
    """Raises ``msgspec.ValidationError`` for invalid values."""
    named = dict(zip(EpisodeRow.__struct_fields__, values, strict=True))
    for name in _SHARED_NUMBERS:
        named[name] = _NUMBERS.get(named[name], named[name])
    for name in _SHARED_COLUMNS:
        if isinstance(text := named[name], str):
            named[name] = shared_text(text)
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
