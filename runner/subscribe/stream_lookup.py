"""Which streams of a bus keep some subjects; asks, and creates nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
import nats.errors
from nats.js.api import RetentionPolicy, StreamInfo
from nats.js.errors import APIError, NotFoundError

from runner.bus.client import UNADVERTISED_TIMEOUT_S, advertises_jetstream
from runner.bus.connection import NatsConnection
from runner.bus.streams import stream_info
from runner.errors import RunnerError
from runner.subscribe.messages import Notice
from runner.subscribe.stream_reader import API_TIMEOUT_S
from runner.util.text import mask, one_line

NAMES: Final = "$JS.API.STREAM.NAMES"


class StreamsUnavailable(RunnerError):
    """Streams cannot be looked for; ``forbidden``: because that is not allowed."""

    def __init__(self, message: str, *, forbidden: bool = False) -> None:
        """Take what is said about it."""
        super().__init__(message)
        self.forbidden = forbidden


class _Error(msgspec.Struct):
    description: str = "an error without a description"


class _Names(msgspec.Struct):
    streams: list[str] | None = None
    error: _Error | None = None


async def find_streams(connection: NatsConnection, patterns: Iterable[str]) -> list[StreamInfo]:
    """The streams that keep any subject of the patterns, whether or not they are ``is_readable``.

    Raises:
        NoStreams: when there are none on this bus, or they cannot be asked for.
        nats.errors.Error, OSError: when the bus is away.
    """
    names: dict[str, None] = {}
    for pattern in patterns:
        names.update(dict.fromkeys(await _names(connection, pattern)))
    return [info for name in names if (info := await _info(connection, name)) is not None]


def is_readable(info: StreamInfo) -> bool:
    """Whether reading a stream leaves it as it is: from a work queue messages vanish by being read."""
    return info.config.retention != RetentionPolicy.WORK_QUEUE


def work_queue_notice(stream: str) -> Notice:
    """Says that a stream is not ``is_readable``."""
    why = "what it holds is left alone, as reading would take it away"
    text = f"stream {stream} is a work queue: {why}; only what comes from now on is shown"
    return Notice(kind="no_history", text=text)


async def _names(connection: NatsConnection, pattern: str) -> list[str]:
    client = connection.client
    announced = advertises_jetstream(client)
    timeout_s = API_TIMEOUT_S if announced else UNADVERTISED_TIMEOUT_S
    try:
        answer = await client.request(NAMES, msgspec.json.encode({"subject": pattern}), timeout=timeout_s)
        names = msgspec.json.decode(answer.data, type=_Names)
    except nats.errors.NoRespondersError:
        raise StreamsUnavailable("this bus keeps no streams") from None
    except msgspec.MsgspecError:
        raise StreamsUnavailable("this bus does not say which streams it keeps") from None
    except nats.errors.TimeoutError as exc:
        if (refusal := _permission_refusal(connection, NAMES)) is not None:
            raise refusal from None
        if not announced and connection.connected:  # only one who subscribed to everything has heard the question
            raise StreamsUnavailable("this bus keeps no streams") from None
        raise exc from None
    if names.error is not None:
        raise StreamsUnavailable(f"this bus keeps no streams ({_shown(names.error.description)})")
    return names.streams or []


async def _info(connection: NatsConnection, name: str) -> StreamInfo | None:
    try:
        return await stream_info(connection.client.jetstream(timeout=API_TIMEOUT_S), name)
    except NotFoundError:
        return None
    except APIError as exc:
        raise StreamsUnavailable(f"stream {_shown(name)} cannot be read ({_shown(str(exc.description))})") from None
    except nats.errors.TimeoutError as exc:
        raise _permission_refusal(connection, f"$JS.API.STREAM.INFO.{name}") or exc from None


def _shown(text: str) -> str:
    return one_line(mask(text), 120)


def _permission_refusal(connection: NatsConnection, subject: str) -> StreamsUnavailable | None:
    """A refused request looks like one without an answer."""
    if (error := connection.permission_error(subject)) is not None:
        return StreamsUnavailable(str(error), forbidden=True)
    return None
