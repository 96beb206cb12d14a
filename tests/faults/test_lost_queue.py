"""A node whose queue file was damaged or deleted, and marks that must survive its death."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from ulid import ULID

from runner.node.state_lock import is_node_alive
from runner.store import EpisodeStore
from tests.support.command import run_agentgym
from tests.support.node_events import count_event_ids, stored_episodes, subscribe_to_node
from tests.support.node_process import NodeProcess

FULL = os.environ.get("AGENTGYM_FAULTS") == "full"
REPEAT = 60

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """State directory of a killed node, and the status of each of its batches."""
    return asyncio.run(_play_until_killed(tmp_path_factory.mktemp("killed") / "data"))


async def _play_until_killed(data_dir: Path) -> tuple[Path, dict[str, str]]:
    ids = [str(ULID()) for _ in range(3)]
    with NodeProcess(data_dir) as node:
        async with await node.connect() as connection, subscribe_to_node(node) as recorder:
            await node.request(connection, "start", batch_id=ids[0], envs=["Maze"], agent="oracle", repeat=3)
            await node.wait_for_batch(connection, ids[0], "completed")
            await node.request(connection, "start", batch_id=ids[1], envs=["BabyAI"], agent="oracle", repeat=5000)
            await node.wait_for_batch(connection, ids[1], "running", n_done=1)
            await node.request(connection, "cancel", batch_id=ids[1])
            # Without the queue's file, only the event tells that the batch was cancelled.
            await recorder.wait_until(lambda: f"batch:{ids[1]}" in count_event_ids(recorder))
            await node.request(connection, "start", batch_id=ids[2], envs=["BabyAI"], agent="oracle", repeat=REPEAT)
            await node.wait_for_batch(connection, ids[2], "running", n_done=2)
    return data_dir, dict(zip(ids, ("completed", "cancelled", "interrupted"), strict=True))


def delete(path: Path) -> None:
    path.unlink()


def overwrite(path: Path) -> None:
    path.write_bytes(os.urandom(9000))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def replace_by_folder(path: Path) -> None:
    path.unlink()
    (path / "x").mkdir(parents=True)


DAMAGES = [overwrite, delete, *([empty, replace_by_folder] if FULL else [])]


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_lost_queue_is_restored_reported_and_resumed(
    damage: Callable[[Path], None], killed: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    data_dir = shutil.copytree(killed[0], tmp_path / "data")
    damage(data_dir / "batches.jsonl")
    *_, interrupted = killed[1]
    with NodeProcess(data_dir) as node:
        async with await node.connect() as connection, subscribe_to_node(node) as recorder:
            listed = await node.request(connection, "list")
            assert {batch["batch_id"]: batch["status"] for batch in listed["batches"]} == killed[1]
            assert "listed again" in listed["queue"]
            args = {"envs": ["BabyAI"], "agent": "oracle", "repeat": REPEAT, "resume": True}
            await node.request(connection, "start", batch_id=interrupted, **args)
            await node.wait_for_batch(connection, interrupted, "completed", n_done=REPEAT)
            await recorder.wait_until(lambda: {f"batch:{id_}" for id_ in killed[1]} <= count_event_ids(recorder).keys())
            assert set(count_event_ids(recorder).values()) == {1}
        status, errors = await asyncio.to_thread(node.terminate)
    assert (status, "Traceback" in errors) == (0, False), errors
    assert listed["queue"] in (data_dir / "logs" / "runner.log").read_text()
    store = EpisodeStore(data_dir)
    records = [store.load(path) for path in stored_episodes(data_dir, interrupted)]
    finished = Counter(record.task_index for record in records if record.outcome != "interrupted")
    assert finished == dict.fromkeys(range(REPEAT), 1)


async def test_a_batch_cancelled_while_it_runs_stays_cancelled_if_the_node_dies_at_once(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node:
        async with await node.connect() as connection:
            batch_id = await node.start_batch(connection, "BabyAI", repeat=5000)
            await node.wait_for_batch(connection, batch_id, "running", n_done=1)
            await node.request(connection, "cancel", batch_id=batch_id)
            node.kill()
        node.start()
        async with await node.connect() as connection, subscribe_to_node(node) as recorder:
            listed = await node.request(connection, "list")
            assert [batch["status"] for batch in listed["batches"]] == ["cancelled"]
            await recorder.wait_until(lambda: f"batch:{batch_id}" in count_event_ids(recorder))


def test_a_second_node_does_not_start_after_the_lock_file_was_deleted(tmp_path: Path) -> None:
    with NodeProcess(data_dir := tmp_path / "data") as node:
        (data_dir / "node.lock").unlink()
        for _ in range(2):
            second = run_agentgym(tmp_path, "node", "--node", "n2")
            assert second.returncode == 2
            assert f"belongs to the node with pid {node.pid}" in second.stderr
        assert is_node_alive(data_dir)
    assert not is_node_alive(data_dir)
