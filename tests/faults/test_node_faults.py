"""Events of a batch whose broker is killed while it runs."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import psutil
import pytest

from tests.support.node_events import count_event_ids, episode_event_ids, stored_episodes, subscribe_to_node, wait_until
from tests.support.node_process import NodeProcess
from tests.support.subscriptions import SubscriptionRecorder

FULL = os.environ.get("AGENTGYM_FAULTS") == "full"
REPEAT, N_KILLS = (2000, 10) if FULL else (60, 2)
TIMEOUT_S = 300.0 if FULL else 30.0

pytestmark = [pytest.mark.long, pytest.mark.timeout(600 if FULL else 120)]


async def test_killed_brokers_lose_and_duplicate_no_event(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node:
        async with subscribe_to_node(node) as recorder:
            async with await node.connect() as connection:
                batch_id = await node.start_batch(connection, "Maze", repeat=REPEAT)
            killed: set[int] = set()
            for number in range(1, N_KILLS + 1):
                await wait_until(lambda n=number: n_stored(node, batch_id) >= REPEAT * n // (N_KILLS + 1), TIMEOUT_S)  # type: ignore[misc]
                await kill_running_broker(node, killed)
                if number == 1:
                    assert n_stored(node, batch_id) < REPEAT, "the batch was over before the kill"
            assert len(killed) == N_KILLS
            await assert_all_events_received_once(recorder, node, batch_id)
            assert "reconnected" in recorder.kinds


async def assert_all_events_received_once(recorder: SubscriptionRecorder, node: NodeProcess, batch_id: str) -> None:
    """Assert that the event of each stored episode and of the batch was received exactly once."""
    await recorder.wait_until(lambda: f"batch:{batch_id}" in count_event_ids(recorder), TIMEOUT_S)
    stored = episode_event_ids(node.data_dir, batch_id)
    await recorder.wait_until(lambda: stored <= count_event_ids(recorder).keys(), TIMEOUT_S)
    await asyncio.sleep(0.3)  # time for duplicates to arrive
    counts = count_event_ids(recorder)
    assert len(stored) >= REPEAT
    assert {id_: n for id_, n in counts.items() if n != 1} == {}
    assert {id_ for id_ in counts if id_.startswith("episode:")} == stored
    assert [id_ for id_ in counts if id_.startswith("batch:")] == [f"batch:{batch_id}"]


def n_stored(node: NodeProcess, batch_id: str) -> int:
    return len(stored_episodes(node.data_dir, batch_id))


async def kill_running_broker(node: NodeProcess, killed: set[int]) -> None:
    """Kill the current broker; a process in ``killed`` may still be listed."""

    def running_brokers() -> list[psutil.Process]:
        children = psutil.Process(node.pid).children()
        return [child for child in children if child.pid not in killed and "nats-server" in child.name()]

    await wait_until(lambda: bool(running_brokers()), TIMEOUT_S)
    (broker,) = running_brokers()
    broker.kill()
    killed.add(broker.pid)
