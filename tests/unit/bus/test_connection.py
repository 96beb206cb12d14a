from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import nats.errors
import pytest
from nats.aio.msg import Msg

from runner.bus.connection import BusAddress, BusError, BusState, NatsConnection
from tests.support.bus import States
from tests.support.nats_server import NatsServer

LOGIN = {"authorization": {"user": "u", "password": "p"}}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path / "server", jetstream=False) as running:
        yield running


async def test_a_message_goes_there_and_back(server: NatsServer) -> None:
    states = States()
    async with await NatsConnection.open(BusAddress(server.url), name="test", on_state=states) as connection:
        assert connection.connected
        subscription = await connection.client.subscribe("a")
        await connection.client.publish("a", b"x")
        assert (await subscription.next_msg(timeout=5)).data == b"x"
    assert [state.status for state in states.seen] == ["connected", "closed"]
    assert connection.client.is_closed


async def test_the_first_error_is_shown_at_once(server: NatsServer) -> None:
    server.stop()
    began = time.monotonic()
    with pytest.raises(BusError, match="cannot be reached") as caught:
        await NatsConnection.open(BusAddress(server.url), name="test")
    assert caught.value.kind == "refused"
    assert time.monotonic() - began < 2


async def test_a_server_that_says_nothing_is_a_timeout(server: NatsServer) -> None:
    server.pause()
    began = time.monotonic()
    with pytest.raises(BusError, match="does not answer") as caught:
        await NatsConnection.open(BusAddress(server.url), name="test", timeout_s=0.5)
    assert caught.value.kind == "timeout"
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    "greeting", [b"INFO []\r\n", b"HTTP/1.1 400\r\n\r\n", b"x" * 200_000, b"INFO {}\r\n\xff\r\n", b""]
)
async def test_something_else_than_nats_is_an_error(greeting: bytes) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        await reader.read(1)
        writer.close()

    strange = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = strange.sockets[0].getsockname()[1]
    async with strange:
        with pytest.raises(BusError):
            await NatsConnection.open(BusAddress(f"nats://127.0.0.1:{port}"), name="test", timeout_s=0.5)


async def test_of_several_servers_one_is_enough(server: NatsServer) -> None:
    address = BusAddress(f"nats://127.0.0.1:1,{server.url}")
    async with await NatsConnection.open(address, name="test") as connection:
        assert connection.connected


async def test_a_connection_that_is_not_required_waits_for_its_server(server: NatsServer) -> None:
    server.stop()
    states = States()
    opened = NatsConnection.open(BusAddress(server.url), name="test", on_state=states, required=False)
    async with await opened as connection:
        assert connection.state.kind == "refused"
        with pytest.raises(BusError, match="cannot be reached"):
            _ = connection.client
        server.start()
        await states.until("connected")
        await connection.client.flush()


async def test_a_restart_keeps_subscriptions(server: NatsServer) -> None:
    states = States()
    async with await NatsConnection.open(BusAddress(server.url), name="test", on_state=states) as connection:
        subscription = await connection.client.subscribe("a")
        for _ in range(3):
            server.kill()
            await states.until("disconnected")
            server.start()
            began = time.monotonic()
            await states.until("connected")
            assert time.monotonic() - began < 2
            await connection.client.publish("a", b"x")
            assert (await subscription.next_msg(timeout=5)).data == b"x"
        assert connection.generation == 1


async def test_a_server_that_hangs_is_stalled_within_5_s(server: NatsServer) -> None:
    states = States()
    async with await NatsConnection.open(BusAddress(server.url), name="test", on_state=states) as connection:
        subscription = await connection.client.subscribe("a")
        server.pause()
        began = time.monotonic()
        await states.until("stalled")
        assert time.monotonic() - began < 5
        server.resume()
        await states.until("connected")
        # The late answer to the probe must not have made the client deaf.
        await connection.client.publish("a", b"x")
        assert (await subscription.next_msg(timeout=1)).data == b"x"
        server.pause()
        began = time.monotonic()
    assert time.monotonic() - began < 3


async def test_a_bus_that_moved_is_found(server: NatsServer, tmp_path: Path) -> None:
    states = States()
    places = [BusAddress(server.url)]
    opened = NatsConnection.open(places[0], name="test", on_state=states, read_address=lambda: places[-1])
    async with await opened as connection:
        with NatsServer(tmp_path / "other", jetstream=False, config=LOGIN) as other:
            places.append(BusAddress(other.url, user="u", password="p"))
            server.kill()
            await states.until("disconnected")
            await states.until("connected")
            assert connection.generation == 2
            assert connection.address == places[-1]
            await connection.client.flush()


async def test_a_refused_subject_is_named(tmp_path: Path) -> None:
    rights = {"publish": {"deny": "Secret.A"}, "subscribe": {"deny": "secret.b"}}
    config = {"authorization": {"users": [{"user": "u", "password": "p", "permissions": rights}]}}
    with NatsServer(tmp_path, jetstream=False, config=config) as server:
        address = BusAddress(server.url, user="u", password="p")
        async with await NatsConnection.open(address, name="test") as connection:
            told: asyncio.Queue[BusError] = asyncio.Queue()
            connection.on_permission = told.put_nowait
            await connection.client.publish("Secret.A", b"x")
            error = await asyncio.wait_for(told.get(), 5)
            assert (error.kind, connection.last_permission_error) == ("permission", error)
            assert "not allowed to publish to secret.a" in str(error)
            assert connection.permission_error("Secret.A") is error
            await connection.client.subscribe("secret.b")
            assert "subscribe to secret.b" in str(await asyncio.wait_for(told.get(), 5))
            assert connection.permission_error("other") is None
            assert connection.connected


async def test_a_slow_subscription_is_reported(server: NatsServer) -> None:
    async with await NatsConnection.open(BusAddress(server.url), name="test") as connection:
        reported: asyncio.Queue[Exception] = asyncio.Queue()
        connection.on_error = reported.put_nowait

        async def never_done(message: Msg) -> None:
            await asyncio.Event().wait()

        await connection.client.subscribe("a", cb=never_done, pending_msgs_limit=2)
        for _ in range(10):
            await connection.client.publish("a", b"x")
        await connection.client.flush()
        assert isinstance(await asyncio.wait_for(reported.get(), 5), nats.errors.SlowConsumerError)


async def test_a_raising_listener_does_not_end_the_connection(server: NatsServer) -> None:
    states = States()

    def listen(state: BusState) -> None:
        states(state)
        raise RuntimeError("boom")

    async with await NatsConnection.open(BusAddress(server.url), name="test", on_state=listen) as connection:
        server.restart()
        await states.until("disconnected")
        await states.until("connected")
        await connection.client.flush()
