"""Names of subjects and streams, the channel of each kind of live item, and a profile's durable subjects."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

EPISODE_COMPLETED = "agentgym.episode.completed.v1"
BATCH_COMPLETED = "agentgym.eval.batch.completed.v1"
BATTERY_COMPLETED = "agentgym.eval.battery.completed.v1"
FIELD_STATUS = "agentgym.field.status.v1"
DURABLE = (EPISODE_COMPLETED, BATCH_COMPLETED, BATTERY_COMPLETED, FIELD_STATUS)
"""Canonical durable subjects, which are also the event types; a profile may publish under other subjects."""

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
    "worker": "batch",
    "queue": "batch",
    "env.health": "health",
    "model.health": "health",
    "model.metrics": "health",
    "host": "health",
    "machine": "health",
    "heartbeat": "health",
}


def channel_of(kind: str) -> LiveChannel:
    return _CHANNELS.get(kind, "episode")


def live_subject(channel: LiveChannel, node: str) -> str:
    return f"agentgym.live.{channel}.v1.{node}"


def control_subject(node: str) -> str:
    return f"agentgym.control.{node}"


class DurableNames(msgspec.Struct, frozen=True, kw_only=True):
    """Subjects of the durable events in a profile; the canonical ones by default."""

    episode_completed: str = EPISODE_COMPLETED
    eval_batch: str = BATCH_COMPLETED
    eval_battery: str = BATTERY_COMPLETED
    field_status: str = FIELD_STATUS

    def all(self) -> tuple[str, str, str, str]:
        return (self.episode_completed, self.eval_batch, self.eval_battery, self.field_status)

    def subject_of(self, event_type: str) -> str:
        return self.all()[DURABLE.index(event_type)]

    def type_of(self, subject: str) -> str | None:
        for named, canonical in zip((*self.all(), *DURABLE), (*DURABLE,) * 2, strict=True):
            if named == subject:
                return canonical
        return None
