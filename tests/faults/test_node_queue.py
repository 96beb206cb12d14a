"""A real node whose waiting batches are moved and whose ended batches are played again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from ulid import ULID

from runner.batch.spec import BatchSpec
from runner.batch.workspace import Workspace
from runner.events.codec import LiveRow
from runner.events.live import QueueChanged
from runner.node.batch_queue import BatchQueue, QueuedBatch
from runner.subscribe.subscription import Subscription
from runner.types import Outcome
from tests.support.episodes import RecordedEpisode
from tests.support.node_events import wait_until
from tests.support.node_process import NodeProcess, running_node
from tests.support.subscriptions import SubscriptionRecorder

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

LIMIT_S = 30.0


def newest_queue(recorder: SubscriptionRecorder) -> list[str] | None:
    rows = [message.decoded for message in recorder.messages if isinstance(message.decoded, LiveRow)]
    items = [item for row in rows for item in row.batch.items if isinstance(item, QueueChanged)]
    return [waiting.batch_id for waiting in items[-1].batches] if items else None


async def test_a_moved_batch_runs_earlier_and_the_bus_shows_the_queue(tmp_path: Path) -> None:
    running, first, second = (str(ULID()) for _ in range(3))
    with NodeProcess(tmp_path / "data") as node:
        async with (
            await node.connect() as connection,
            Subscription(connection, patterns=("agentgym.live.batch.>",), since="all") as subscription,
        ):
            recorder = SubscriptionRecorder(subscription)
            task = asyncio.create_task(recorder.run())
            await node.request(connection, "start", batch_id=running, envs=["BabyAI"], agent="oracle", repeat=5000)
            await node.wait_for_batch(connection, running, "running")
            for batch_id in (first, second):
                await node.request(connection, "start", batch_id=batch_id, envs=["Maze"], agent="oracle")
            await node.request(connection, "move", batch_id=second, to=0)
            await wait_until(lambda: newest_queue(recorder) == [second, first], LIMIT_S)
            await node.request(connection, "cancel", batch_id=running)
            for batch_id in (first, second):
                await node.wait_for_batch(connection, batch_id, "completed", n_done=1)
            await wait_until(lambda: newest_queue(recorder) == [], LIMIT_S)
            task.cancel()
    ends = {path.parent.name: json.loads(path.read_bytes())["started_at"] for path in episode_files(tmp_path)}
    assert ends[second] < ends[first]


def episode_files(folder: Path) -> list[Path]:
    return list(folder.glob("data/runs/*/*.json"))


async def test_a_node_plays_again_only_the_episodes_with_an_error(tmp_path: Path) -> None:
    data_dir, old = tmp_path / "data", str(ULID())
    spec = BatchSpec(env="Maze", agent="oracle", repeat=3, attempts=2, seed=4)
    workspace = Workspace(data_dir, node="n", profile="p")
    for task_index, attempt in ((task, attempt) for task in range(3) for attempt in range(2)):
        fields: dict[str, Any] = {"batch_id": old, "env": "Maze", "task_index": task_index, "attempt": attempt}
        recording = RecordedEpisode(workspace.store, workspace.index, **fields)
        recording.start()
        recording.end(outcome=Outcome.ERROR if (task_index, attempt) == (1, 1) else Outcome.SUCCESS)
    workspace.close()
    queue = BatchQueue(data_dir)
    queue.add(QueuedBatch(batch_id=old, battery_id=None, spec=spec, status="completed", n_done=6))
    async with running_node(data_dir) as (node, connection):
        (state,) = await node.request(connection, "replay", batch_id=old, only="errors")
        again = await node.wait_for_batch(connection, state["batch_id"], "completed")
        (state,) = await node.request(connection, "replay", batch_id=old)
        everything = await node.wait_for_batch(connection, state["batch_id"], "completed")
    assert (again["n_done"], again["n_planned"], everything["n_done"]) == (1, 1, 6)
    (played,) = (json.loads(path.read_bytes()) for path in data_dir.glob(f"runs/{again['batch_id']}/*.json"))
    assert (played["task_index"], played["attempt"], played["seed"], played["outcome"]) == (1, 1, 5, "success")
