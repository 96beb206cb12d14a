"""Whether a node's name is free on a bus that others use, too."""

from __future__ import annotations

import logging

import msgspec

from runner.bus.address import BusAddress
from runner.bus.connection import NatsConnection
from runner.bus.errors import BusError
from runner.bus.rpc import send_request
from runner.errors import StoreError
from runner.events.control import ControlReply, ControlRequest, NodeHealth
from runner.events.subjects import control_subject
from runner.util.text import one_line

logger = logging.getLogger(__name__)

HEALTH_REQUEST = msgspec.json.encode(ControlRequest(id="name", op="health"))


async def check_name_is_free(name: str, boot: str, address: BusAddress | None) -> None:
    """Ask whether somebody else answers to this node's name on the other bus.

    Raises:
        StoreError: naming who does.
    """
    if address is None:
        return
    try:
        async with await NatsConnection.open(address, name=name) as connection:
            reply = await _request_health(connection, control_subject(name))
    except BusError as exc:
        logger.warning("whether the name %s is free could not be asked: %s", name, exc)
        return
    other = boot if reply is None else _boot_of(reply)
    if other != boot:
        shown = one_line(other, 40)
        raise StoreError(
            f"a node named {name} (boot {shown}) answers on {address.display_url} already; choose another --node"
        )


async def _request_health(connection: NatsConnection, subject: str) -> bytes | None:
    """None when nobody replies: one who listens to everything takes the question, and has no answer."""
    try:
        return await send_request(connection, subject, HEALTH_REQUEST, timeout_s=1.0)
    except BusError as exc:
        if exc.kind != "timeout":
            raise
        logger.debug("nobody replied, so the name is free: %s", exc)
        return None


def _boot_of(reply: bytes) -> str:
    """Who sent a reply to ``health``; anything that answers to the name counts, also what we do not understand."""
    try:
        decoded = msgspec.json.decode(reply, type=ControlReply)
        if isinstance(decoded.result, msgspec.Raw):
            return msgspec.json.decode(decoded.result, type=NodeHealth).boot
    except msgspec.MsgspecError:
        pass
    return "unknown"
