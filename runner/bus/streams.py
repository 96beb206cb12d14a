"""The streams of the own broker, made as they are wanted; and which stream of a foreign one keeps a subject."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from datetime import datetime
from typing import TypeVar

import msgspec
import nats.errors
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig, StreamInfo
from nats.js.errors import NotFoundError, ServiceUnavailableError

from runner.config import StreamSettings
from runner.errors import catch_foreign
from runner.events.subjects import EVENTS_STREAM, LIVE_STREAM, LIVE_SUBJECTS

_T = TypeVar("_T")

DEFAULT_STREAMS = StreamSettings()

_LIVE_WINDOW_S = 120.0
"""Live items have no ids to remember, but a stream always has a window, of at most the age of its messages."""

_NOT_ENABLED = (None, 10039, 10076)
"""Error codes of a broker that has no JetStream, or none for us; without a code nobody has heard the question."""


def stream_configs(durable_subjects: Sequence[str], settings: StreamSettings = DEFAULT_STREAMS) -> list[StreamConfig]:
    """What the own broker keeps: durable events, and live items."""
    events = StreamConfig(
        name=EVENTS_STREAM,
        subjects=sorted(set(durable_subjects)),
        retention=RetentionPolicy.LIMITS,
        storage=StorageType.FILE,
        discard=DiscardPolicy.NEW,  # a full stream is an error that the outbox waits out, never a lost event
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
        duplicate_window=min(_LIVE_WINDOW_S, settings.live.max_age_sec),
    )


async def ensure_streams(
    js: JetStreamContext, durable_subjects: Sequence[str], settings: StreamSettings = DEFAULT_STREAMS
) -> None:
    """Make the streams of the own broker, or change them into what they should be.

    What they hold stays, but for what a shorter age makes too old; a stream of durable events that is now too large
    takes nothing more until enough has aged.

    Raises:
        nats.errors.Error: no answer; ``nats.js.errors.APIError`` when refused, e.g. as another stream has the subjects.
    """
    for config in stream_configs(durable_subjects, settings):
        await _ensure(js, config)


async def ensure_live_stream(js: JetStreamContext, settings: StreamSettings = DEFAULT_STREAMS) -> None:
    """The same for the stream of live items alone, which the own broker has lost each time it was started again."""
    await _ensure(js, _live_config(settings))


async def find_stream_or_none(js: JetStreamContext, subject: str) -> str | None:
    """The stream that keeps a subject; None when there is none, also where the bus has no JetStream, or none for us.

    Raises:
        nats.errors.Error: no answer, or none that can be read; without the permission to ask, a time-out, see
            ``Connection.permission_error``.
    """
    try:
        return await find_stream(js, subject)
    except NoJetStream:
        return None


class NoJetStream(nats.errors.Error):
    """The bus has no JetStream, or none for us."""


async def find_stream(js: JetStreamContext, subject: str) -> str | None:
    """The stream that keeps a subject, None when there is none; raises as ``find_stream_or_none``, and ``NoJetStream``."""
    try:
        return await checked_reply(_checked_name(js, subject))
    except NotFoundError:
        return None
    except nats.errors.NoRespondersError as exc:
        raise NoJetStream from exc
    except ServiceUnavailableError as exc:
        if exc.err_code not in _NOT_ENABLED:  # it is there, and cannot say it now
            raise
        raise NoJetStream from exc


async def stream_info(js: JetStreamContext, stream: str) -> StreamInfo:
    """What a stream is and holds; raises as ``checked_reply``, ``NotFoundError`` where it is not there."""
    return await checked_reply(_checked_info(js, stream))


async def checked_reply(asked: Awaitable[_T]) -> _T:
    """What JetStream answers; anyone may answer in its place, and what the client cannot read is an error of the bus.

    Raises:
        nats.errors.Error, OSError: no answer, a refusal, or nonsense.
    """
    answers: list[_T] = []
    problems: list[BaseException] = []
    with catch_foreign(problems.append):
        answers.append(await asked)
    for problem in problems:
        if isinstance(problem, nats.errors.Error | OSError):
            raise problem
        raise nats.errors.Error("what answers for JetStream is none") from problem
    return answers[0]


async def _checked_name(js: JetStreamContext, subject: str) -> str:
    """The client does not look at the types of what it is told."""
    return msgspec.convert(await js.find_stream_name_by_subject(subject), str)


async def _checked_info(js: JetStreamContext, stream: str) -> StreamInfo:
    info = await js.stream_info(stream)
    msgspec.convert([info.config.name, *(info.config.subjects or [])], list[str])
    msgspec.convert([info.state.first_seq, info.state.last_seq, info.state.messages], list[int])
    msgspec.convert(info.created, datetime | None)
    return info


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
