"""Creation and lookup of the streams of a node's own broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from nats.js.api import StreamConfig
from nats.js.errors import BadRequestError, ServiceUnavailableError

from runner.bus.address import address_of_node
from runner.bus.broker.broker import Broker
from runner.bus.connection import BusAddress, NatsConnection
from runner.bus.streams import NoJetStream, ensure_streams, find_stream
from runner.config import EventsStream, LiveStream, StreamSettings
from runner.events.subjects import DURABLE, EVENTS_STREAM, LIVE_STREAM, live_subject
from tests.support.nats_server import NatsServer
from tests.support.node_process import NodeProcess

pytestmark = pytest.mark.long


async def test_streams_are_created_and_updated(broker: Broker) -> None:
    async with await NatsConnection.open(broker.address, name="test") as connection:
        js = connection.client.jetstream()
        assert await find_stream(js, DURABLE[0]) is None
        await ensure_streams(js, [*DURABLE, "mine"])
        assert (await js.publish("mine", b"x")).stream == EVENTS_STREAM
        await ensure_streams(js, DURABLE)
        events = await js.stream_info(EVENTS_STREAM)
        assert events.config.subjects == sorted(DURABLE)
        assert (events.config.max_bytes, events.config.duplicate_window, events.state.messages) == (1 << 30, 600.0, 1)
        assert await find_stream(js, DURABLE[0]) == EVENTS_STREAM
        assert await find_stream(js, live_subject("span", "node")) == LIVE_STREAM
        assert await find_stream(js, "mine") is None


SMALLEST = StreamSettings(
    events=EventsStream(max_age_sec=3600.5, max_bytes=1 << 20, duplicate_window_sec=1),
    live=LiveStream(max_age_sec=1, max_bytes=1 << 20),
)
LARGEST = StreamSettings(
    events=EventsStream(max_age_sec=1e9, max_bytes=4 << 30, duplicate_window_sec=1e9),
    live=LiveStream(max_age_sec=1e9, max_bytes=512 << 20),
)


async def test_changed_limits_remove_no_event(broker: Broker) -> None:
    async with await NatsConnection.open(broker.address, name="test") as connection:
        js = connection.client.jetstream()
        await ensure_streams(js, DURABLE)
        for _ in range(3):
            await js.publish(DURABLE[0], b"x" * 500_000)
        for settings in (SMALLEST, LARGEST, StreamSettings(), SMALLEST):
            await ensure_streams(js, DURABLE, settings)
            events, live = await js.stream_info(EVENTS_STREAM), await js.stream_info(LIVE_STREAM)
            limits = settings.events
            assert (events.config.max_age, events.config.max_bytes) == (limits.max_age_sec, limits.max_bytes)
            assert events.config.duplicate_window == limits.duplicate_window_sec
            assert (live.config.max_age, live.config.max_bytes) == (settings.live.max_age_sec, settings.live.max_bytes)
            assert events.state.messages == 3
        with pytest.raises(ServiceUnavailableError, match="maximum bytes exceeded"):
            await js.publish(DURABLE[0], b"x")


async def test_an_external_stream_with_the_same_subjects_is_an_error(broker: Broker) -> None:
    async with await NatsConnection.open(broker.address, name="test") as connection:
        js = connection.client.jetstream()
        await js.add_stream(StreamConfig(name="THEIRS", subjects=["agentgym.episode.>"]))
        with pytest.raises(BadRequestError, match="overlap"):
            await ensure_streams(js, DURABLE)
        assert await find_stream(js, DURABLE[0]) == "THEIRS"


async def test_a_server_without_jetstream_has_no_stream(core_nats_server: NatsServer) -> None:
    async with await NatsConnection.open(BusAddress(core_nats_server.url), name="test") as connection:
        with pytest.raises(NoJetStream):
            await find_stream(connection.client.jetstream(), DURABLE[0])


async def test_the_live_stream_exists_whenever_a_node_answers(tmp_path: Path) -> None:
    with NodeProcess(tmp_path) as node:
        address = address_of_node(tmp_path)
        assert address is not None
        async with await NatsConnection.open(address, name="test") as connection:
            assert await find_stream(connection.client.jetstream(), live_subject("span", "n1")) == LIVE_STREAM
            lost = connection.wait_changed()
            node.broker.kill()
            await lost
            await node.request(connection, "list")
            assert await find_stream(connection.client.jetstream(), live_subject("span", "n1")) == LIVE_STREAM
