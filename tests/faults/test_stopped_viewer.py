"""A stopped viewer: publishers continue, and the viewer catches up and reports the lost connection."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from runner.bus.connection import BusAddress, NatsConnection
from tests.support.nats_server import NatsServer
from tests.support.subscriptions import SUBJECT, add_stream, publish_events
from tests.support.watch_process import CANARY, read_line, watch

LIVE_SUBJECT = "agentgym.other"
FLOOD = [b"x" * 30_000] * 700
"""More than pipes and socket buffers hold."""

STOPS_S = (0, 12) if os.environ.get("AGENTGYM_FAULTS") == "full" else (0,)
USERS = {"authorization": {"users": [{"user": "me", "password": CANARY}]}}

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]


@pytest.mark.parametrize("stopped_s", STOPS_S)
@pytest.mark.parametrize(
    ("limits", "floods", "reason"),
    [
        ({"max_pending": 2_000_000}, True, b"closed the connection: it is stopping, or this client was too slow"),
        ({"ping_interval": "0.3s", "ping_max": 1}, False, b"was closed: pings were not answered in time"),
    ],
    ids=["slow", "silent"],
)
async def test_a_stopped_viewer_catches_up_and_reports_the_reason(
    tmp_path: Path, limits: dict[str, object], floods: bool, reason: bytes, stopped_s: float
) -> None:
    with NatsServer(tmp_path / "nats", config=USERS | limits, options=("-D",)) as server:
        address = BusAddress(server.url, user="me", password=CANARY)
        async with (
            await NatsConnection.open(address, name="publisher") as publisher,
            watch(
                tmp_path,
                "--nats",
                server.url,
                "--subject",
                SUBJECT,
                "--subject",
                LIVE_SUBJECT,
                "--since",
                "all",
                "--json",
            ) as viewer,
        ):
            await add_stream(publisher.client)
            await publish_events(publisher.client, 0)
            await read_line(viewer)
            viewer.send_signal(signal.SIGSTOP)
            for payload in FLOOD if floods else []:
                await publisher.client.publish(LIVE_SUBJECT, payload)
            await publish_events(publisher.client, *range(1, 700))
            await _wait_until_disconnected(server, stopped_s)
            assert publisher.client.stats["reconnects"] == 0
            viewer.send_signal(signal.SIGCONT)
            reading_errors = asyncio.create_task(_read_errors_until(viewer, reason))
            numbers = await _read_numbers(viewer, 699)
            assert viewer.stdout is not None
            rest_of_output = asyncio.create_task(viewer.stdout.read())  # otherwise a full pipe could block the viewer
            errors = await reading_errors
            viewer.send_signal(signal.SIGINT)
            await rest_of_output
            errors += (await viewer.communicate())[1]
    assert numbers == list(range(1, 700))
    assert b"Traceback" not in errors


async def _wait_until_disconnected(server: NatsServer, stopped_s: float) -> None:
    """Wait until the server has disconnected the viewer, and ``stopped_s`` more."""
    async with asyncio.timeout(20):
        while not any(cut in server.log.read_bytes() for cut in (b"Slow Consumer", b"Stale Client")):  # noqa: ASYNC110 - a file
            await asyncio.sleep(0.02)
    await asyncio.sleep(stopped_s)


async def _read_numbers(viewer: asyncio.subprocess.Process, count: int) -> list[int]:
    numbers: list[int] = []
    while len(numbers) < count:
        row = json.loads(await read_line(viewer))
        if row["subject"] == SUBJECT:
            numbers.append(row["data"]["pid"])
    return numbers


async def _read_errors_until(viewer: asyncio.subprocess.Process, text: bytes) -> bytes:
    assert viewer.stderr is not None
    errors = b""
    while text not in errors:
        line = await viewer.stderr.readline()
        assert line, errors
        errors += line
    return errors
