"""Names of subjects and streams, the channel of each kind of live item, and a profile's durable subjects."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal, Self, TypeAlias

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

    @classmethod
    def of(cls, settings: object) -> Self:
        """Return those of a profile's ``nats`` section."""
        return msgspec.convert(settings, cls, from_attributes=True)

    def all(self) -> tuple[str, str, str, str]:
        return (self.episode_completed, self.eval_batch, self.eval_battery, self.field_status)

    def subject_of(self, event_type: str) -> str:
        return self.all()[DURABLE.index(event_type)]

    def type_of(self, subject: str) -> str | None:
        for named, canonical in zip((*self.all(), *DURABLE), (*DURABLE,) * 2, strict=True):
            if named == subject:
                return canonical
        return None


_TOKEN = r"(?:[^\s.*>\x00-\x1f\x7f\ud800-\udfff]+|\*)"
PATTERN = re.compile(rf"{_TOKEN}(?:\.{_TOKEN})*(?:\.>)?|>")
"""A valid subject or pattern for a subscription."""


@lru_cache(maxsize=1024)  # thousands of messages per second share a few subjects
def covers(wide: str, narrow: str) -> bool:
    """Whether the pattern ``wide`` matches every subject that ``narrow`` (a subject or pattern) matches."""
    return intersection(wide, narrow) == narrow


def covered_by_any(wide: Iterable[str], narrow: str) -> bool:
    return any(covers(pattern, narrow) for pattern in wide)


def intersection(left: str, right: str) -> str | None:
    tokens, other_tokens = left.split("."), right.split(".")
    shared: list[str] = []
    while tokens and other_tokens:
        if tokens[0] == ">":
            return ".".join(shared + other_tokens)
        if other_tokens[0] == ">":
            return ".".join(shared + tokens)
        first, second = tokens.pop(0), other_tokens.pop(0)
        if "*" not in (first, second) and first != second:
            return None
        shared.append(second if first == "*" else first)
    return None if tokens or other_tokens else ".".join(shared)


def intersections(patterns: Iterable[str], subjects: Iterable[str]) -> list[str]:
    """Return the intersections of patterns and subjects, without those that another intersection covers."""
    others = list(subjects)
    pairs = ((pattern, subject) for pattern in patterns for subject in others)
    shared = dict.fromkeys(part for pattern, subject in pairs if (part := intersection(pattern, subject)))
    return [part for part in shared if not covered_by_any(shared.keys() - {part}, part)]


def are_disjoint(patterns: list[str]) -> bool:
    return all(intersection(a, b) is None for number, a in enumerate(patterns) for b in patterns[:number])
