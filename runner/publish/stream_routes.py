"""Streams of a sink's subjects: looks them up, and detects streams that lost acknowledged events."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable

import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext

from runner.bus.hardened_client import UNADVERTISED_TIMEOUT_S, advertises_jetstream
from runner.bus.streams import BUS_ERRORS, STREAM_NAMES_SUBJECT, NoJetStream, ensure_streams, find_stream, stream_info
from runner.events.subjects import EVENTS_STREAM
from runner.publish.delivery import DEFAULT_DELIVERY, DeliveryOptions, Route, error_text
from runner.publish.outbox import Outbox
from runner.publish.sink import SinkConnection

logger = logging.getLogger(__name__)


class StreamRoutes:
    """Routes of one sink's subjects as last looked up; creates missing streams on the own broker.

    Args:
        sink_connection: connection to the sink.
        outbox: outbox whose events become pending again when a stream has lost them.
        subjects: durable subjects, which are looked up even without pending events.
        sink: key of the sink in the outbox, see ``sink_key``.
        options: time limits of the lookups.
    """

    def __init__(
        self,
        sink_connection: SinkConnection,
        outbox: Outbox,
        subjects: Iterable[str],
        sink: str,
        options: DeliveryOptions = DEFAULT_DELIVERY,
    ) -> None:
        """Create the routes; ``learn`` looks them up."""
        self._sink_connection = sink_connection
        self._sink = sink
        self._owned = sink_connection.sink.owned
        self._outbox = outbox
        self._subjects = set(subjects)
        self._options = options
        self._routes: dict[str, Route] = {}
        self._missing_since: float | None = None

    def forget(self) -> None:
        """Discard all routes, because the server or its streams may have changed."""
        self._routes.clear()

    def route_of(self, subject: str) -> Route:
        """Return the route of a subject that was passed to ``learn``."""
        return self._routes[subject]

    async def learn(self, client: Client, subjects: Iterable[str]) -> None:
        """Look up unknown subjects, and make events pending again that a stream has lost.

        Raises:
            nats.errors.Error, OSError: the bus does not answer.
            StoreError: the outbox cannot be used.
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
                self._routes = dict.fromkeys(self._subjects, "unknown")
                return
        for stream in {stream for stream in streams.values() if stream is not None}:
            await self._compare(js, stream)
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
                raise
            return await self._without_jetstream()  # only a subscriber to ">" received the request
        self._missing_since = None
        return streams

    async def _without_jetstream(self) -> dict[str, str | None]:
        """Wait for streams that existed before: a restarted server, or one behind it, may not have loaded them yet."""
        now = time.monotonic()
        self._missing_since = now if self._missing_since is None else self._missing_since
        is_recent = now - self._missing_since < self._options.missing_jetstream_timeout_s
        if is_recent and await asyncio.to_thread(self._outbox.has_known_stream, self._sink):
            raise nats.errors.Error("its JetStream is missing")
        return dict.fromkeys(self._subjects)

    async def _compare(self, js: JetStreamContext, stream: str) -> None:
        try:
            info = await stream_info(js, stream)
        except BUS_ERRORS as exc:
            if self._owned:
                raise
            # An external broker may only allow publishing; then events that its stream loses are not sent again.
            logger.info("stream %s of sink %s cannot be inspected: %s", stream, self._sink, error_text(exc))
            return
        lost = await asyncio.to_thread(
            self._outbox.reconcile_stream, self._sink, stream, created=info.created, last_seq=info.state.last_seq
        )
        if lost:
            logger.warning("stream %s of sink %s lost %d events; sending them again", stream, self._sink, lost)
