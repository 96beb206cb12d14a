"""JetStream streams: creates those of the node's own broker, and finds the stream that keeps a subject on any bus."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from datetime import datetime
from typing import Final, TypeVar

import msgspec
import nats.errors
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig, StreamInfo
from nats.js.errors import NotFoundError, ServiceUnavailableError

from runner.bus.errors import BUS_ERRORS as BUS_ERRORS
from runner.config import StreamSettings
from runner.errors import catch_foreign
from runner.events.subjects import EVENTS_STREAM, LIVE_STREAM, LIVE_SUBJECTS

STREAM_NAMES_SUBJECT: Final = "$JS.API.STREAM.NAMES"
"""Subject of the request that looks up streams; a client needs the permission to publish to it."""
DEFAULT_STREAMS = StreamSettings()

_T = TypeVar("_T")
_LIVE_MESSAGE_BYTES = 256
"""Average size of a live message; the maximum number follows from it, because tiny ones need more than their size."""
_LIVE_WINDOW_S = 120.0
"""Duplicate window in seconds, which JetStream requires (at most ``max_age``) although live items have no ids."""
_NOT_ENABLED = (None, 10039, 10076)
"""Error codes of a server or an account without JetStream; None is an error without a code."""


def stream_configs(durable_subjects: Sequence[str], settings: StreamSettings = DEFAULT_STREAMS) -> list[StreamConfig]:
    events = StreamConfig(
        name=EVENTS_STREAM,
        subjects=sorted(set(durable_subjects)),
        retention=RetentionPolicy.LIMITS,
        storage=StorageType.FILE,
        discard=DiscardPolicy.NEW,  # a full stream rejects events, and the outbox retries them
        max_age=settings.events.max_age_sec,
        max_bytes=settings.events.max_bytes,
        duplicate_window=settings.events.duplicate_window_sec,
    )
    return [events, _live_config(settings)]


def _live_config(settings: StreamSettings) -> StreamConfig:
    return StreamConfig(
        name=LIVE_STREAM,
        subjects=[LIVE_SUBJECTS],
        retention=RetentionPolicy.LIMITS,
        storage=StorageType.MEMORY,
        discard=DiscardPolicy.OLD,
        max_age=settings.live.max_age_sec,
        max_bytes=settings.live.max_bytes,
        max_msgs=settings.live.max_bytes // _LIVE_MESSAGE_BYTES,
        duplicate_window=min(_LIVE_WINDOW_S, settings.live.max_age_sec),
    )


async def ensure_streams(
    js: JetStreamContext, durable_subjects: Sequence[str], settings: StreamSettings = DEFAULT_STREAMS
) -> None:
    """Create the streams of the own broker, or update their configuration.

    Messages stay, except those that are older than a reduced maximum age. A stream of durable events that exceeds a
    reduced maximum size rejects events until enough messages have expired.

    Raises:
        nats.errors.Error: no answer, or ``nats.js.errors.APIError``, e.g. when another stream has the subjects.
    """
    for config in stream_configs(durable_subjects, settings):
        await _ensure(js, config)


async def ensure_live_stream(js: JetStreamContext, settings: StreamSettings = DEFAULT_STREAMS) -> None:
    """Create or update the stream of live items, which is in memory and is lost when the broker restarts."""
    await _ensure(js, _live_config(settings))


class NoJetStream(nats.errors.Error):
    """The bus has no JetStream, or none for this account."""


async def find_stream(js: JetStreamContext, subject: str) -> str | None:
    """Return the stream that keeps a subject, None when there is none.

    Raises:
        NoJetStream: JetStream is not available.
        nats.errors.Error: there is no valid answer; a missing permission appears as a time-out, see
            ``NatsConnection.permission_error``.
    """
    try:
        return await checked_reply(_checked_name(js, subject))
    except NotFoundError:
        return None
    except nats.errors.NoRespondersError as exc:
        raise NoJetStream from exc
    except ServiceUnavailableError as exc:
        if exc.err_code not in _NOT_ENABLED:  # JetStream exists but is temporarily unavailable
            raise
        raise NoJetStream from exc


async def stream_info(js: JetStreamContext, stream: str) -> StreamInfo:
    return await checked_reply(_checked_info(js, stream))


def has_leader(info: StreamInfo) -> bool:
    """Return whether an answer has the state of its stream; in an election a cluster answers as if it were empty."""
    return info.cluster is None or info.cluster.leader is not None


def refusal_of(info: StreamInfo, size: int) -> str | None:
    """Return why a stream would refuse a message of ``size`` bytes, headers included; None if it would keep it."""
    config, state = info.config, info.state
    if 0 <= (limit := -1 if config.max_msg_size is None else config.max_msg_size) < size:
        return f"the stream {config.name} keeps messages of at most {limit:,} bytes"
    if config.discard != DiscardPolicy.NEW:
        return None
    is_full = 0 < (config.max_msgs or 0) <= state.messages or 0 < (config.max_bytes or 0) < state.bytes + size
    return f"the stream {config.name} is full" if is_full else None


async def checked_reply(request: Awaitable[_T]) -> _T:
    """Await a JetStream request and turn an unreadable answer into an error of the bus.

    Any subscriber can answer in place of JetStream, so nats-py may raise anything while it reads the answer.

    Raises:
        nats.errors.Error, OSError: no answer, an API error, or an invalid answer.
    """
    answers: list[_T] = []
    problems: list[BaseException] = []
    with catch_foreign(problems.append):
        answers.append(await request)
    for problem in problems:
        if isinstance(problem, BUS_ERRORS):
            raise problem
        raise nats.errors.Error("the JetStream answer is invalid") from problem
    return answers[0]


async def _checked_name(js: JetStreamContext, subject: str) -> str:
    # nats-py does not check the types of an answer.
    return msgspec.convert(await js.find_stream_name_by_subject(subject), str)


async def _checked_info(js: JetStreamContext, stream: str) -> StreamInfo:
    info = await js.stream_info(stream)
    msgspec.convert([info.config.name, *(info.config.subjects or [])], list[str])
    msgspec.convert([info.state.first_seq, info.state.last_seq, info.state.messages, info.state.bytes], list[int])
    msgspec.convert([info.config.max_msg_size, info.config.max_msgs, info.config.max_bytes], list[int | None])
    msgspec.convert(info.created, datetime | None)
    return info


async def _ensure(js: JetStreamContext, target: StreamConfig) -> None:
    try:
        info = await js.stream_info(str(target.name))
    except NotFoundError:
        await js.add_stream(target)
        return
    # The server adds defaults, so only the fields that are set here are compared.
    names = ("subjects", "retention", "storage", "discard", "max_age", "max_bytes", "max_msgs", "duplicate_window")
    targets = {name: getattr(target, name) for name in names if getattr(target, name) is not None}
    if any(_comparable(getattr(info.config, name)) != _comparable(value) for name, value in targets.items()):
        await js.update_stream(target)


def _comparable(value: object) -> object:
    return sorted(value) if isinstance(value, list) else value
