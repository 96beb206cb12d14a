"""Which node a client talks to, and the connection to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from nats.aio.msg import Msg

from runner.bus.address import BusAddress, address_from_environ, address_of_node
from runner.bus.connection import NatsConnection
from runner.client.node_client import ControlRequestError, NodeClient
from runner.client.node_folder import LaunchOptions, StateLocator, ensure_node, read_node_file
from runner.client.ssh import SshNode, forwarded
from runner.errors import ConfigError
from runner.events.codec import LiveRow, decode
from runner.events.live import Heartbeat
from runner.events.subjects import DurableNames, live_subject
from runner.node.state_lock import is_node_alive

RESTORE_TIMEOUT_S: Final = 10.0  # a node checks its files every 2 seconds; a starting node has none for longer
RESTORE_POLL_S: Final = 0.1
MAX_NODES: Final = 1000  # anything on the bus can send heartbeats
SEARCH_S: Final = 2.5  # for which the heartbeats of nodes are awaited, which come every 2 seconds


class Target(msgspec.Struct, frozen=True):
    """The node of a state directory on this machine, with ``url`` the ``node`` on another bus, or one through ``ssh``.

    Without ``node``, that is the only one on the bus.
    """

    local: LaunchOptions = LaunchOptions()
    url: str | None = None
    node: str | None = None
    ssh: SshNode | None = None


class ConnectedNode(msgspec.Struct, frozen=True):
    name: str
    client: NodeClient
    connection: NatsConnection
    names: DurableNames


@asynccontextmanager
async def connected(target: Target, *, starts: bool = False, is_named: bool = True) -> AsyncIterator[ConnectedNode]:
    """Connect to a node, which ``starts`` where none runs in the state directory; its name is "" if not ``is_named``.

    Raises ``ControlRequestError`` if there is none, ``RunnerError`` if the bus cannot be reached.
    """
    names = DurableNames()
    if target.ssh is not None:
        async with forwarded(target.ssh) as (here, name), await _open(here) as connection:
            yield _connected(name, connection, names)
        return
    if target.url is None:
        data_dir, names = await _local_folder(target.local, starts=starts)
        read_address: Callable[[], BusAddress | None] = partial(address_of_node, data_dir)
        await wait_for_node_files(data_dir, read_address)
    else:
        read_address = partial(address_from_environ, target.url, os.environ)
    address = read_address()
    if address is None:
        raise ConfigError("the node's address is missing; start it again")
    async with await _open(address, read_address) as connection:
        name = target.node or ""
        if target.url is None:
            found = read_node_file(data_dir)
            name = found.node if found is not None else ""
        elif is_named and not name:
            name = await _only_node(connection)
        yield _connected(name, connection, names)


async def _open(address: BusAddress, read_address: Callable[[], BusAddress | None] | None = None) -> NatsConnection:
    return await NatsConnection.open(address, name="agentgym-ctl", read_address=read_address)


def _connected(name: str, connection: NatsConnection, names: DurableNames) -> ConnectedNode:
    client = NodeClient(lambda: connection, lambda _: name, to_start="run `agentgym-runner node`")
    return ConnectedNode(name, client, connection, names)


async def _local_folder(options: LaunchOptions, *, starts: bool) -> tuple[Path, DurableNames]:
    location = await asyncio.to_thread(StateLocator(options).find)
    if starts:
        file = location.profile_file
        await ensure_node(location, options.config if file is None else str(file.path))
    elif not is_node_alive(location.data_dir):
        hint = "start it with `agentgym-runner node`, or name another one with --data-dir, or --nats and --node"
        raise ControlRequestError(f"no node runs in {location.data_dir}", hint, "unreachable")
    return location.data_dir, DurableNames.of(location.profile.nats)


def is_stopped(target: Target) -> bool:
    """Return whether a node of this machine is meant, and does not run."""
    is_local = target.url is None and target.ssh is None
    return is_local and not is_node_alive(StateLocator(target.local).find().data_dir)


async def find_nodes(connection: NatsConnection) -> dict[str, Heartbeat]:
    """Return the latest heartbeat of each node of a bus, by name, of at most ``MAX_NODES``; takes ``SEARCH_S``."""
    found: dict[str, Heartbeat] = {}

    async def note(message: Msg) -> None:
        row = decode(message.subject, message.headers, message.data, DurableNames())
        for item in row.batch.items if isinstance(row, LiveRow) else ():
            if isinstance(item, Heartbeat) and len(found) < MAX_NODES:
                found[message.subject.rpartition(".")[2]] = item

    subscription = await connection.client.subscribe(live_subject("health", "*"), cb=note)
    await asyncio.sleep(SEARCH_S)
    await subscription.unsubscribe()
    return dict(sorted(found.items()))


async def _only_node(connection: NatsConnection) -> str:
    found = await find_nodes(connection)
    if len(found) == 1:
        return next(iter(found))
    nodes = f"has several nodes: {', '.join([*found][:20])}" if found else "has no node"
    raise ControlRequestError(
        f"the bus {connection.address.display_url} {nodes}", "name one with --node", "unreachable"
    )


async def wait_for_node_files(data_dir: Path, read_address: Callable[[], BusAddress | None]) -> None:
    """Wait until a running node has restored its ``node.json`` and credential, at most ``RESTORE_TIMEOUT_S``."""
    deadline = time.monotonic() + RESTORE_TIMEOUT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(ConfigError):
            if read_address() is not None:
                return
        if not is_node_alive(data_dir):
            return
        await asyncio.sleep(RESTORE_POLL_S)
