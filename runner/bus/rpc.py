"""Requests and replies over the bus, as the control subject uses them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

import msgspec
import nats.errors
from nats.aio.client import NO_RESPONDERS_STATUS, Client
from nats.aio.msg import Msg
from nats.js.api import Header

from runner.bus.address import BusAddress
from runner.bus.connection import BusState, NatsConnection
from runner.bus.errors import BusError
from runner.errors import catch_foreign, log_failure

logger = logging.getLogger(__name__)

FLUSH_S = 5
"""Seconds to wait for the server to read a subscription."""


class _StreamAck(msgspec.Struct):
    """A stream's acknowledgement; a reply has an id."""

    stream: str
    seq: int
    id: None = None


_STORED = msgspec.json.Decoder(_StreamAck)


async def send_request(connection: NatsConnection, subject: str, payload: bytes, *, timeout_s: float) -> bytes | None:
    """The reply to a request, None when nobody serves the subject.

    A stream over the subject acknowledges requests, too, and sooner than anybody replies: that is no reply.

    Raises:
        BusError: when somebody serves it but did not answer in time, or the bus refused.
    """
    inbox = _Inbox()
    try:
        async with inbox.opened(connection.client) as address:
            await connection.client.publish(subject, payload, reply=address)
            await asyncio.wait({inbox.reply}, timeout=timeout_s)
    except nats.errors.Error as exc:
        raise BusError("other", f"{subject} could not be asked: {exc}") from exc
    if inbox.reply.done():
        message = inbox.reply.result()
        return None if (message.headers or {}).get(Header.STATUS) == NO_RESPONDERS_STATUS else message.data
    if (refused := connection.permission_error(subject)) is not None:
        raise refused
    if inbox.stored:
        return None
    raise BusError("timeout", f"{subject} did not answer within {timeout_s:g} s; is its node stalled?")


class _Inbox:
    """Where the answers to one request come: the first that is no acknowledgement is the reply."""

    def __init__(self) -> None:
        self.reply: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self.stored = False

    @contextlib.asynccontextmanager
    async def opened(self, client: Client) -> AsyncIterator[str]:
        address = client.new_inbox()
        subscription = await client.subscribe(address, cb=self._take)
        try:
            yield address
        finally:
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()

    async def _take(self, message: Msg) -> None:
        if _is_stored(message.data):
            self.stored = True
        elif not self.reply.done():
            self.reply.set_result(message)


def _is_stored(data: bytes) -> bool:
    try:
        _STORED.decode(data)
    except (ValueError, RecursionError):  # msgspec's and that of bad UTF-8 are among them
        return False
    return True


async def serve(
    subject: str,
    handle: Callable[[bytes], bytes],
    read_address: Callable[[], BusAddress | None],
    *,
    name: str,
    on_served: Callable[[], None] | None = None,
) -> None:
    """Answer requests until cancelled, through all outages of the bus.

    Args:
        subject: what to serve.
        handle: makes the reply on a thread of its own; has to answer everything, what it raises is only logged.
        read_address: where the bus is; None ends the service at once.
        name: shown by the server.
        on_served: called each time the bus has taken notice that we answer.
    """
    address = read_address()
    if address is None:
        return
    changed = asyncio.Event()

    def note(state: BusState) -> None:
        changed.set()

    async def answer(message: Msg) -> None:
        with catch_foreign(log_failure(logger, "answering a request")):  # the client would only keep it to itself
            reply = await asyncio.to_thread(handle, message.data)
            if message.reply:
                await message.respond(reply)

    served: int | None = None
    async with await NatsConnection.open(
        address, name=name, on_state=note, read_address=read_address, required=False
    ) as connection:
        while True:
            changed.clear()
            if connection.connected and served != connection.generation:
                await connection.client.subscribe(subject, cb=answer)
                await _flush(connection)
                served = connection.generation
                if on_served is not None:
                    on_served()
            await changed.wait()


async def _flush(connection: NatsConnection) -> None:
    """Wait until the server has read what was sent; when it cannot, the connection tells."""
    with contextlib.suppress(nats.errors.Error):
        await connection.client.flush(timeout=FLUSH_S)
