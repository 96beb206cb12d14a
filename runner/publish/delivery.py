"""Delivery of durable events to one bus: ``deliver`` publishes an event and classifies the answer.

``StreamRoutes`` looks up the streams of the subjects and detects streams that lost acknowledged events.
``DeliveryOptions`` are the time limits and sizes of a publisher.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext

from runner.bus.errors import error_text
from runner.bus.hardened_client import UNADVERTISED_TIMEOUT_S, advertises_jetstream
from runner.bus.streams import (
    BUS_ERRORS,
    STREAM_NAMES_SUBJECT,
    NoJetStream,
    checked_reply,
    ensure_streams,
    find_stream,
    has_leader,
    stream_info,
)
from runner.events.codec import headers_for
from runner.events.subjects import EVENTS_STREAM
from runner.publish.outbox import Ack, Outbox, OutboxEvent
from runner.publish.sink import SinkConnection, broker_name
from runner.util.display_text import mask, one_line

logger = logging.getLogger(__name__)

Route: TypeAlias = Literal["stream", "core", "unknown"]
"""``stream``: a stream keeps the subject and acknowledges events. ``core``: no stream keeps it. ``unknown``: this
account may not look up streams, so an event is sent as to a stream first, and as ``core`` without an answer."""

# Codes of nats-server's JetStream errors (server/errors.json).
_TOO_LARGE = 10054
_MEANINGS = {10077: "the stream is full", 10023: "the broker's store is full"}
_PERMANENT = (nats.errors.MaxPayloadError, nats.errors.BadSubjectError, nats.errors.BadHeaderError)
_HEADER_FRAME_BYTES = len("NATS/1.0\r\n") + len("\r\n")


class DeliveryOptions(msgspec.Struct, frozen=True):
    """Time limits and sizes of the delivery to each sink.

    Args:
        ack_timeout_s: seconds to wait for the acknowledgement of a stream, or of the server for events without one.
        unknown_route_timeout_s: seconds to wait for an acknowledgement where a stream may keep the subject or not.
        lookup_timeout_s: seconds to wait for each answer of JetStream about its streams.
        missing_jetstream_timeout_s: seconds to wait for the JetStream of a broker that had streams before; then events
            are sent without a stream.
        poll_s: seconds between two reads of the outbox, because other processes also add events.
        batch_size: maximum number of events that are read from the outbox at once.
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
    reason: str


class TransientFailure(msgspec.Struct, frozen=True):
    cause: str


DeliveryResult: TypeAlias = Ack | PermanentFailure | TransientFailure


class _ApiError(msgspec.Struct):
    err_code: int = 0
    description: str = "no reason given"


class _PublishAnswer(msgspec.Struct):
    stream: str = ""
    seq: Annotated[int, msgspec.Meta(le=2**63 - 1)] = 0
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
                # unknown route: the request has already published the event, as core
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
    if not answer.stream or answer.seq < 1:
        return TransientFailure("the answer is not an acknowledgement")
    return Ack(event.id, answer.stream, answer.seq)


def encoded_size(headers: Mapping[str, str], payload: bytes) -> int:
    """In bytes, as the server counts them."""
    texts = "".join([*headers, *headers.values()]).encode()
    return _HEADER_FRAME_BYTES + len(texts) + len(": \r\n") * len(headers) + len(payload)


