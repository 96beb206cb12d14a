"""Several sinks of one outbox: addresses that appear or change, and several publishers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from runner.errors import ConfigError
from runner.publish.outbox import Outbox, SinkCounts
from runner.publish.publisher import Sink
from tests.support.nats_server import NatsAccount, NatsServer
from tests.support.publishing import (
    add_external_stream,
    egress_key,
    event_ids,
    open_outbox,
    outbox_event,
    run_publisher,
    sink_to,
    stored_messages,
)

pytestmark = pytest.mark.long


async def test_a_sink_without_an_address_is_absent_until_it_has_one(bus: NatsAccount, outbox: Outbox) -> None:
    sinks: list[Sink] = []
    sink = Sink("local", lambda: sinks[0].read_address() if sinks else None, owned=True)
    outbox.add(outbox_event(0))
    async with run_publisher(outbox, sink) as running:
        assert await running.publisher.wait_until_drained(5)
        assert running.publisher.states[0].status == "absent"
        sinks.append(sink_to(bus))
        await running.wait_for_state("up")
        await running.wait_until_drained()
    assert event_ids(await stored_messages(bus)) == ["event:0"]


async def test_an_outage_of_one_sink_does_not_affect_the_other(
    tmp_path: Path, bus: NatsAccount, outbox: Outbox
) -> None:
    with NatsServer(tmp_path / "stopped", jetstream=False) as stopped:
        pass
    async with run_publisher(outbox, sink_to(bus, "local"), sink_to(stopped)) as running:
        await running.wait_for_state("down", sink="egress")
        outbox.add(*map(outbox_event, range(20)))
        await running.wait_until_drained()
        assert outbox.counts() == {"local": SinkCounts(acked=20), egress_key(stopped): SinkCounts(pending=20)}
    assert len(await stored_messages(bus)) == 20


def _read_invalid_address() -> None:
    raise ConfigError("the bus URL is not valid")


@pytest.mark.parametrize("read_address", [lambda: None, _read_invalid_address], ids=["absent", "invalid"])
async def test_no_event_waits_for_an_egress_without_an_address(
    bus: NatsAccount, outbox: Outbox, read_address: Callable[[], None]
) -> None:
    async with run_publisher(outbox, sink_to(bus, "local"), Sink("egress", read_address)) as running:
        outbox.add(*map(outbox_event, range(3)))
        await running.wait_until_drained()
    assert outbox.counts() == {"local": SinkCounts(acked=3)}


async def test_processes_with_different_egresses_serve_their_own(
    bus: NatsAccount, nats_server: NatsServer, outbox: Outbox
) -> None:
    with open_outbox(outbox.data_dir) as second_outbox:
        for each in (bus, nats_server):
            await add_external_stream(each)
        async with (
            run_publisher(outbox, sink_to(bus)) as first,
            run_publisher(second_outbox, sink_to(nats_server)) as second,
        ):
            outbox.add(*map(outbox_event, range(20)))
            await first.wait_until_drained()
            await second.wait_until_drained()
        for each in (bus, nats_server):
            assert event_ids(await stored_messages(each, "THEIRS")) == [f"event:{number}" for number in range(20)]
            assert outbox.counts()[egress_key(each)] == SinkCounts(acked=20)


async def test_an_egress_that_moves_receives_earlier_events_only_on_request(
    nats_server: NatsServer, bus: NatsAccount, outbox: Outbox
) -> None:
    addresses = [sink_to(nats_server).read_address()]
    for each in (nats_server, bus):
        await add_external_stream(each)
    async with run_publisher(outbox, Sink("egress", lambda: addresses[-1])) as running:
        outbox.add(outbox_event(0))
        await running.wait_until_drained()
        addresses.append(sink_to(bus).read_address())
        nats_server.kill()
        await running.wait_for_state("down")
        await running.wait_for_state("up", sink="egress")
        await running.wait_until_drained()
        outbox.add(outbox_event(1))
        await running.wait_until_drained()
        assert event_ids(await stored_messages(bus, "THEIRS")) == ["event:1"]
        outbox.send_earlier(egress_key(bus))
        await running.wait_until_drained()
    assert event_ids(await stored_messages(bus, "THEIRS")) == ["event:1", "event:0"]


async def test_one_publisher_at_a_time_serves_a_sink(bus: NatsAccount, outbox: Outbox) -> None:
    with open_outbox(outbox.data_dir) as second_outbox:
        async with run_publisher(second_outbox, sink_to(bus, "local")) as second:
            async with run_publisher(outbox, sink_to(bus, "local")) as first:
                second_outbox.add(*map(outbox_event, range(50)))
                await first.wait_until_drained()
                await second.wait_until_drained()
            second_outbox.add(outbox_event(50))
            await second.wait_until_drained()
    assert event_ids(await stored_messages(bus)) == [f"event:{number}" for number in range(51)]
