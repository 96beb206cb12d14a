"""Runners and episode contexts of the fake environments and agents."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from runner.episode.factory import EpisodeContext, EpisodeFactory
from runner.tracing import SpanList, Tracer
from runner.types import EpisodeEvent, EpisodeHeader, Limits


def make_runner(env: str, agent: str = "UpAgent", limits: Limits | None = None, **env_args: object) -> EpisodeFactory:
    """Return a runner of an environment and an agent of ``tests.support.fakes``."""
    return EpisodeFactory(
        env_cfg={"_target_": f"tests.support.fakes.{env}", **env_args},
        agent_cfg={"_target_": f"tests.support.fakes.{agent}"},
        limits=limits,
    )


def make_context(
    events: list[EpisodeEvent] | None = None,
    spans: SpanList | None = None,
    **fields: Any,  # noqa: ANN401
) -> EpisodeContext:
    header = EpisodeHeader(episode_id="e1", batch_id="b1", env="Counter", started_at=datetime.now(UTC))
    if events is not None:
        fields["emit"] = events.append
    return EpisodeContext(header=header, tracer=Tracer(collectors=[spans]) if spans else None, **fields)
