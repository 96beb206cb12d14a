"""Outages during a subscription: killed, paused and absent servers, recreated and deleted streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.js.api import StorageType

from runner.bus.connection import BusAddress, NatsConnection
from tests.support.nats_server import NatsAccount, NatsServer
from tests.support.subscriptions import (
    SUBJECT,
    add_stream,
    publish_events,
    publish_with_retries,
    retry_until_success,
    status_event,
    subscribe_to,
)

pytestmark = pytest.mark.long


async def test_killed_servers_lose_no_message_and_are_reported(
    nats_server: NatsServer, nats_server_client: Client
) -> None:
    await add_stream(nats_server_client)
    async with subscribe_to(nats_server) as recorder:
        published = 0

        def numbers() -> Iterator[int]:
            nonlocal published
            while not done:
                yield published
                published += 1

        done = False
        publishing = asyncio.create_task(publish_with_retries(nats_server_client, numbers()))
        for outage in range(3):
            await recorder.wait_for_messages(len(recorder.messages) + 50)
            nats_server.kill()
            killed_at = time.monotonic()
            await recorder.wait_until(lambda n=outage: recorder.kinds.count("disconnected") > n)  # type: ignore[misc]
            assert time.monotonic() - killed_at < 1.0
            nats_server.start()
            started_at, n_before = time.monotonic(), len(recorder.messages)
            await recorder.wait_for_messages(n_before + 1)
            assert time.monotonic() - started_at < 2.0
            # The notice comes after the first messages; a server killed before it would not be reported.
            await recorder.wait_until(lambda n=outage: recorder.kinds.count("reconnected") > n)  # type: ignore[misc]
        done = True
        await publishing
        await recorder.wait_for_messages(published)
        assert recorder.numbers == list(range(published))
        assert set(recorder.kinds) == {"disconnected", "reconnected"}


async def test_a_stream_recreated_during_an_outage_is_read_from_its_beginning(
    nats_server: NatsServer, nats_server_client: Client
) -> None:
    await add_stream(nats_server_client)
    await publish_events(nats_server_client, 1, 2, 3)
    async with subscribe_to(nats_server) as recorder:
        await recorder.wait_for_messages(3)
        nats_server.kill()
        nats_server.empty_store()
        nats_server.start()
        await retry_until_success(lambda: add_stream(nats_server_client))
        await publish_events(nats_server_client, 2, 3, 4, 5, 6)
        await recorder.wait_for_messages(6)
        assert recorder.numbers == [1, 2, 3, 4, 5, 6]
        await recorder.wait_for_notice("recreated")
        await publish_events(nats_server_client, 7)
        await recorder.wait_for_messages(7)
        assert recorder.numbers == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("storage", [StorageType.FILE, StorageType.MEMORY])
async def test_a_stream_recreated_while_connected_is_read_from_its_beginning(
    storage: StorageType, bus: NatsAccount, bus_client: Client
) -> None:
    """Each start of a broker makes its streams in memory again, which is no news."""
    await add_stream(bus_client, storage=storage)
    await publish_events(bus_client, 1, 2)
    async with subscribe_to(bus) as recorder:
        await recorder.wait_for_messages(2)
        await bus_client.jetstream().delete_stream("S")
        await add_stream(bus_client, storage=storage)
        await publish_events(bus_client, 3, 4, 5)
        await recorder.wait_for_messages(5)
        assert recorder.numbers == [1, 2, 3, 4, 5]
        if storage is StorageType.FILE:
            await recorder.wait_for_notice("recreated")
        else:
            assert "recreated" not in recorder.kinds


async def test_a_paused_server_loses_no_message_and_is_reported(
    nats_server: NatsServer, nats_server_client: Client
) -> None:
    await add_stream(nats_server_client)
    async with subscribe_to(nats_server) as recorder:
        await publish_events(nats_server_client, 1)
        await recorder.wait_for_messages(1)
        nats_server.pause()
        paused_at = time.monotonic()
        await recorder.wait_for_notice("lost_server")
        assert time.monotonic() - paused_at < 5.0
        nats_server.resume()
        await recorder.wait_for_notice("reconnected")
        await publish_with_retries(nats_server_client, [2, 3])
        await recorder.wait_for_messages(3)
        assert recorder.numbers == [1, 2, 3]


async def test_a_server_without_jetstream_has_no_history(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "plain", jetstream=False) as server:
        async with (
            subscribe_to(server, patterns=["agentgym.>", "agentgym.field.*"]) as recorder,
            await NatsConnection.open(BusAddress(server.url), name="publisher") as publisher,
        ):
            assert "showing only new messages" in (await recorder.wait_for_notice("no_history")).text
            await publisher.client.publish(SUBJECT, status_event(1))
            await recorder.wait_for_messages(1)
            assert recorder.messages[0].sequence is None
            server.restart()
            assert "may have been missed" in (await recorder.wait_for_notice("reconnected")).text
            await retry_until_success(lambda: publisher.client.publish(SUBJECT, status_event(2)))
            await recorder.wait_for_messages(2)
            assert recorder.numbers == [1, 2]


async def test_a_deleted_stream_is_reported(bus: NatsAccount, bus_client: Client) -> None:
    await add_stream(bus_client)
    await publish_events(bus_client, 1)
    async with subscribe_to(bus) as recorder:
        await recorder.wait_for_messages(1)
        await bus_client.jetstream().delete_stream("S")
        assert (await recorder.wait_for_notice("removed")).text == "stream S was deleted"
        await recorder.wait_for_notice("no_history")
