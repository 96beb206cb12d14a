"""Check that no other node uses this node's name on a shared bus."""

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
from runner.util.display_text import one_line

logger = logging.getLogger(__name__)

HEALTH_REQUEST = msgspec.json.encode(ControlRequest(id="name", op="health"))


async def check_name_is_free(name: str, boot: str, address: BusAddress | None) -> None:
    """Check that no other node with this name answers a health request on the egress bus.

    Args:
        boot: boot id of this node; a reply with this id comes from this node itself.

    Raises:
        StoreError: if another node answers; the message contains its boot id.
    """
    if address is None:
        return
    try:
        async with await NatsConnection.open(address, name=name) as connection:
            reply = await _request_health(connection, control_subject(name))
    except BusError as exc:
        logger.warning("could not check whether the node name %s is free: %s", name, exc)
        return
    other = boot if reply is None else _boot_of(reply)
    if other != boot:
        other_boot = one_line(other, 40)
        raise StoreError(
            f"another node named {name} (boot {other_boot}) already answers on {address.display_url}; "
            "choose another --node"
        )


async def _request_health(connection: NatsConnection, subject: str) -> bytes | None:
    """Return the reply to a health request; None after a timeout (a mere listener gets the request but is silent)."""
    try:
        return await send_request(connection, subject, HEALTH_REQUEST, timeout_s=1.0)
    except BusError as exc:
        if exc.kind != "timeout":
            raise
        logger.debug("no reply, so the node name is free: %s", exc)
        return None


def _boot_of(reply: bytes) -> str:
    """If the reply contains none, the id is "unknown"."""
    try:
        decoded = msgspec.json.decode(reply, type=ControlReply)
        if isinstance(decoded.result, msgspec.Raw):
            return msgspec.json.decode(decoded.result, type=NodeHealth).boot
    except (ValueError, RecursionError):  # also for invalid UTF-8 and for deep nesting
        pass
    return "unknown"
