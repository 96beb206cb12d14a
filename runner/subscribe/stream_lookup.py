"""Lookup of the streams that keep given subjects; it changes nothing on the bus."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import nats.errors
from nats.js.api import RetentionPolicy, StreamInfo
from nats.js.errors import APIError, NotFoundError

from runner.bus.connection import NatsConnection
from runner.bus.hardened_client import UNADVERTISED_TIMEOUT_S, advertises_jetstream
from runner.bus.streams import STREAM_NAMES_SUBJECT, stream_info
from runner.errors import RunnerError
from runner.subscribe.messages import Notice
from runner.subscribe.stream_reader import API_TIMEOUT_S
from runner.util.display_text import mask, one_line


class StreamsUnavailable(RunnerError):
    """The bus has no streams, or they cannot be looked up; ``forbidden``: a permission is missing."""

    published_error_type = "no_streams"

    def __init__(self, message: str, *, forbidden: bool = False) -> None:
        super().__init__(message)
        self.forbidden = forbidden


class _Error(msgspec.Struct):
    description: str = "an error without a description"


class _Names(msgspec.Struct):
    streams: list[str] | None = None
    error: _Error | None = None


async def find_streams(connection: NatsConnection, patterns: Iterable[str]) -> list[StreamInfo]:
    """Return the streams that keep any subject of the patterns, including those that are not ``is_readable``.

    Raises:
        StreamsUnavailable: this bus has no streams, or they cannot be looked up.
        nats.errors.Error, OSError: the bus is not connected.
    """
    names: dict[str, None] = {}
    for pattern in patterns:
        names.update(dict.fromkeys(await _names(connection, pattern)))
    return [info for name in names if (info := await _info(connection, name)) is not None]


def is_readable(info: StreamInfo) -> bool:
    """Whether reading leaves a stream unchanged; a work queue deletes the messages that are read."""
    return info.config.retention != RetentionPolicy.WORK_QUEUE


def work_queue_notice(stream: str) -> Notice:
    text = f"stream {stream} is a work queue, and reading would empty it; showing only new messages"
    return Notice(kind="no_history", text=text)


async def _names(connection: NatsConnection, pattern: str) -> list[str]:
    client = connection.client
    advertised = advertises_jetstream(client)
    timeout_s = API_TIMEOUT_S if advertised else UNADVERTISED_TIMEOUT_S
    try:
        request = msgspec.json.encode({"subject": pattern})
        answer = await client.request(STREAM_NAMES_SUBJECT, request, timeout=timeout_s)
        names = msgspec.json.decode(answer.data, type=_Names)
    except nats.errors.NoRespondersError:
        raise StreamsUnavailable("this bus has no streams") from None
    except (ValueError, RecursionError):  # also for invalid UTF-8 and for deep nesting
        raise StreamsUnavailable("this bus gave no valid list of its streams") from None
    except nats.errors.TimeoutError as exc:
        if (denial := _permission_denial(connection, STREAM_NAMES_SUBJECT)) is not None:
            raise denial from None
        if not advertised and connection.connected:  # only a subscriber to ">" got the request
            raise StreamsUnavailable("this bus has no streams") from None
        raise exc from None
    if names.error is not None:
        raise StreamsUnavailable(f"this bus has no streams ({_shown(names.error.description)})")
    return names.streams or []


async def _info(connection: NatsConnection, name: str) -> StreamInfo | None:
    try:
        return await stream_info(connection.client.jetstream(timeout=API_TIMEOUT_S), name)
    except NotFoundError:
        return None
    except APIError as exc:
        raise StreamsUnavailable(f"stream {_shown(name)} cannot be read ({_shown(str(exc.description))})") from None
    except nats.errors.TimeoutError as exc:
        raise _permission_denial(connection, f"$JS.API.STREAM.INFO.{name}") or exc from None


def _shown(text: str) -> str:
    return one_line(mask(text), 120)


def _permission_denial(connection: NatsConnection, subject: str) -> StreamsUnavailable | None:
    # A denied request looks like one without an answer.
    if (error := connection.permission_error(subject)) is not None:
        return StreamsUnavailable(str(error), forbidden=True)
    return None
