"""One durable event on its way to one bus: what is sent, and what the answer means."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec
import nats.errors
from nats.aio.client import Client

from runner.events.codec import headers_for
from runner.publish.outbox import Ack, OutboxEvent
from runner.util.text import mask, one_line

ACK_TIMEOUT_S = 5

TRANSPORT_ERRORS = (nats.errors.Error, OSError)
"""What a client raises when the bus does not do what was asked; time-outs are among them."""

UNKNOWN_ROUTE_TIMEOUT_S = 2

Route: TypeAlias = Literal["stream", "core", "unknown"]
"""``stream``: the bus acknowledges what it stored. ``core``: no stream keeps the subject. ``unknown``: it may not be
asked, so an acknowledgement counts, and where none comes what counts for ``core``."""

_TOO_LARGE = 10054
_MEANINGS = {10077: "the stream is full", 10023: "the broker's store is full"}
_PERMANENT = (nats.errors.MaxPayloadError, nats.errors.BadSubjectError, nats.errors.BadHeaderError)
_HEADER_LINE = len("NATS/1.0\r\n") + len("\r\n")


class PermanentFailure(msgspec.Struct, frozen=True):
    """The event can never be delivered as it is."""

    reason: str


class TransientFailure(msgspec.Struct, frozen=True):
    """It could not be delivered this time."""

    cause: str


DeliveryResult: TypeAlias = Ack | PermanentFailure | TransientFailure


class _ApiError(msgspec.Struct):
    err_code: int = 0
    description: str = "no reason given"


class _Answer(msgspec.Struct):
    stream: str | None = None
    seq: int | None = None
    error: _ApiError | None = None


_ANSWERS = msgspec.json.Decoder(_Answer)


async def deliver(client: Client, event: OutboxEvent, route: Route) -> DeliveryResult:
    """Publish an event and wait for what says that it arrived; never raises but when cancelled.

    Where no stream keeps the subject, arrived means that the server has read the event and passed it on to those who
    listen at this moment.
    """
    headers = headers_for(event.type, event.id, event.source, event.time)
    size = encoded_size(headers, event.payload)
    # The server cuts the connection for this, the client itself looks at the payload only.
    if size > client.max_payload:
        return PermanentFailure(f"{size} bytes with headers, the broker takes {client.max_payload}")
    try:
        if route == "core":
            await client.publish(event.subject, event.payload, headers=headers)
        else:
            timeout = ACK_TIMEOUT_S if route == "stream" else UNKNOWN_ROUTE_TIMEOUT_S
            try:
                answer = await client.request(event.subject, event.payload, timeout=timeout, headers=headers)
                return _delivery_result(event, answer.data)
            except (nats.errors.NoRespondersError, nats.errors.TimeoutError) as exc:
                if route == "stream":
                    return TransientFailure(
                        "no stream keeps it" if isinstance(exc, nats.errors.NoRespondersError) else shown(exc)
                    )
        await client.flush(ACK_TIMEOUT_S)
    except _PERMANENT as exc:
        return PermanentFailure(shown(exc))
    except TRANSPORT_ERRORS as exc:
        return TransientFailure(shown(exc))
    return Ack(event.id)


def _delivery_result(event: OutboxEvent, data: bytes) -> DeliveryResult:
    try:
        answer = _ANSWERS.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return TransientFailure("somebody answered with what is no acknowledgement")
    if answer.error is not None:
        cause = _MEANINGS.get(answer.error.err_code) or one_line(mask(answer.error.description))
        return PermanentFailure(cause) if answer.error.err_code == _TOO_LARGE else TransientFailure(cause)
    if answer.stream is None or answer.seq is None:
        return TransientFailure("somebody answered with what is no acknowledgement")
    return Ack(event.id, answer.stream, answer.seq)


def encoded_size(headers: Mapping[str, str], payload: bytes) -> int:
    """The bytes of a message as the server counts them."""
    texts = "".join([*headers, *headers.values()]).encode()
    return _HEADER_LINE + len(texts) + len(": \r\n") * len(headers) + len(payload)


def shown(exc: BaseException) -> str:
    """An error of the client as a cause."""
    return one_line(mask(str(exc).removeprefix("nats: "))) or type(exc).__name__


def is_cancelled() -> bool:
    """Whether this task itself is to end, and not only what it waits for; the client may swallow that."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
