"""Somebody else's stream over everything of ours acknowledges requests, too: an acknowledgement is no reply."""

from __future__ import annotations

from pathlib import Path

import pytest
from nats.js.api import StreamConfig
from ulid import ULID

from runner.bus.connection import BusAddress, NatsConnection
from tests.support.nats_server import NatsServer
from tests.support.node_process import NodeProcess, clean_environ
from tests.support.publishing import nats_client

PROFILE = "id: p\nenvironments: {lightweight: [{name: Maze}]}\nnats: {control: true}\n"


@pytest.mark.long
async def test_a_stream_over_the_control_subject_keeps_no_node_from_its_work(tmp_path: Path) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text(PROFILE)
    with NatsServer(tmp_path / "nats") as server:
        async with nats_client(server) as client:
            await client.jetstream().add_stream(StreamConfig(name="THEIRS", subjects=["agentgym.>"]))
        with NodeProcess(tmp_path / "data", "--config", str(profile), env=clean_environ(NATS_URL=server.url)) as node:
            async with await NatsConnection.open(BusAddress(server.url), name="test") as elsewhere:
                batch_id = str(ULID())
                await node.request(elsewhere, "start", batch_id=batch_id, envs=["Maze"], agent="oracle")
                await node.wait_for_batch(elsewhere, batch_id, "completed", n_done=1)
