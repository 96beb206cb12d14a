"""A viewer that is stopped in its tracks: who publishes goes on, and it catches up and says that it was cut off."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from runner.bus.connection import BusAddress, NatsConnection
from tests.faults.test_watch import CANARY, line_of, watch
from tests.support.nats_server import NatsServer
from tests.support.subscriptions import SUBJECT, add_stream, publish_events

LIVE = "agentgym.other"
MORE_THAN_PIPES_HOLD = [b"x" * 30_000] * 700
STOPS_S = (0, 12) if os.environ.get("AGENTGYM_FAULTS") == "full" else (0,)
USERS = {"authorization": {"users": [{"user": "me", "password": CANARY}]}}

pytestmark = pytest.mark.timeout(180)


@pytest.mark.long
@pytest.mark.parametrize("stopped_s", STOPS_S)
@pytest.mark.parametrize(
    ("limits", "floods", "why"),
    [
        ({"max_pending": 2_000_000}, True, b"closed the connection: it is stopping, or this client was too slow"),
        ({"ping_interval": "0.3s", "ping_max": 1}, False, b"was closed: pings were not answered in time"),
    ],
    ids=["slow", "silent"],
)
async def test_it_catches_up_and_says_why_it_was_cut(
    tmp_path: Path, limits: dict[str, object], floods: bool, why: bytes, stopped_s: float
) -> None:
    with NatsServer(tmp_path / "nats", config=USERS | limits, options=("-D",)) as server:
        address = BusAddress(server.url, user="me", password=CANARY)
        async with (
            await NatsConnection.open(address, name="publisher") as publisher,
            watch(
                tmp_path, "--nats", server.url, "--subject", SUBJECT, "--subject", LIVE, "--since", "all", "--json"
            ) as viewer,
        ):
            await add_stream(publisher.client)
            await publish_events(publisher.client, 0)
            await line_of(viewer)
            viewer.send_signal(signal.SIGSTOP)
            for payload in MORE_THAN_PIPES_HOLD if floods else []:
                await publisher.client.publish(LIVE, payload)
            await publish_events(publisher.client, *range(1, 700))
            await _until_alone(server, stopped_s)
            assert publisher.client.stats["reconnects"] == 0
            viewer.send_signal(signal.SIGCONT)
            hearing = asyncio.create_task(_said(viewer, why))
            numbers = await _numbers(viewer, 699)
            assert viewer.stdout is not None
            rest = asyncio.create_task(viewer.stdout.read())  # else it might have to wait for us
            said = await hearing
            viewer.send_signal(signal.SIGINT)
            await rest
            said += (await viewer.communicate())[1]
    assert numbers == list(range(1, 700))
    assert b"Traceback" not in said


async def _until_alone(server: NatsServer, stopped_s: float) -> None:
    """Until the server has given the viewer up, and then some."""
    async with asyncio.timeout(20):
        while not any(cut in server.log.read_bytes() for cut in (b"Slow Consumer", b"Stale Client")):  # noqa: ASYNC110 - a file
            await asyncio.sleep(0.02)
    await asyncio.sleep(stopped_s)


async def _numbers(viewer: asyncio.subprocess.Process, count: int) -> list[int]:
    numbers: list[int] = []
    while len(numbers) < count:
        row = json.loads(await line_of(viewer))
        if row["subject"] == SUBJECT:
            numbers.append(row["data"]["pid"])
    return numbers


async def _said(viewer: asyncio.subprocess.Process, why: bytes) -> bytes:
    """What it says until it has told why it was cut off, which may come after what it catches up with."""
    assert viewer.stderr is not None
    said = b""
    while why not in said:
        line = await viewer.stderr.readline()
        assert line, said
        said += line
    return said
