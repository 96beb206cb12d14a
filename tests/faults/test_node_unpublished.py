"""A node that is killed after storing episodes and before adding their events to the outbox."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from ulid import ULID

from tests.support.node_events import count_event_ids, episode_event_ids, subscribe_to_node, wait_until
from tests.support.node_process import NodeProcess

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]


async def test_a_node_killed_between_storing_and_publishing_publishes_every_event_once(tmp_path: Path) -> None:
    data_dir, batch_id = tmp_path / "data", str(ULID())
    with NodeProcess(data_dir) as node:
        async with await node.connect() as connection:
            await node.request(connection, "start", batch_id=batch_id, envs=["BabyAI"], agent="oracle", repeat=5000)
            await node.wait_for_batch(connection, batch_id, "running", n_done=3)
        lock = sqlite3.connect(data_dir / "outbox.sqlite", isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")  # episodes are still stored, but their events cannot be added
        published = {event_id for (event_id,) in lock.execute("SELECT id FROM events")}
        await wait_until(lambda: not episode_event_ids(data_dir) <= published, 20)
        node.kill()
        lock.close()
        stored = episode_event_ids(data_dir)
        assert stored - published, "every stored episode was published before the kill"
        node.start()
        async with subscribe_to_node(node) as recorder:
            await recorder.wait_until(lambda: stored <= count_event_ids(recorder).keys())
            await asyncio.sleep(0.3)  # time for duplicates to arrive
            assert set(count_event_ids(recorder).values()) == {1}
            assert {id_ for id_ in count_event_ids(recorder) if id_.startswith("episode:")} == episode_event_ids(
                data_dir
            )
