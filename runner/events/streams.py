"""The streams of the own broker, made as they are wanted; and which stream of a foreign one keeps a subject."""

from __future__ import annotations

from collections.abc import Sequence

import nats.errors
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import NotFoundError, ServiceUnavailableError

from runner.events.subjects import EVENTS_STREAM, LIVE_STREAM, LIVE_SUBJECTS

HOUR_S = 3600.0
MIB = 1 << 20
EVENTS_BYTES = 1024 * MIB
LIVE_BYTES = 256 * MIB


def stream_configs(durable_subjects: Sequence[str]) -> list[StreamConfig]:
    """What the own broker keeps: durable events for 30 days, live items for an hour."""
    events = StreamConfig(
        name=EVENTS_STREAM,
        subjects=sorted(set(durable_subjects)),
        retention=RetentionPolicy.LIMITS,
        storage=StorageType.FILE,
        discard=DiscardPolicy.NEW,  # a full stream is an error that the outbox waits out, never a lost event
        max_age=30 * 24 * HOUR_S,
        max_bytes=EVENTS_BYTES,
        duplicate_window=600.0,
    )
    live = StreamConfig(
        name=LIVE_STREAM,
        subjects=[LIVE_SUBJECTS],
        retention=RetentionPolicy.LIMITS,
        storage=StorageType.MEMORY,
        discard=DiscardPolicy.OLD,
        max_age=HOUR_S,
        max_bytes=LIVE_BYTES,
        duplicate_window=120.0,
    )
    return [events, live]


async def ensure_streams(js: JetStreamContext, durable_subjects: Sequence[str]) -> None:
    """Make the streams of the own broker, or change them into what they should be; what they hold stays.

    Raises:
        nats.errors.Error: no answer; ``nats.js.errors.APIError`` when refused, e.g. as another stream has the subjects.
    """
    for config in stream_configs(durable_subjects):
        await _ensure(js, config)


async def stream_of(js: JetStreamContext, subject: str) -> str | None:
    """The stream that keeps a subject; None when there is none, also where the bus has no JetStream.

    Raises:
        nats.errors.Error: no answer; without the permission to ask, a time-out, see ``Connection.permission_error``.
    """
    try:
        return await js.find_stream_name_by_subject(subject)
    except (NotFoundError, ServiceUnavailableError, nats.errors.NoRespondersError):
        return None


async def _ensure(js: JetStreamContext, wanted: StreamConfig) -> None:
    try:
        info = await js.stream_info(str(wanted.name))
    except NotFoundError:
        await js.add_stream(wanted)
        return
    if not _is_as_wanted(info.config, wanted):
        await js.update_stream(wanted)


def _is_as_wanted(config: StreamConfig, wanted: StreamConfig) -> bool:
    """Compared in what is set here; the server adds defaults of its own."""
    names = ("subjects", "retention", "storage", "discard", "max_age", "max_bytes", "duplicate_window")
    return all(_plain(getattr(config, name)) == _plain(getattr(wanted, name)) for name in names)


def _plain(value: object) -> object:
    return sorted(value) if isinstance(value, list) else value
