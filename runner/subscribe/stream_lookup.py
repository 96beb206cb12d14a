"""Which streams of a bus keep some subjects; asks, and creates nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
import nats.errors
from nats.js.api import RetentionPolicy, StreamInfo
from nats.js.errors import APIError, NotFoundError

from runner.bus.client import UNANNOUNCED_TIMEOUT_S, announces_jetstream
from runner.bus.connection import Connection
from runner.bus.streams import look_at
from runner.errors import RunnerError
from runner.subscribe.messages import Notice
from runner.subscribe.stream_reader import API_TIMEOUT_S
from runner.util.text import mask, one_line

NAMES: Final = "$JS.API.STREAM.NAMES"


class NoStreams(RunnerError):
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


async def streams_of(connection: Connection, patterns: Iterable[str]) -> list[StreamInfo]:
    """The streams that keep any subject of the patterns, whether or not they are ``readable``.

    Raises:
        NoStreams: when there are none on this bus, or they cannot be asked for.
        nats.errors.Error, OSError: when the bus is away.
    """
    names: dict[str, None] = {}
    for pattern in patterns:
        names.update(dict.fromkeys(await _names(connection, pattern)))
    return [info for name in names if (info := await _info(connection, name)) is not None]


def readable(info: StreamInfo) -> bool:
    """Whether reading a stream leaves it as it is: from a work queue messages vanish by being read."""
    return info.config.retention != RetentionPolicy.WORK_QUEUE


def left_alone(stream: str) -> Notice:
    """Says that a stream is not ``readable``."""
    why = "what it holds is left alone, as reading would take it away"
    text = f"stream {stream} is a work queue: {why}; only what comes from now on is shown"
    return Notice(kind="no_history", text=text)


async def _names(connection: Connection, pattern: str) -> list[str]:
    client = connection.client
    announced = announces_jetstream(client)
    timeout_s = API_TIMEOUT_S if announced else UNANNOUNCED_TIMEOUT_S
    try:
        answer = await client.request(NAMES, msgspec.json.encode({"subject": pattern}), timeout=timeout_s)
        names = msgspec.json.decode(answer.data, type=_Names)
    except nats.errors.NoRespondersError:
        raise NoStreams("this bus keeps no streams") from None
    except msgspec.MsgspecError:
        raise NoStreams("this bus does not say which streams it keeps") from None
    except nats.errors.TimeoutError as exc:
        if (refusal := _why_silent(connection, NAMES)) is not None:
            raise refusal from None
        if not announced and connection.connected:  # only one who subscribed to everything has heard the question
            raise NoStreams("this bus keeps no streams") from None
        raise exc from None
    if names.error is not None:
        raise NoStreams(f"this bus keeps no streams ({_shown(names.error.description)})")
    return names.streams or []


async def _info(connection: Connection, name: str) -> StreamInfo | None:
    try:
        return await look_at(connection.client.jetstream(timeout=API_TIMEOUT_S), name)
    except NotFoundError:
        return None
    except APIError as exc:
        raise NoStreams(f"stream {_shown(name)} cannot be read ({_shown(str(exc.description))})") from None
    except nats.errors.TimeoutError as exc:
        raise _why_silent(connection, f"$JS.API.STREAM.INFO.{name}") or exc from None


def _shown(text: str) -> str:
    return one_line(mask(text), 120)


def _why_silent(connection: Connection, subject: str) -> NoStreams | None:
    """A refused request looks like one without an answer."""
    if (error := connection.permission_error(subject)) is not None:
        return NoStreams(str(error), forbidden=True)
    return None
