"""A node beside an external stream that keeps, and acknowledges, control requests as well."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.bus.connection import BusAddress, NatsConnection
from tests.support.nats_server import NatsAccount
from tests.support.node_process import NodeProcess, clean_environ
from tests.support.publishing import add_external_stream

pytestmark = pytest.mark.long

PROFILE = "id: p\nenvironments: {lightweight: [{name: Maze}]}\nnats: {control: true}\n"


async def test_acknowledgements_of_control_requests_are_not_taken_for_replies(tmp_path: Path, bus: NatsAccount) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text(PROFILE)
    await add_external_stream(bus)
    with NodeProcess(tmp_path / "data", "--config", str(profile), env=clean_environ(NATS_URL=bus.url)) as node:
        async with await NatsConnection.open(BusAddress(bus.url), name="test") as connection:
            batch_id = await node.start_batch(connection, "Maze")
            await node.wait_for_batch(connection, batch_id, "completed", n_done=1)
