"""The name of a node, and the state directory that it opens."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.episodes import new_id
from tests.support.node_process import NodeProcess

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]


async def test_a_state_directory_opens_under_another_node_name(tmp_path: Path) -> None:
    first, second = new_id(), new_id()
    for name, batch_id in (("pmoves-4090", first), ("my-host", second)):
        with NodeProcess(tmp_path / "data", name=name) as node:
            async with await node.connect() as connection:
                await node.request(connection, "start", batch_id=batch_id, envs=["Maze"], agent="oracle", repeat=2)
                await node.wait_for_batch(connection, batch_id, "completed", n_done=2)
                listed = await node.request(connection, "list")
            assert node.terminate()[0] == 0
    assert [batch["batch_id"] for batch in listed["batches"]] == [second, first]
    assert [batch["status"] for batch in listed["batches"]] == ["completed", "completed"]
