"""What this project's client changes in private methods of nats-py; each test fails if nats-py changes them."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import nats.errors
import pytest
from nats.aio.client import Client

from runner.bus.address import BusAddress, TlsSettings
from runner.bus.errors import BusError
from runner.bus.hardened_client import HardenedNatsClient, Server, advertises_jetstream, connect_options
from tests.support.fake_nats import run_fake_nats
from tests.support.nats_server import NatsAccount, NatsServer
from tests.support.node_events import wait_until
from tests.support.raw_nats import RawNatsClient


@asynccontextmanager
async def connected_to(url: str, *, tls_required: bool = False) -> AsyncIterator[HardenedNatsClient]:
    address = BusAddress(url, tls=TlsSettings() if tls_required else None).with_split_login()
    client = HardenedNatsClient(address, Server(address.display_url))
    await client.open("test", connect_options(address), 5.0)
    try:
        yield client
    finally:
        await client.shut()


@pytest.mark.parametrize("name", [name for name in vars(HardenedNatsClient) if name.startswith("_") and name[1] != "_"])
def test_each_overridden_method_is_one_of_nats_py(name: str) -> None:
    assert callable(getattr(Client, name))


async def test_no_credentials_are_sent_in_plaintext_where_tls_is_required() -> None:
    async with run_fake_nats() as server:
        with pytest.raises(BusError, match="offers no TLS"):
            async with connected_to(server.url, tls_required=True):
                pass
        assert server.received == b""


async def test_an_abandoned_ping_does_not_end_the_read_loop(nats_server: NatsServer) -> None:
    async with connected_to(nats_server.url) as client:
        nats_server.pause()
        with pytest.raises(nats.errors.TimeoutError):
            await client.flush(timeout=1)
        nats_server.resume()
        await client.flush(timeout=5)
        assert not client.lost.is_set()


async def test_a_flush_returns_after_the_data_before_it_was_sent() -> None:
    async with run_fake_nats() as server, connected_to(server.url) as client:
        server.received = b""
        for _ in range(20):
            await client.publish("a", b"x" * 100_000)
        await client.flush()
        assert server.received.count(b"PUB a") == 20
        assert server.received.rindex(b"PUB a") < server.received.index(b"PING")


@pytest.mark.parametrize("headers", [b"NATS/1.0 \xff\xfe\xfd x\r\n\r\n", b"NATS/1.0"])
async def test_a_message_with_malformed_headers_is_received_without_them(headers: bytes, bus: NatsAccount) -> None:
    async with connected_to(bus.url) as client:
        subscription = await client.subscribe("a")
        await client.flush()
        size = len(headers)
        with RawNatsClient(BusAddress(bus.url).with_split_login()) as raw:
            raw.send(b"HPUB a %d %d\r\n%bx\r\n" % (size, size + 1, headers))
            raw.flush()
        message = await subscription.next_msg(timeout=5)
        assert (message.data, message.headers) == (b"x", None)
        await client.flush()
        assert not client.lost.is_set()


@pytest.mark.parametrize("reset", [False, True])
async def test_the_cause_of_a_lost_connection_is_kept(reset: bool) -> None:
    async with run_fake_nats() as server, connected_to(server.url) as client:
        (writer,) = server.writers
        if reset:
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
        async with asyncio.timeout(5):
            await client.lost.wait()
        assert "closed the connection" in str(client.loss)


async def test_a_message_since_the_last_check_replaces_a_ping() -> None:
    async with run_fake_nats() as server, connected_to(server.url) as client:
        subscription = await client.subscribe("a")
        await client.flush()
        server.received = b""
        server.writers[0].write(b"MSG a 1 1\r\nx\r\n")
        await subscription.next_msg(timeout=5)
        assert await client.is_responsive(5) and b"PING" not in server.received
        assert await client.is_responsive(5) and server.received.count(b"PING") == 1


async def test_the_socket_of_a_closed_client_is_closed() -> None:
    async with run_fake_nats() as server:
        async with connected_to(server.url):
            (writer,) = server.writers
        await wait_until(writer.is_closing, 5)


@pytest.mark.parametrize("advertised", [True, False])
async def test_a_server_advertises_jetstream_in_its_greeting(advertised: bool) -> None:
    async with run_fake_nats(jetstream=advertised) as server, connected_to(server.url) as client:
        assert advertises_jetstream(client) is advertised