def is_cancelled() -> bool:
    """Whether the current task has been cancelled; nats-py may swallow the ``CancelledError``."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class StreamRoutes:
    """Routes of one sink's subjects as last looked up; creates missing streams on the own broker.

    Args:
        outbox: outbox whose events become pending again when a stream has lost them.
        subjects: durable subjects, which are looked up even without pending events.
        key: key of the sink in the outbox, see ``sink_key``.
    """

    def __init__(
        self,
        sink_connection: SinkConnection,
        outbox: Outbox,
        subjects: Iterable[str],
        key: str,
        options: DeliveryOptions = DEFAULT_DELIVERY,
    ) -> None:
        self._sink_connection = sink_connection
        self._key = key
        self._owned = sink_connection.sink.owned
        self._outbox = outbox
        self._subjects = set(subjects)
        self._options = options
        self._routes: dict[str, Route] = {}
        self._streams: dict[str, str | None] = {}
        self._missing_since: float | None = None

    def forget(self) -> None:
        self._routes.clear()

    def route_of(self, subject: str) -> Route:
        """The subject must have been passed to ``learn``."""
        return self._routes[subject]

    def checked(self, subject: str, result: DeliveryResult) -> DeliveryResult:
        """Return the result of a delivery; the answer of another stream than that of the subject is none."""
        expected = self._streams.get(subject)
        if isinstance(result, Ack) and None not in (expected, result.stream) and result.stream != expected:
            streams = (one_line(mask(each or ""), 80) for each in (result.stream, expected))
            return TransientFailure("stream {} has answered in place of {}".format(*streams))
        return result

    async def learn(self, client: Client, subjects: Iterable[str]) -> None:
        """Look up all subjects if one is unknown, and make events pending again that a stream has lost.

        Raises:
            nats.errors.Error, OSError: the bus does not answer, or its JetStream is missing that had streams before.
            StoreError: the outbox cannot be read or written.
        """
        self._subjects.update(subjects)
        if self._routes.keys() >= self._subjects:
            return
        js = client.jetstream(timeout=self._options.lookup_timeout_s)
        if self._owned:
            await ensure_streams(js, sorted(self._subjects), self._sink_connection.sink.streams)
            streams: dict[str, str | None] = dict.fromkeys(self._subjects, EVENTS_STREAM)
        else:
            try:
                streams = await self._find_streams(client)
            except BUS_ERRORS:
                if self._sink_connection.publish_denial(STREAM_NAMES_SUBJECT) is None:
                    raise
                self._routes, self._streams = dict.fromkeys(self._subjects, "unknown"), {}
                return
        self._streams = streams
        for stream in {stream for stream in streams.values() if stream is not None}:
            await self._requeue_lost(js, stream)
        self._routes = {subject: "core" if stream is None else "stream" for subject, stream in streams.items()}

    async def _find_streams(self, client: Client) -> dict[str, str | None]:
        advertised = advertises_jetstream(client)
        js = client.jetstream(timeout=self._options.lookup_timeout_s if advertised else UNADVERTISED_TIMEOUT_S)
        try:
            streams = {subject: await find_stream(js, subject) for subject in sorted(self._subjects)}
        except NoJetStream:
            return await self._without_jetstream()
        except nats.errors.TimeoutError as exc:
            if advertised:  # a stream may keep the subject, so only its acknowledgement counts as delivery
                raise nats.errors.Error("its JetStream does not answer") from exc
            if self._sink_connection.publish_denial(STREAM_NAMES_SUBJECT) is not None:
                raise  # ``learn`` turns it into "unknown"
            return await self._without_jetstream()  # only a subscriber to ">" received the request
        self._missing_since = None
        return streams

    async def _without_jetstream(self) -> dict[str, str | None]:
        """Return that no stream keeps a subject.

        Raises ``nats.errors.Error`` for some time if there were streams before: a restarted server, or one behind it,
        may not have loaded them yet.
        """
        now = time.monotonic()
        self._missing_since = now if self._missing_since is None else self._missing_since
        is_recent = now - self._missing_since < self._options.missing_jetstream_timeout_s
        if is_recent and await asyncio.to_thread(self._outbox.has_known_stream, self._key):
            raise nats.errors.Error("its JetStream is missing")
        return dict.fromkeys(self._subjects)

    async def _last_kept(self, js: JetStreamContext, stream: str, last_seq: int) -> int:
        """Return the last sequence up to which a stream has the events that it acknowledged.

        A store that was replaced by an older copy gives the sequences of what it lost to other messages, so the newest
        events are looked at. What cannot be read, as it has expired or may not be, counts as kept.
        """
        acknowledged = await asyncio.to_thread(self._outbox.acknowledged, self._key, stream)
        known = [(seq, event_id) for seq, event_id in acknowledged if seq <= last_seq]
        if not known or await self._is_kept(js, stream, *known[-1]):
            return last_seq
        first, end = 0, len(known) - 1  # the first one that is lost is in this range
        while first < end:
            middle = (first + end) // 2
            if await self._is_kept(js, stream, *known[middle]):
                first = middle + 1
            else:
                end = middle
        return known[first][0] - 1

    async def _is_kept(self, js: JetStreamContext, stream: str, seq: int, event_id: str) -> bool:
        try:
            message = await checked_reply(js.get_msg(stream, seq))
        except BUS_ERRORS:
            return True
        return (message.headers or {}).get("ce-id") == event_id

    async def _requeue_lost(self, js: JetStreamContext, stream: str) -> None:
        try:
            info = await stream_info(js, stream)
        except BUS_ERRORS as exc:
            if self._owned:
                raise
            # An external broker may only allow publishing; then events that its stream loses are not sent again.
            logger.info("%s does not show its stream %s: %s", broker_name(self._key), stream, error_text(exc))
            return
        if not has_leader(info):
            raise nats.errors.Error(f"its stream {stream} has no leader")
        last_seq = await self._last_kept(js, stream, info.state.last_seq)
        lost = await asyncio.to_thread(
            self._outbox.reconcile_stream, self._key, stream, created=info.created, last_seq=last_seq
        )
        if lost:
            logger.warning("%s gets the %d events again that %s lost", broker_name(self._key), lost, stream)
