"""Request and reply over the bus, used by the control subject: ``send_request`` for clients, ``serve`` for nodes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Any

import msgspec
import nats.errors
from nats.aio.client import NO_RESPONDERS_STATUS, Client
from nats.aio.msg import Msg
from nats.js.api import Header

from runner.bus.address import BusAddress
from runner.bus.connection import NatsConnection
from runner.bus.errors import BUS_ERRORS, BusError
from runner.bus.request_server import RequestHandler, RequestServer

FLUSH_TIMEOUT_S = 5


class _StreamAck(msgspec.Struct):
    """Acknowledgement of a stream, which has no ``id``, unlike a reply."""

    stream: str
    seq: int
    id: None = None


_STREAM_ACK = msgspec.json.Decoder(_StreamAck)


async def send_request(
    connection: NatsConnection, subject: str, payload: bytes, *, timeout_s: float, repeat_s: float | None = None
) -> bytes | None:
    """Send a request and return the reply, None when no service subscribes to the subject.

    A stream that keeps the subject acknowledges the request as well; this acknowledgement is not a reply.

    Args:
        repeat_s: seconds after which a request without a reply is sent again, because the bus may have lost it; None
            for a request that must not take effect twice.

    Raises:
        BusError: the service did not answer within ``timeout_s`` seconds, or the bus denied the request.
    """
    inbox = _Inbox(connection.client.new_inbox())
    try:
        async with asyncio.timeout(timeout_s):
            await _exchange(connection, subject, payload, inbox, repeat_s)
    except TimeoutError:
        pass
    except nats.errors.Error as exc:
        raise BusError("other", f"the request to {subject} failed: {exc}") from exc
    if inbox.reply.done():
        message = inbox.reply.result()
        return None if (message.headers or {}).get(Header.STATUS) == NO_RESPONDERS_STATUS else message.data
    if (denied := connection.permission_error(subject)) is not None:
        raise denied
    if inbox.was_stored:
        return None
    raise BusError("timeout", f"{subject} did not answer within {timeout_s:g} s; check that its node is responsive")


async def _exchange(
    connection: NatsConnection, subject: str, payload: bytes, inbox: _Inbox, repeat_s: float | None
) -> None:
    """Send the request until the reply has arrived, over as many connections as that takes."""
    is_sent = False
    while not inbox.reply.done():
        await connection.wait_connected()
        client = connection.client
        async with inbox.subscribed(client):
            while client.is_connected and not inbox.reply.done():
                changed: asyncio.Future[Any] = asyncio.create_task(connection.wait_changed())
                try:
                    if repeat_s is not None or not is_sent:
                        await client.publish(subject, payload, reply=inbox.address)
                        is_sent = True
                    await asyncio.wait([inbox.reply, changed], timeout=repeat_s, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()


class _Inbox:
    """Inbox of one request: the first message that is no stream acknowledgement is the reply."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.reply: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self.was_stored = False

    @contextlib.asynccontextmanager
    async def subscribed(self, client: Client) -> AsyncIterator[None]:
        subscription = await client.subscribe(self.address, cb=self._on_message)
        try:
            yield
        finally:
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()

    async def _on_message(self, message: Msg) -> None:
        if _is_stream_ack(message.data):
            self.was_stored = True
        elif not self.reply.done():
            self.reply.set_result(message)


def _is_stream_ack(data: bytes) -> bool:
    try:
        _STREAM_ACK.decode(data)
    except (ValueError, RecursionError):  # msgspec's errors and UnicodeDecodeError are ValueErrors
        return False
    return True


async def serve(
    subject: str,
    handler: RequestHandler,
    read_address: Callable[[], BusAddress | None],
    *,
    name: str,
    reserved: Collection[str] = (),
    prepare: Callable[[Client], Awaitable[None]] | None = None,
    on_served: Callable[[], None] | None = None,
) -> None:
    """Answer requests until cancelled, across all outages of the bus.

    Args:
        read_address: returns the address of the bus; None ends the service immediately.
        reserved: subjects on which the service publishes other messages; they never receive a reply.
        prepare: awaited for each client before requests reach it; errors of the bus do not keep it from serving.
        on_served: called each time the subscription is active on the server.
    """
    address = read_address()
    if address is None:
        return
    served: int | None = None
    async with (
        await NatsConnection.open(address, name=name, read_address=read_address, required=False) as connection,
        asyncio.TaskGroup() as tasks,
    ):
        server = RequestServer(connection, handler, reserved)
        tasks.create_task(server.run())
        while True:
            if not connection.connected or served == connection.generation:
                await connection.wait_changed()
                continue
            served = connection.generation
            if prepare is not None:
                with contextlib.suppress(*BUS_ERRORS):
                    await prepare(connection.client)
            await connection.client.subscribe(subject, cb=server.on_message)
            with contextlib.suppress(*BUS_ERRORS):  # the connection reports the failure
                await connection.client.flush(timeout=FLUSH_TIMEOUT_S)
                if on_served is not None:
                    on_served()
