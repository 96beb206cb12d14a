"""Stream limits of a profile on a node's own broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from nats.js.api import StreamConfig
from nats.js.errors import NotFoundError

from runner.bus.connection import NatsConnection
from tests.support.node_process import NodeProcess

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]


async def test_changed_stream_limits_are_applied_without_losing_events(tmp_path: Path) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text(PROFILE.format(streams="{live: {max_bytes: 2097152}}"))
    with NodeProcess(tmp_path / "data", "--config", str(profile)) as node:
        async with await node.connect() as connection:
            await wait_for_limits(connection, "AGENTGYM_LIVE", lambda config: config.max_bytes == 2 << 20)
            batch_id = await node.start_batch(connection, "Maze", repeat=3)
            await node.wait_for_batch(connection, batch_id, "completed", n_done=3)
        await asyncio.to_thread(node.terminate)
        profile.write_text(PROFILE.format(streams="{events: {max_bytes: 1048576, max_age_sec: 5000.5}}"))
        node.start()
        async with await node.connect() as connection:
            await wait_for_limits(
                connection, "AGENTGYM_EVENTS", lambda config: (config.max_bytes, config.max_age) == (1 << 20, 5000.5)
            )
            state = (await connection.client.jetstream().stream_info("AGENTGYM_EVENTS")).state
            assert (state.first_seq, state.messages >= 4) == (1, True)


PROFILE = "id: p\nenvironments: {{lightweight: [{{name: Maze}}]}}\nnats: {{streams: {streams}}}\n"


async def wait_for_limits(connection: NatsConnection, stream: str, matches: Callable[[StreamConfig], bool]) -> None:
    """Wait until the node, which may be ready earlier, has applied the limits."""
    js = connection.client.jetstream()
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(NotFoundError):
                if matches((await js.stream_info(stream)).config):
                    return
            await asyncio.sleep(0.02)
