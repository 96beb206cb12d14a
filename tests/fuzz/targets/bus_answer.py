"""Answers of a bus that anyone on it can send: headers, acknowledgements, lists of streams, another node's health.

The first byte of the input chooses the kind of answer.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, cast

import nats.errors
from nats.aio.msg import Msg

from runner.bus.connection import BusAddress, NatsConnection
from runner.bus.hardened_client import HardenedNatsClient, Server
from runner.bus.rpc import _is_stream_ack
from runner.events.codec import message_id
from runner.node.node import _boot_of
from runner.publish.delivery import PermanentFailure, TransientFailure, _delivery_result
from runner.publish.outbox import Ack, OutboxEvent
from runner.subscribe.subscription import StreamsUnavailable, _names
from tests.fuzz.oracles import check_displayable, event_loop

TOKENS = (
    b"NATS/1.0\r\n",
    b"NATS/1.0 404 No Messages\r\n\r\n",
    b"NATS/1.0 100\r\nIdle Heartbeat\r\nNats-Last-Consumer: 1016\r\n\r\n",
    b"ce-id: a\r\n",
    b'{"stream":"S","seq":1}',
    b'{"error":{"code":503,"err_code":10077,"description":"d"}}',
    b'{"streams":["A"]}',
    b'{"id":"","ok":true,"result":{"node":"n","boot":"b"',
)
EVENT: Final = OutboxEvent("e", "s", "t", "n", datetime(2026, 3, 4, tzinfo=UTC), b"{}")


def check(data: bytes) -> None:
    KINDS[data[0] % len(KINDS) if data else 0](data[1:])


def _headers(data: bytes) -> None:
    client = HardenedNatsClient(BusAddress("nats://a"), Server("nats://a"))
    headers = event_loop().run_until_complete(client._process_headers(data)) if data else None
    assert headers is None or all(isinstance(name, str) and isinstance(value, str) for name, value in headers.items())
    assert isinstance(message_id(headers), str)


def _acknowledgement(data: bytes) -> None:
    assert isinstance(_is_stream_ack(data), bool)
    result = _delivery_result(EVENT, data)
    assert isinstance(result, Ack | PermanentFailure | TransientFailure)
    if not isinstance(result, Ack):
        check_displayable(result.cause if isinstance(result, TransientFailure) else result.reason)


def _streams(data: bytes) -> None:
    try:
        names = event_loop().run_until_complete(_names(cast(NatsConnection, _Answering(data)), ">"))
    except StreamsUnavailable as error:
        check_displayable(str(error))
    else:
        assert all(isinstance(name, str) for name in names)


def _health(data: bytes) -> None:
    assert isinstance(_boot_of(data), str)


class _Answering:
    """A connection and its client in one, which answers each request with the same bytes."""

    connected = True

    def __init__(self, data: bytes) -> None:
        self.client = self
        self._server_info = {"jetstream": True}
        self._data = data

    async def request(self, subject: str, payload: bytes, timeout: float) -> Msg:  # noqa: ASYNC109 - nats-py's signature
        if not self._data:
            raise nats.errors.NoRespondersError
        return Msg(cast(Any, None), data=self._data)


KINDS: Final[tuple[Callable[[bytes], None], ...]] = (_headers, _acknowledgement, _streams, _health)
