"""The episode file, schema 1: its records, and validated decoding."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec

from runner.errors import StoreError
from runner.types import (
    AgentGymScore,
    EpisodeHeader,
    ErrorInfo,
    Flow,
    Outcome,
    PackedCells,
    Span,
    TimeStep,
    Tokens,
    ToolSchema,
    agentgym_score,
    count_models,
    fallback_endpoints,
    is_unscored,
    join_shapes,
)
from runner.types.machine import GpuUse
from runner.util.clock import is_ulid
from runner.util.safe_values import finite

SCHEMA = 1
"""Schema number of written files; files with another schema are rejected."""

StoredChat: TypeAlias = list[Any]
"""Messages as returned by the agent or the environment: any JSON, not validated."""

_HeaderT = TypeVar("_HeaderT", bound=EpisodeHeader)


class Origin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an imported episode was made from; all texts come from outside.

    Attributes:
        missing: what the file lacks, e.g. ``reward``, which is then None; other fields have neutral values.
    """

    format: str
    id: str = ""
    missing: tuple[str, ...] = ()


class EpisodeRecord(EpisodeHeader, kw_only=True):
    """Content of an episode file; ``tokens`` and ``cost`` are sums over the steps (``cost``: None if none has one).

    ``reward`` is the sum over the steps, too, except in imported episodes: there it is that of the file, or None.
    ``models`` has the number of steps that each model answered, in the order of the first; the model of an endpoint is
    the one of the profile, whatever its server calls it. ``agentgym`` follows from the rewards.
    """

    env_episode_id: str | None = None
    ended_at: datetime
    duration_s: float
    paused_s: float = 0.0
    outcome: Outcome
    success: bool
    reward: float | None
    agentgym: AgentGymScore | None = None
    rounds: int
    models: dict[str, int] = msgspec.field(default_factory=dict)
    tokens: Tokens
    cost: float | None = None
    reset_observation: StoredChat
    reset_world: PackedCells | None = None
    timesteps: list[TimeStep]
    tool_schemas: list[list[ToolSchema]]
    spans: list[Span]
    flows: list[Flow]
    error: ErrorInfo | None = None
    evaluation: dict[str, Any] | None = None
    trace_last_response_flow_id: int | None = None
    energy_j: float | None = None
    energy_shared: bool = False
    gpu_s: float | None = None
    origin: Origin | None = None

    def __post_init__(self) -> None:
        if self.origin is not None and "reward" in self.origin.missing:
            self.reward = None  # earlier versions stored 0

    @property
    def unscored(self) -> bool:
        return is_unscored(self.evaluation)

    @property
    def gpu(self) -> GpuUse | None:
        """Return None if it was not measured."""
        use = GpuUse(energy_j=self.energy_j, energy_shared=self.energy_shared, gpu_s=self.gpu_s)
        return None if use == GpuUse() else use

    @property
    def model_s(self) -> float | None:
        """Return None if no model answered."""
        answered = [step.model_s for step in self.timesteps if step.endpoint is not None]
        return finite(sum(answered)) if answered else None

    @property
    def fallback(self) -> str | None:
        """Joined by commas; None if no endpoint answered in place of a failed one."""
        return fallback_endpoints((step.endpoint, step.warnings) for step in self.timesteps)

    @property
    def shape(self) -> str:
        return join_shapes(step.shape for step in self.timesteps)


class _Version(msgspec.Struct):
    schema: int = SCHEMA


_DECODER = msgspec.json.Decoder(EpisodeRecord)


def shared_fields(source: msgspec.Struct, target: type[msgspec.Struct]) -> dict[str, Any]:
    names = source.__struct_fields__
    return {name: getattr(source, name) for name in target.__struct_fields__ if name in names}


def episode_record(
    header: EpisodeHeader,
    steps: Sequence[TimeStep],
    **rest: Any,  # noqa: ANN401 - the other fields of EpisodeRecord
) -> EpisodeRecord:
    costs = [step.cost for step in steps if step.cost is not None]
    reward = finite(sum(step.reward for step in steps))
    return EpisodeRecord(
        **shared_fields(header, EpisodeRecord),
        rounds=len(steps),
        reward=reward,
        agentgym=agentgym_score(header.env, [step.reward for step in steps], reward),
        models=count_models((step.endpoint, step.model) for step in steps),
        tokens=sum((step.tokens for step in steps if step.tokens is not None), Tokens()),
        cost=finite(sum(costs)) if costs else None,
        timesteps=list(steps),
        **rest,
    )


def decode_episode(data: bytes, path: Path, *, was_moved: bool = False) -> EpisodeRecord:
    """Decode and validate the content of the episode file ``path``; ``was_moved``: its name need not have the ids.

    Raises ``StoreError`` if it is not UTF-8, has another schema, is not an episode, or does not match the file name.
    """
    record = decode(data, _DECODER, path)
    refs = range(len(record.tool_schemas))
    if any(step.tool_schemas_ref not in refs for step in record.timesteps):
        raise StoreError(f"{path} refers to tool schemas that it does not contain; move it away")
    check_header(record, path, was_moved=was_moved)
    # files of earlier versions have neither
    record.models = record.models or count_models((step.endpoint, step.model) for step in record.timesteps)
    if record.agentgym is None:
        record.agentgym = agentgym_score(record.env, [step.reward for step in record.timesteps], record.reward)
    return record


def decode(data: bytes, decoder: msgspec.json.Decoder[_HeaderT], path: Path) -> _HeaderT:
    """Raises like ``decode_episode``."""
    try:
        str(data, "utf-8")
        return decoder.decode(data)
    except (ValueError, RecursionError) as exc:
        if (schema := _schema_of(data)) != SCHEMA:
            raise _unsupported_schema(path, schema) from exc
        raise StoreError(f"{path} is damaged: {exc}; restore it or move it away") from exc


def check_header(header: EpisodeHeader, path: Path, *, was_moved: bool = False) -> None:
    if header.schema != SCHEMA:
        raise _unsupported_schema(path, header.schema)
    ids = (header.batch_id, header.episode_id)
    if not all(map(is_ulid, ids)) or not (was_moved or ids == (path.parent.name, path.name.partition(".")[0])):
        raise StoreError(
            f"{path} contains episode {header.episode_id!r} of batch {header.batch_id!r}, "
            "which does not match its name; rename or move it"
        )
    if None in (header.started_at.tzinfo, getattr(header, "ended_at", header.started_at).tzinfo):
        raise StoreError(f"{path} has a time without a time zone; move it away")


def _schema_of(data: bytes) -> int:
    try:
        return msgspec.json.decode(data, type=_Version).schema
    except (ValueError, RecursionError):
        return SCHEMA


def _unsupported_schema(path: Path, schema: int) -> StoreError:
    return StoreError(
        f"{path} has schema {schema}, this version reads {SCHEMA}; read it with the version that wrote it"
    )
