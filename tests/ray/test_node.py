"""A node whose batch is played by Ray actors: commands, a signal, and a resume with processes of this machine."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ulid import ULID

from runner.events.live import LazyTimestep
from runner.subscribe.subscription import Subscription
from runner.types import EpisodePaused
from tests.faults.test_node_workers import live_items
from tests.ray.conftest import ClusterOfTwo
from tests.support.node_events import wait_until
from tests.support.node_process import NodeProcess
from tests.support.subscriptions import SubscriptionRecorder

N_EPISODES = 8
LIMIT_S = 60.0


async def test_a_node_steps_and_stops_a_batch_over_ray_and_resumes_it_over_processes(
    cluster: ClusterOfTwo, tmp_path: Path
) -> None:
    profile, data = tmp_path / "ray.yaml", tmp_path / "data"
    profile.write_text(f"id: ray\nray: {{address: '{cluster.address}'}}\n")
    batch: dict[str, Any] = {"batch_id": str(ULID()), "envs": ["SlowCounter"], "agent": "AsyncUpAgent"}
    batch |= {"repeat": N_EPISODES, "concurrency": 2}
    with NodeProcess(data, "--config", str(profile), env=dict(os.environ)) as node:
        async with (
            await node.connect() as connection,
            Subscription(connection, patterns=("agentgym.live.>",), since="all") as live,
        ):
            recorder = SubscriptionRecorder(live)
            task = asyncio.create_task(recorder.run())
            await node.request(connection, "start", **batch, workers="ray")
            await wait_until(has_steps(recorder, 3), LIMIT_S)
            await node.request(connection, "pause", batch_id=batch["batch_id"])
            await wait_until(lambda: len(paused(recorder)) == 2, LIMIT_S)
            before = steps(recorder)
            await node.request(connection, "step", episode_id=paused(recorder)[0])
            await wait_until(has_steps(recorder, before.total() + 1), LIMIT_S)
            assert steps(recorder) - before == {paused(recorder)[0]: 1}
            await node.request(connection, "resume", batch_id=batch["batch_id"])
            await node.wait_for_batch(connection, batch["batch_id"], "running", n_done=2)
            task.cancel()
        status, errors = await asyncio.to_thread(node.terminate)
        assert (status, "SIGTERM" in errors) == (0, False), errors
    with NodeProcess(data, env=dict(os.environ)) as node:
        async with await node.connect() as connection:
            await node.request(connection, "start", **batch, workers=1, resume=True)
            await node.wait_for_batch(connection, batch["batch_id"], "completed", n_done=N_EPISODES)
    episodes = [json.loads(path.read_bytes()) for path in data.glob("runs/*/*.json")]
    finished = [episode for episode in episodes if episode["outcome"] != "interrupted"]
    assert sorted(episode["task_index"] for episode in finished) == list(range(N_EPISODES))
    assert {episode["worker"]["kind"] for episode in finished} == {"ray", "process"}


def steps(recorder: SubscriptionRecorder) -> Counter[str]:
    return Counter(item.episode_id for item in live_items(recorder) if isinstance(item, LazyTimestep))


def has_steps(recorder: SubscriptionRecorder, n_steps: int) -> Callable[[], bool]:
    return lambda: steps(recorder).total() >= n_steps


def paused(recorder: SubscriptionRecorder) -> list[str]:
    """Return the ids of the episodes that have been paused."""
    return list(dict.fromkeys(item.episode_id for item in live_items(recorder) if isinstance(item, EpisodePaused)))
