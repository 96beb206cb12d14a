from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import nats.errors
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from runner.bus.connection import BusAddress, BusError, BusState, NatsConnection
from tests.support.bus import BusStateRecorder
from tests.support.nats_server import NatsAccount, NatsServer
from tests.support.node_events import wait_until

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
