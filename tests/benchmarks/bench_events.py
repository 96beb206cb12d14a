"""Rate of durable events from the outbox, compared with a bare ``js.publish`` loop of the same concurrency."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from runner.publish.delivery import DEFAULT_DELIVERY
from runner.publish.outbox import Outbox, OutboxEvent
from runner.publish.publisher import MIN_INTERVAL_S
from tests.benchmarks.measure import PAIRS, Row, quartiles
from tests.support.nats_server import NatsServer
from tests.support.publishing import nats_client, open_outbox, outbox_event, run_publisher, sink_to

N = 5000
PAYLOAD = b'{"text": "' + b"x" * 480 + b'"}'
N_PER_TRANSACTION = 500
MIN_RATE = 2000
BARE_STREAM = "BARE"
BARE_SUBJECT = "bare.events"


async def publish_from_outbox(server: NatsServer, outbox: Outbox, events: list[OutboxEvent]) -> float:
    """Return the events per second from the first ``add`` to the last acknowledgement mark in the outbox.

    The pause before it ensures that the first events are sent at once.
    """
    async with run_publisher(outbox, sink_to(server, "local")) as running:
        await running.wait_for_state("up")
        outbox.add(outbox_event(-1, id=f"warm-up:{events[0].id}"))
        await running.wait_until_drained()
        await asyncio.sleep(MIN_INTERVAL_S)
        started = time.perf_counter()
        await asyncio.to_thread(_add, outbox, events)
        await running.wait_until_drained()
        return len(events) / (time.perf_counter() - started)


def _add(outbox: Outbox, events: list[OutboxEvent]) -> None:
    for first in range(0, len(events), N_PER_TRANSACTION):
        outbox.add(*events[first : first + N_PER_TRANSACTION])


async def publish_bare(server: NatsServer, events: list[OutboxEvent]) -> float:
    """Return the events per second of the bare client; each event has an id."""
    async with nats_client(server) as client:
        js = client.jetstream()
        limit = asyncio.Semaphore(DEFAULT_DELIVERY.max_in_flight)

        async def publish(event: OutboxEvent) -> None:
            async with limit:
                await js.publish(BARE_SUBJECT, event.payload, headers={"Nats-Msg-Id": event.id})

        await js.publish(BARE_SUBJECT, b"warm-up")
        started = time.perf_counter()
        await asyncio.gather(*map(publish, events))
        return len(events) / (time.perf_counter() - started)


async def _pairs(server: NatsServer, outbox: Outbox) -> list[tuple[float, float]]:
    async with nats_client(server) as client:
        await client.jetstream().add_stream(name=BARE_STREAM, subjects=[BARE_SUBJECT])
    pairs: list[tuple[float, float]] = []
    for number in range(PAIRS + 1):
        events = [outbox_event(n, id=f"{number}:{n}", payload=PAYLOAD) for n in range(N)]
        if number % 2:
            rate = await publish_from_outbox(server, outbox, events)
            pair = (rate, await publish_bare(server, events))
        else:
            bare_rate = await publish_bare(server, events)
            pair = (await publish_from_outbox(server, outbox, events), bare_rate)
        pairs.append(pair)
    return pairs[1:]


def run() -> list[Row]:
    with (
        tempfile.TemporaryDirectory() as folder,
        NatsServer(Path(folder) / "server") as server,
        open_outbox(Path(folder) / "data") as outbox,
    ):
        pairs = asyncio.run(_pairs(server, outbox))
    q1, ratio, q3 = quartiles([own / bare for own, bare in pairs])
    _, rate, _ = quartiles([own for own, _ in pairs])
    _, bare_rate, _ = quartiles([bare for _, bare in pairs])
    return [
        Row(
            "durable events from the outbox to their acknowledgement",
            f"{rate:,.0f}/s",
            f">= {MIN_RATE:,}/s",
            rate >= MIN_RATE,
        ),
        Row(
            "the same / a bare js.publish loop, rates",
            f"{ratio:.2f}x ({q1:.2f}-{q3:.2f}) of {bare_rate:,.0f}/s",
            ">= 0.5x",
            ratio >= 0.5,
        ),
    ]
