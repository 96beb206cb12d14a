"""Whether anything receives the streamed tokens that are sent to a sink.

A publisher cannot list the subscribers of a subject. Two signals are reliable:

- The own broker keeps all live items in a stream, which each console and ``watch`` reads with a consumer of its own, so
  tokens are watched there while the stream has consumers.
- Any other broker reports at once that nothing receives a message with a reply subject ("no responders"). A stream
  that keeps live items receives it.
"""

from __future__ import annotations

from typing import Final

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from runner.bus.streams import BUS_ERRORS, stream_info
from runner.events.codec import encode
from runner.events.live import LiveBatch
from runner.events.subjects import LIVE_STREAM, live_subject
from runner.publish.outbox import LOCAL
from runner.publish.sink import SinkConnection

CHECK_INTERVAL_S: Final = 1.0
"""Seconds between two calls of ``TokenWatch.check``."""

ANSWER_TIMEOUT_S: Final = 0.5
"""Seconds to wait for an answer of the broker; without one, tokens count as watched."""

_NO_RESPONDERS = "503"


class TokenWatch:
    """Finds out whether the tokens of one sink are watched.

    ``is_watched`` is True until the broker has reported otherwise, and False without a connection.
    """

    def __init__(self, sink_connection: SinkConnection, node: str, boot: str) -> None:
        self.is_watched = True
        self._sink_connection = sink_connection
        self._subject = live_subject("token", node)
        self._probe = encode(LiveBatch(node=node, boot=boot, dropped=0, items=[]))
        self._client: Client | None = None
        self._inbox = ""

    async def check(self) -> None:
        """Call it every ``CHECK_INTERVAL_S``."""
        client = self._sink_connection.client
        if client is None:
            self.is_watched = self.is_watched and not self._sink_connection.n_connects
        elif self._sink_connection.sink.name == LOCAL:
            self.is_watched = await _has_consumers(client)
        elif not self.is_watched:  # otherwise the token messages show it
            self.is_watched = await self._is_received(client)

    async def is_received(self) -> bool:
        """Return whether anything receives live items of the sink now, by one request to its broker."""
        client = self._sink_connection.client
        if client is None:
            return False
        return await (_has_consumers(client) if self._sink_connection.sink.name == LOCAL else self._is_received(client))

    async def publish(self, client: Client, payload: bytes) -> None:
        """If nothing receives the message, ``is_watched`` becomes False.

        Raises ``nats.errors.Error`` or ``OSError`` if it cannot be sent.
        """
        if self._sink_connection.sink.name != LOCAL and client is not self._client:
            self._inbox = client.new_inbox()
            await client.subscribe(self._inbox, cb=self._on_reply)
            self._client = client
        await client.publish(self._subject, payload, reply=self._inbox)

    async def _is_received(self, client: Client) -> bool:
        """The request is a message without items."""
        try:
            await client.request(self._subject, self._probe, timeout=ANSWER_TIMEOUT_S)
        except nats.errors.NoRespondersError:
            return False
        except BUS_ERRORS:  # subscribers do not answer
            return self._sink_connection.client is client
        return True

    async def _on_reply(self, message: Msg) -> None:
        if (message.headers or {}).get("Status") == _NO_RESPONDERS:
            self.is_watched = False


async def _has_consumers(client: Client) -> bool:
    try:
        info = await stream_info(client.jetstream(timeout=ANSWER_TIMEOUT_S), LIVE_STREAM)
    except BUS_ERRORS:
        return True
    return info.state.consumer_count != 0
