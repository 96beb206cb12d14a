"""Which stream of a bus keeps a subject, and whether it still holds what it acknowledged."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable

import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext

from runner.bus.client import UNADVERTISED_TIMEOUT_S, advertises_jetstream
from runner.bus.streams import NoJetStream, ensure_streams, find_stream, stream_info
from runner.events.subjects import EVENTS_STREAM
from runner.publish.delivery import TRANSPORT_ERRORS, Route, shown
from runner.publish.outbox import Outbox
from runner.publish.sink import SinkConnection

logger = logging.getLogger(__name__)

LOOKUP_TIMEOUT_S = 2.0

PATIENCE_S = 300.0
"""Seconds in which nothing has arrived at a broker that had streams and has no JetStream now."""

NAMES = "$JS.API.STREAM.NAMES"


class StreamRoutes:
    """The streams of one sink as last looked up; on the own broker they are made where they are missing.

    Args:
        sink_connection: the sink and the connection to it.
        outbox: told of what the streams hold.
        subjects: the durable ones, looked up also while nothing waits for them.
        place: the sink's name in the outbox, see ``sink_key``.
    """

    def __init__(self, sink_connection: SinkConnection, outbox: Outbox, subjects: Iterable[str], place: str) -> None:
        """Know nothing yet."""
        self._sink_connection = sink_connection
        self._sink = place
        self._owned = sink_connection.sink.owned
        self._outbox = outbox
        self._wanted = set(subjects)
        self._routes: dict[str, Route] = {}
        self._missed_since: float | None = None

    def forget(self) -> None:
        """Look everything up again: the server may be another one by now, or its streams may be."""
        self._routes.clear()

    def of(self, subject: str) -> Route:
        """How to publish on a subject that was learned."""
        return self._routes[subject]

    async def learn(self, client: Client, subjects: Iterable[str]) -> None:
        """Look up what is not known, and let events wait again that a stream has lost.

        Raises:
            nats.errors.Error, OSError: when the bus does not answer.
            StoreError: when the outbox cannot be used.
        """
        self._wanted.update(subjects)
        if self._routes.keys() >= self._wanted:
            return
        js = client.jetstream(timeout=LOOKUP_TIMEOUT_S)
        if self._owned:
            await ensure_streams(js, sorted(self._wanted), self._sink_connection.sink.streams)
            streams: dict[str, str | None] = dict.fromkeys(self._wanted, EVENTS_STREAM)
        else:
            try:
                streams = await self._ask(client)
            except TRANSPORT_ERRORS:
                if self._sink_connection.publish_refusal(NAMES) is None:
                    raise
                self._routes = dict.fromkeys(self._wanted, "unknown")
                return
        for stream in {stream for stream in streams.values() if stream is not None}:
            await self._compare(js, stream)
        self._routes = {subject: "core" if stream is None else "stream" for subject, stream in streams.items()}

    async def _ask(self, client: Client) -> dict[str, str | None]:
        """The stream of each wanted subject."""
        announced = advertises_jetstream(client)
        js = client.jetstream(timeout=LOOKUP_TIMEOUT_S if announced else UNADVERTISED_TIMEOUT_S)
        try:
            found = {subject: await find_stream(js, subject) for subject in sorted(self._wanted)}
        except NoJetStream:
            return await self._without_jetstream()
        except nats.errors.TimeoutError as exc:
            if announced:  # a stream may well keep the subject, so nothing has arrived without its acknowledgement
                raise nats.errors.Error("its JetStream does not answer") from exc
            if self._sink_connection.publish_refusal(NAMES) is not None:
                raise
            return await self._without_jetstream()  # only one who subscribed to everything has heard the question
        self._missed_since = None
        return found

    async def _without_jetstream(self) -> dict[str, str | None]:
        """A server, or the one behind it, that has just been started may not have its streams back yet."""
        now = time.monotonic()
        self._missed_since = now if self._missed_since is None else self._missed_since
        if now - self._missed_since < PATIENCE_S and await asyncio.to_thread(self._outbox.has_known_stream, self._sink):
            raise nats.errors.Error("its JetStream is gone")
        return dict.fromkeys(self._wanted)

    async def _compare(self, js: JetStreamContext, stream: str) -> None:
        try:
            info = await stream_info(js, stream)
        except TRANSPORT_ERRORS as exc:
            if self._owned:
                raise
            # Somebody else's broker may allow publishing only; what it loses is then lost there.
            logger.info("stream %s of sink %s cannot be looked at: %s", stream, self._sink, shown(exc))
            return
        lost = await asyncio.to_thread(
            self._outbox.reconcile_stream, self._sink, stream, created=info.created, last_seq=info.state.last_seq
        )
        if lost:
            logger.warning("stream %s of sink %s lost %d events, they are sent again", stream, self._sink, lost)
