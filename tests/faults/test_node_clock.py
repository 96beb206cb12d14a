"""Jumps of the wall clock under a running node: they change time stamps, and nothing else."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg
from ulid import ULID

from runner.store import EpisodeRecord, EpisodeStore
from runner.types import Outcome
from tests.support.node_events import count_event_ids, stored_episodes, subscribe_to_node, wait_until
from tests.support.node_process import NodeProcess, clean_environ
from tests.support.shifted_clock import ShiftedClock

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]

HOUR_S = 3600
REPEAT = 60
JUMPS_H = (0, 2, -3, 24 * 400, 0)
"""Hours by which the clock is wrong in each batch."""
BATCH: dict[str, Any] = {"envs": ["BabyAI"], "agent": "oracle", "repeat": REPEAT}


def ahead_h(at: datetime) -> int:
    return round((at - datetime.now(UTC)).total_seconds() / HOUR_S)


async def test_a_jump_of_the_clock_changes_only_time_stamps(tmp_path: Path) -> None:
    clock = ShiftedClock(tmp_path)
    data_dir, n_batches = tmp_path / "data", len(JUMPS_H)
    beats: list[dict[str, Any]] = []

    async def on_health(message: Msg) -> None:
        beats.extend(item for item in json.loads(message.data)["items"] if item["kind"] == "heartbeat")

    def n_beats_at(hours: int) -> int:
        return sum(ahead_h(datetime.fromisoformat(beat["at"])) == hours for beat in beats)

    with NodeProcess(data_dir, "--idle-exit", "900", env=clean_environ(**clock.environ)) as node:
        async with await node.connect() as connection, subscribe_to_node(node) as recorder:
            await connection.client.subscribe("agentgym.live.health.v1.n1", cb=on_health)
            for hours in JUMPS_H:
                played_id = str(ULID())
                await node.request(connection, "start", batch_id=played_id, **BATCH)
                await node.wait_for_batch(connection, played_id, "running", "completed", n_done=2)
                clock.set(hours * HOUR_S)
                n_beats = n_beats_at(hours)
                await node.wait_for_batch(connection, played_id, "completed", n_done=REPEAT)
                await wait_until(lambda n=n_beats, h=hours: n_beats_at(h) >= n + 2, 20)  # type: ignore[misc]
            health = await node.request(connection, "health")
            assert 0 < health["uptime_s"] < 170
            assert health["status"] == "idle"
            records = [EpisodeStore(data_dir).load(path) for path in stored_episodes(data_dir)]
            await wait_until(lambda: sum(count_event_ids(recorder).values()) >= len(records) + n_batches, 20)
            assert set(count_event_ids(recorder).values()) == {1}
        status, errors = node.terminate()
    assert status == 0, errors
    assert "WARNING" not in errors
    assert len(records) == REPEAT * n_batches
    assert len({(record.task_index, record.outcome, record.rounds, record.reward) for record in records}) == REPEAT
    assert {ahead_h(record.started_at) for record in records} >= set(JUMPS_H)
    for record in records:
        check_durations(record)


def check_durations(record: EpisodeRecord) -> None:
    assert 0 <= record.duration_s < 60
    assert record.paused_s == 0
    assert all(0 <= step.model_s < 60 and 0 <= step.env_s < 60 for step in record.timesteps)
    assert all(0 <= span.end_ns - span.start_ns < 60e9 for span in record.spans)


async def test_a_batch_resumed_after_the_clock_went_back_plays_no_task_twice(tmp_path: Path) -> None:
    clock = ShiftedClock(tmp_path)
    data_dir, batch_id = tmp_path / "data", str(ULID())
    clock.set(HOUR_S)
    with NodeProcess(data_dir, env=clean_environ(**clock.environ)) as node:
        async with await node.connect() as connection:
            await node.request(connection, "start", batch_id=batch_id, **BATCH)
            await node.wait_for_batch(connection, batch_id, "running", n_done=3)
        node.kill()
        before = {path.stem for path in stored_episodes(data_dir, batch_id)}
        clock.set(-HOUR_S)
        node.start()
        async with await node.connect() as connection:
            await node.request(connection, "start", batch_id=batch_id, resume=True, **BATCH)
            await node.wait_for_batch(connection, batch_id, "completed", n_done=REPEAT)
    records = [EpisodeStore(data_dir).load(path) for path in stored_episodes(data_dir, batch_id)]
    finished = sorted(record.task_index for record in records if record.outcome is not Outcome.INTERRUPTED)
    assert finished == list(range(REPEAT))
    assert before and before <= {record.episode_id for record in records}
    assert {ahead_h(record.started_at) for record in records} == {1, -1}


async def test_the_id_of_a_node_that_starts_after_the_clock_went_back_sorts_after_the_id_before(tmp_path: Path) -> None:
    clock = ShiftedClock(tmp_path)
    boots = []
    clock.set(24 * HOUR_S)
    with NodeProcess(tmp_path / "data", env=clean_environ(**clock.environ)) as node:
        for hours in (0, -1, None):
            async with await node.connect() as connection:
                boots.append((await node.request(connection, "health"))["boot"])
            if hours is not None:
                node.kill()
                clock.set(hours * HOUR_S)
                node.start()
    assert boots == sorted(set(boots))
    assert ahead_h(ULID.from_str(boots[-1]).datetime) == 24
