"""Names on the bus: subjects, streams, and which live item travels on which subject."""

from __future__ import annotations

from typing import Literal, TypeAlias

EPISODE_COMPLETED = "agentgym.episode.completed.v1"
BATCH_COMPLETED = "agentgym.eval.batch.completed.v1"
FIELD_STATUS = "agentgym.field.status.v1"
DURABLE = (EPISODE_COMPLETED, BATCH_COMPLETED, FIELD_STATUS)
"""The canonical durable subjects, also the types of their events; a profile may publish them under other names."""

EVENTS_STREAM = "AGENTGYM_EVENTS"
LIVE_STREAM = "AGENTGYM_LIVE"
LIVE_SUBJECTS = "agentgym.live.>"

LiveChannel: TypeAlias = Literal["episode", "timestep", "token", "span", "health", "batch"]
LIVE_CHANNELS: tuple[LiveChannel, ...] = ("episode", "timestep", "token", "span", "health", "batch")

_CHANNELS: dict[str, LiveChannel] = {
    "timestep": "timestep",
    "token": "token",
    "span": "span",
    "batch.progress": "batch",
    "env.health": "health",
    "model.health": "health",
    "host": "health",
    "heartbeat": "health",
}


def channel_of(kind: str) -> LiveChannel:
    """The channel that live items of a kind travel on."""
    return _CHANNELS.get(kind, "episode")


def live_subject(channel: LiveChannel, node: str) -> str:
    """Where a node publishes live items of a channel."""
    return f"agentgym.live.{channel}.v1.{node}"


def control_subject(node: str) -> str:
    """Where a node answers requests."""
    return f"agentgym.control.{node}"
