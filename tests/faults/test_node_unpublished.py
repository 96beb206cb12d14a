"""A node that is killed after it stored episodes and before it could add their events to the outbox."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from ulid import ULID

from tests.faults.test_node_faults import shown, viewing
from tests.support.node_process import NodeProcess

pytestmark = pytest.mark.timeout(120)


@pytest.mark.long
async def test_a_node_killed_between_storing_and_publishing_announces_everything_once(tmp_path: Path) -> None:
    data_dir, batch_id = tmp_path / "data", str(ULID())
    with NodeProcess(data_dir) as node:
        async with await node.connect() as connection:
            await node.request(connection, "start", batch_id=batch_id, envs=["BabyAI"], agent="oracle", repeat=5000)
            await node.wait_for_batch(connection, batch_id, "running", n_done=3)
        lock = sqlite3.connect(data_dir / "outbox.sqlite", isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")  # from now on episodes are stored and their events cannot be added
        known = {event_id for (event_id,) in lock.execute("SELECT id FROM events")}
        async with asyncio.timeout(20):
            while _stored(data_dir) <= known:  # noqa: ASYNC110 - by another process
                await asyncio.sleep(0.005)
        node.kill()
        lock.close()
        stored = _stored(data_dir)
        assert stored - known, "what is to be published was stored, and nobody was told"
        node.start()
        async with viewing(node) as viewer:
            await viewer.wait_until(lambda: stored <= shown(viewer).keys())
            await asyncio.sleep(0.3)  # nothing comes twice
            assert set(shown(viewer).values()) == {1}
            assert {id_ for id_ in shown(viewer) if id_.startswith("episode:")} == _stored(data_dir)


def _stored(data_dir: Path) -> set[str]:
    return {f"episode:{path.stem}" for path in (data_dir / "runs").glob("*/*.json")}
