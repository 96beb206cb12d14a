"""A node whose batch is played by worker processes: what its bus and its list show, a killed worker, and a resume."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from ulid import ULID

from runner.events.codec import LiveRow
from runner.subscribe.subscription import Subscription
from runner.types import BatchProgress, WorkerCounts, WorkerState
from tests.support.node_events import wait_until
from tests.support.node_process import NodeProcess, running_node
from tests.support.subscriptions import SubscriptionRecorder

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

N_EPISODES = 150
LIMIT_S = 90.0


def live_items(recorder: SubscriptionRecorder) -> Iterator[object]:
    for message in recorder.messages:
        if isinstance(message.decoded, LiveRow):
            yield from message.decoded.batch.items


def worker_pids(recorder: SubscriptionRecorder) -> dict[str, int]:
    changes = [item for item in live_items(recorder) if isinstance(item, WorkerState)]
    assert [change.seq for change in changes] == list(range(len(changes)))
    return {change.id: change.pid for change in changes if change.pid is not None}


def newest_counts(recorder: SubscriptionRecorder) -> WorkerCounts | None:
    progress = [item.workers for item in live_items(recorder) if isinstance(item, BatchProgress)]
    return progress[-1] if progress else None


async def test_a_batch_over_workers_survives_a_killed_one_and_resumes_in_the_node(tmp_path: Path) -> None:
    batch: dict[str, Any] = {
        "batch_id": str(ULID()),
        "envs": ["BabyAI"],
        "agent": "oracle",
        "repeat": N_EPISODES,
        "concurrency": 4,
    }
    with NodeProcess(tmp_path / "data") as node:
        async with (
            await node.connect() as connection,
            Subscription(connection, patterns=("agentgym.live.batch.>",), since="all") as subscription,
        ):
            recorder = SubscriptionRecorder(subscription)
            task = asyncio.create_task(recorder.run())
            (started,) = await node.request(connection, "start", **batch, workers=2)
            assert started["workers"] == 2
            await wait_until(lambda: newest_counts(recorder) == WorkerCounts(n=2), LIMIT_S)
            pids = worker_pids(recorder)
            assert len(pids) == 2
            os.kill(pids["worker 0"], signal.SIGKILL)
            await wait_until(lambda: newest_counts(recorder) == WorkerCounts(n=2, lost=1), LIMIT_S)
            pids |= worker_pids(recorder)
            await node.wait_for_batch(connection, batch["batch_id"], "running", n_done=5)
            task.cancel()
        status, errors = await asyncio.to_thread(node.terminate)
        assert (status, "worker 0 was lost" in errors) == (0, True)
        await wait_until(lambda: not any(map(psutil.pid_exists, pids.values())), LIMIT_S)
    async with running_node(tmp_path / "data") as (node, connection):
        (resumed,) = await node.request(connection, "start", **batch, workers=0, resume=True)
        assert resumed["workers"] == 0
        await node.wait_for_batch(connection, batch["batch_id"], "completed", n_done=N_EPISODES)
    episodes = [json.loads(path.read_bytes()) for path in (tmp_path / "data").glob("runs/*/*.json")]
    finished = [episode for episode in episodes if episode["outcome"] != "interrupted"]
    assert sorted(episode["task_index"] for episode in finished) == list(range(N_EPISODES))
    assert {episode["worker"]["kind"] for episode in finished} == {"process", "local"}
