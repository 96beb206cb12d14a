"""Delivery of one durable event to one bus: ``deliver`` publishes it and classifies the answer.

``DeliveryOptions`` are the time limits and sizes of a publisher.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import msgspec
import nats.errors
from nats.aio.client import Client

from runner.bus.streams import BUS_ERRORS
from runner.events.codec import headers_for
from runner.publish.outbox import Ack, OutboxEvent
from runner.util.display_text import mask, one_line

Route: TypeAlias = Literal["stream", "core", "unknown"]
"""``stream``: a stream keeps the subject and acknowledges events. ``core``: no stream keeps it. ``unknown``: this
account may not look up streams, so an event is sent as to a stream first, and as ``core`` without an answer."""

_TOO_LARGE = 10054
_MEANINGS = {10077: "the stream is full", 10023: "the broker's store is full"}
_PERMANENT = (nats.errors.MaxPayloadError, nats.errors.BadSubjectError, nats.errors.BadHeaderError)
_HEADER_LINE = len("NATS/1.0\r\n") + len("\r\n")


@dataclass(frozen=True)
class DeliveryOptions:
    """Time limits and sizes of the delivery to each sink.

    Args:
        ack_timeout_s: seconds to wait for the acknowledgement of an event.
        unknown_route_timeout_s: seconds to wait for the acknowledgement on the route ``unknown``.
        lookup_timeout_s: seconds to wait for each answer about streams.
        missing_jetstream_timeout_s: seconds to wait for the JetStream of a broker that had streams before; then events
            are sent without a stream.
        poll_s: seconds between two reads of the outbox, because other processes also add events.
        batch_size: maximum number of events read, sent and marked together.
        max_in_flight: maximum number of sent events without an acknowledgement.
    """

    ack_timeout_s: int = 5
    unknown_route_timeout_s: float = 2.0
    lookup_timeout_s: float = 2.0
    missing_jetstream_timeout_s: float = 300.0
    poll_s: float = 1.0
    batch_size: int = 1000
    max_in_flight: int = 256


DEFAULT_DELIVERY: Final = DeliveryOptions()


class PermanentFailure(msgspec.Struct, frozen=True):
    """The event can never be delivered in its current form."""

    reason: str


class TransientFailure(msgspec.Struct, frozen=True):
    """The event could not be delivered; a later attempt may succeed."""

    cause: str


DeliveryResult: TypeAlias = Ack | PermanentFailure | TransientFailure


class _ApiError(msgspec.Struct):
    err_code: int = 0
    description: str = "no reason given"


class _PublishAnswer(msgspec.Struct):
    stream: str | None = None
    seq: int | None = None
    error: _ApiError | None = None


_PUBLISH_ANSWER = msgspec.json.Decoder(_PublishAnswer)


async def deliver(
    client: Client, event: OutboxEvent, route: Route, options: DeliveryOptions = DEFAULT_DELIVERY
) -> DeliveryResult:
    """Publish an event and wait for its acknowledgement; raises only when cancelled.

    Without a stream, an event counts as delivered when the server has processed it, so only current subscribers get
    it.
    """
    headers = headers_for(event.type, event.id, event.source, event.time)
    size = encoded_size(headers, event.payload)
    # The server closes the connection for this, and nats-py checks only the payload.
    if size > client.max_payload:
        return PermanentFailure(f"{size} bytes with headers; the broker's limit is {client.max_payload}")
    try:
        if route == "core":
            await client.publish(event.subject, event.payload, headers=headers)
        else:
            timeout = options.ack_timeout_s if route == "stream" else options.unknown_route_timeout_s
            try:
                answer = await client.request(event.subject, event.payload, timeout=timeout, headers=headers)
                return _delivery_result(event, answer.data)
            except (nats.errors.NoRespondersError, nats.errors.TimeoutError) as exc:
                if route == "stream":
                    return TransientFailure(
                        "no stream keeps it" if isinstance(exc, nats.errors.NoRespondersError) else error_text(exc)
                    )
        await client.flush(options.ack_timeout_s)
    except _PERMANENT as exc:
        return PermanentFailure(error_text(exc))
    except BUS_ERRORS as exc:
        return TransientFailure(error_text(exc))
    return Ack(event.id)


def _delivery_result(event: OutboxEvent, data: bytes) -> DeliveryResult:
    try:
        answer = _PUBLISH_ANSWER.decode(data)
    except (ValueError, RecursionError):  # also for invalid UTF-8 and for deep nesting
        return TransientFailure("the answer is not an acknowledgement")
    if answer.error is not None:
        cause = _MEANINGS.get(answer.error.err_code) or one_line(mask(answer.error.description))
        return PermanentFailure(cause) if answer.error.err_code == _TOO_LARGE else TransientFailure(cause)
    if answer.stream is None or answer.seq is None:
        return TransientFailure("the answer is not an acknowledgement")
    return Ack(event.id, answer.stream, answer.seq)


def encoded_size(headers: Mapping[str, str], payload: bytes) -> int:
    """Return the size of a message in bytes as the server counts it."""
    texts = "".join([*headers, *headers.values()]).encode()
    return _HEADER_LINE + len(texts) + len(": \r\n") * len(headers) + len(payload)


def error_text(exc: BaseException) -> str:
    """Return a client error as one line without secrets."""
    return one_line(mask(str(exc).removeprefix("nats: "))) or type(exc).__name__


def is_cancelled() -> bool:
    """Whether the current task has been cancelled; nats-py may swallow the ``CancelledError``."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
