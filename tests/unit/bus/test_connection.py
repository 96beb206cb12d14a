"""Connections to a bus, and what the own client changes in private methods of nats-py; a test fails if those change."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats.errors
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from runner.bus.address import BusAddress, TlsSettings
from runner.bus.connection import BusState, NatsConnection
from runner.bus.errors import BusError
from runner.bus.hardened_client import HardenedNatsClient, Server, advertises_jetstream, connect_options
from tests.support.bus import BusStateRecorder
from tests.support.fake_nats import run_fake_nats
from tests.support.nats_server import NatsAccount, NatsServer
from tests.support.node_events import wait_until
from tests.support.raw_nats import RawNatsClient

LOGIN = {"authorization": {"user": "u", "password": "p"}}


async def test_a_message_is_published_and_received(bus: NatsAccount) -> None:
    states = BusStateRecorder()
    async with await NatsConnection.open(BusAddress(bus.url), name="test", on_state=states) as connection:
        assert connection.connected
        subscription = await connection.client.subscribe("a")
        await connection.client.publish("a", b"x")
        assert (await subscription.next_msg(timeout=5)).data == b"x"
    assert [state.status for state in states.states] == ["connected", "closed"]
    assert connection.client.is_closed


async def test_the_first_connection_error_is_raised_immediately(nats_server: NatsServer) -> None:
    nats_server.stop()
    started = time.monotonic()
    with pytest.raises(BusError, match="cannot be reached: Connection refused;") as caught:
        await NatsConnection.open(BusAddress(nats_server.url), name="test")
    assert caught.value.kind == "refused"
    assert time.monotonic() - started < 2


async def test_an_unresponsive_server_is_a_timeout(nats_server: NatsServer) -> None:
    nats_server.pause()
    started = time.monotonic()
    with pytest.raises(BusError, match="does not answer") as caught:
        await NatsConnection.open(BusAddress(nats_server.url), name="test", timeout_s=0.5)
    assert caught.value.kind == "timeout"
    assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    "greeting", [b"INFO []\r\n", b"HTTP/1.1 400\r\n\r\n", b"x" * 200_000, b"INFO {}\r\n\xff\r\n", b""]
)
async def test_a_server_that_is_not_nats_is_an_error(greeting: bytes) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        with pytest.raises(BusError):
            await NatsConnection.open(BusAddress(f"nats://127.0.0.1:{port}"), name="test", timeout_s=0.5)


async def test_one_reachable_server_of_several_is_enough(bus: NatsAccount) -> None:
    address = BusAddress(f"nats://127.0.0.1:1,{bus.display_url}", user=bus.name, password=bus.name)
    async with await NatsConnection.open(address, name="test") as connection:
        assert connection.connected


async def test_a_cancellation_while_connecting_is_never_swallowed(bus: NatsAccount) -> None:
    for n_ticks in range(40):
        opening = asyncio.create_task(NatsConnection.open(BusAddress(bus.url), name="test"))
        for _ in range(n_ticks):
            await asyncio.sleep(0.0002)
        if opening.done():
            await opening.result().close()
            break
        opening.cancel()
        await asyncio.wait({opening}, timeout=5)
        assert opening.cancelled()


async def test_an_optional_connection_waits_for_its_server(nats_server: NatsServer) -> None:
    nats_server.stop()
    states = BusStateRecorder()
    opened = NatsConnection.open(BusAddress(nats_server.url), name="test", on_state=states, required=False)
    async with await opened as connection:
        assert connection.state.kind == "refused"
        with pytest.raises(BusError, match="cannot be reached"):
            _ = connection.client
        nats_server.start()
        await states.wait_for("connected")
        await connection.client.flush()


async def test_each_restart_of_the_server_makes_a_new_client(nats_server: NatsServer) -> None:
    states = BusStateRecorder()
    async with await NatsConnection.open(BusAddress(nats_server.url), name="test", on_state=states) as connection:
        for restart in range(1, 4):
            before = connection.client
            nats_server.kill()
            await states.wait_for("disconnected")
            with pytest.raises(nats.errors.ConnectionClosedError):
                await retry_until_closed(before)
            nats_server.start()
            started = time.monotonic()
            await states.wait_for("connected")
            assert time.monotonic() - started < 2
            assert connection.client is not before
            assert connection.generation == 1 + restart
            subscription = await connection.client.subscribe("a")
            await connection.client.publish("a", b"x")
            assert (await subscription.next_msg(timeout=5)).data == b"x"


async def retry_until_closed(client: Client) -> None:
    """Publish until the client of a lost connection is closed."""
    async with asyncio.timeout(5):
        while True:
            await client.publish("a", b"x")
            await asyncio.sleep(0.01)


@pytest.mark.long
async def test_a_paused_server_is_reported_as_stalled_within_5_s(nats_server: NatsServer) -> None:
    states = BusStateRecorder()
    async with await NatsConnection.open(BusAddress(nats_server.url), name="test", on_state=states) as connection:
        subscription = await connection.client.subscribe("a")
        nats_server.pause()
        started = time.monotonic()
        await states.wait_for("stalled")
        assert time.monotonic() - started < 5
        nats_server.resume()
        await states.wait_for("connected")
        # The late response to the probe must not stop the client from receiving.
        await connection.client.publish("a", b"x")
        assert (await subscription.next_msg(timeout=1)).data == b"x"
        nats_server.pause()
        started = time.monotonic()
    assert time.monotonic() - started < 3


async def test_a_moved_server_is_found_at_its_new_address(nats_server: NatsServer, tmp_path: Path) -> None:
    states = BusStateRecorder()
    addresses = [BusAddress(nats_server.url)]
    opened = NatsConnection.open(addresses[0], name="test", on_state=states, read_address=lambda: addresses[-1])
    async with await opened as connection:
        with NatsServer(tmp_path / "other", jetstream=False, config=LOGIN) as other:
            addresses.append(BusAddress(other.url, user="u", password="p"))
            nats_server.kill()
            await states.wait_for("disconnected")
            await states.wait_for("connected")
            assert connection.generation == 2
            assert connection.address == addresses[-1]
            await connection.client.flush()


async def test_a_denied_subject_is_named(tmp_path: Path) -> None:
    permissions = {"publish": {"deny": "Secret.A"}, "subscribe": {"deny": "secret.b"}}
    config = {"authorization": {"users": [{"user": "u", "password": "p", "permissions": permissions}]}}
    with NatsServer(tmp_path, jetstream=False, config=config) as server:
        address = BusAddress(server.url, user="u", password="p")
        async with await NatsConnection.open(address, name="test") as connection:
            await connection.client.publish("Secret.A", b"x")
            await connection.client.subscribe("secret.b")
            await connection.client.flush()  # the server reports denials before it answers the ping
            error = connection.permission_error("Secret.A")
            assert error is not None and error.kind == "permission"
            assert "not allowed to publish to secret.a" in str(error)
            assert "subscribe to secret.b" in str(connection.permission_error("secret.b"))
            assert connection.permission_error("other") is None
            assert connection.connected


async def test_a_slow_subscription_is_logged_and_the_connection_continues(
    bus: NatsAccount, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "runner.bus.hardened_client")
    async with await NatsConnection.open(BusAddress(bus.url), name="test") as connection:

        async def never_done(message: Msg) -> None:
            await asyncio.Event().wait()

        await connection.client.subscribe("a", cb=never_done, pending_msgs_limit=2)
        for _ in range(10):
            await connection.client.publish("a", b"x")
        await connection.client.flush()
        await wait_until(lambda: "SlowConsumerError" in caplog.text, 5)
        assert connection.connected


async def test_a_raising_listener_does_not_end_the_connection(nats_server: NatsServer) -> None:
    states = BusStateRecorder()

    def listen(state: BusState) -> None:
        states(state)
        raise RuntimeError("boom")

    async with await NatsConnection.open(BusAddress(nats_server.url), name="test", on_state=listen) as connection:
        nats_server.restart()
        await states.wait_for("disconnected")
        await states.wait_for("connected")
        await connection.client.flush()


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
