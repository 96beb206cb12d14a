"""Requests and replies over the bus, as the control subject uses them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

import nats.errors
from nats.aio.msg import Msg

from runner.errors import boundary, log_failure
from runner.events.address import BusAddress
from runner.events.connect import BusState, Connection
from runner.events.failure import BusError

logger = logging.getLogger(__name__)

FLUSH_S = 5
"""Seconds to wait for the server to read a subscription."""


async def ask(connection: Connection, subject: str, payload: bytes, *, timeout_s: float) -> bytes | None:
    """The reply to a request, None when nobody serves the subject.

    Raises:
        BusError: when somebody does but did not answer in time, or the bus refused.
    """
    try:
        reply = await connection.client.request(subject, payload, timeout=timeout_s)
    except nats.errors.NoRespondersError:
        return None
    except nats.errors.TimeoutError as exc:
        if (refused := connection.permission_error(subject)) is not None:
            raise refused from exc
        raise BusError("timeout", f"{subject} did not answer within {timeout_s:g} s; is its node stalled?") from exc
    except nats.errors.Error as exc:
        raise BusError("other", f"{subject} could not be asked: {exc}") from exc
    return reply.data


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
        with boundary(log_failure(logger, "answering a request")):  # the client would only keep it to itself
            reply = await asyncio.to_thread(handle, message.data)
            if message.reply:
                await message.respond(reply)

    served: int | None = None
    async with await Connection.open(
        address, name=name, on_state=note, read_address=read_address, required=False
    ) as connection:
        while True:
            changed.clear()
            if connection.connected and served != connection.generation:
                await connection.client.subscribe(subject, cb=answer)
                await _noticed(connection)
                served = connection.generation
                if on_served is not None:
                    on_served()
            await changed.wait()


async def _noticed(connection: Connection) -> None:
    """Wait until the server has read what was sent; when it cannot, the connection tells."""
    with contextlib.suppress(nats.errors.Error):
        await connection.client.flush(timeout=FLUSH_S)
