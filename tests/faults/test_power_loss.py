"""Power loss at every sync of a node: what it answered and published before holds on what the disk kept."""

from __future__ import annotations

import asyncio
import filecmp
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ulid import ULID

from tests.support.node_events import count_event_ids, episode_event_ids, stored_episodes, subscribe_to_node
from tests.support.node_process import NodeProcess, clean_environ
from tests.support.power_loss import DiskLog, Operation, disks_at_syncs
from tests.support.power_loss_facts import Recording, broken_promises, find_violations, record_node

FULL = os.environ.get("AGENTGYM_FAULTS") == "full"
SEED = int(os.environ.get("AGENTGYM_SEED", "1"))
N_DISKS = 1_000_000 if FULL else 40
N_NODES = 60 if FULL else 3

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800 if FULL else 120)]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    folder = tmp_path_factory.mktemp("power_loss")
    (root := folder / "disk").mkdir()
    log = DiskLog(folder, root)
    with NodeProcess(root / "data", env=clean_environ(**log.environ)) as node:
        return asyncio.run(record_node(log, node))


def survivors(
    recording: Recording,
    folder: Path,
    n_disks: int,
    *,
    seed: int | None = None,
    ignored: Callable[[Operation], bool] = lambda _: False,
) -> Iterator[tuple[int, Path]]:
    """Yield positions of the log, and the state directories that survive a power loss there; lenient with a seed."""
    rng = random.Random(SEED if seed is None else seed)
    n_syncs = sum(1 for _ in disks_at_syncs(recording.log))
    chosen = {n_syncs - 1, *rng.sample(range(n_syncs), min(n_disks, n_syncs))}
    for number, (position, disk) in enumerate(disks_at_syncs(recording.log, ignored=ignored)):
        if number in chosen:
            root = disk.write_to(folder / str(number), "unsynced" if seed is None else rng)
            yield position, root / "data"
            shutil.rmtree(root)


def test_the_log_has_every_change(recording: Recording, tmp_path: Path) -> None:
    *_, (_, disk) = disks_at_syncs(recording.log)
    kept = disk.write_to(tmp_path / "kept", "nothing")
    paths = {path.relative_to(recording.log.root) for path in recording.log.root.rglob("*") if path.is_file()}
    by_others = {path for path in paths if "-shm" in path.name or "nats" in path.as_posix()}  # maps, and a Go program
    differing = {path for path in paths - by_others if not filecmp.cmp(kept / path, recording.log.root / path, False)}
    assert differing == set()
    assert len(paths - by_others) > 20


@pytest.mark.parametrize("seed", [None, *range(SEED, SEED + (5 if FULL else 1))])
def test_every_promise_holds_after_a_power_loss(seed: int | None, recording: Recording, tmp_path: Path) -> None:
    violations = {
        position: found
        for position, data_dir in survivors(recording, tmp_path, N_DISKS, seed=seed)
        if (found := find_violations(recording, position, data_dir))
    }
    assert violations == {}
    assert len(recording.facts.accepted) == 6
    assert len(recording.facts.episodes) >= 14


BROKEN_SYNCS: dict[str, tuple[Callable[[Operation], bool], str]] = {
    "queue": (lambda operation: "/batches.jsonl" in operation.path, "is lost"),
    "episode files": (lambda operation: operation.path.endswith(".json.tmp"), "is not stored as it was"),
    "folders": (lambda operation: operation.kind == "D", "is lost"),
}


@pytest.mark.parametrize("broken", BROKEN_SYNCS)
def test_a_missing_sync_breaks_a_promise(broken: str, recording: Recording, tmp_path: Path) -> None:
    is_broken, consequence = BROKEN_SYNCS[broken]

    def ignored(operation: Operation) -> bool:
        return operation.kind in "SD" and is_broken(operation)

    for position, data_dir in survivors(recording, tmp_path, 0, ignored=ignored):
        assert any(consequence in violation for violation in find_violations(recording, position, data_dir))


async def test_a_node_starts_on_what_survived(recording: Recording, tmp_path: Path) -> None:
    for number, (position, data_dir) in enumerate(survivors(recording, tmp_path, N_NODES)):
        with NodeProcess(data_dir) as node:
            async with await node.connect() as connection, subscribe_to_node(node) as recorder:
                listed = await node.request(connection, "list")
                stored = episode_event_ids(data_dir)
                await recorder.wait_until(lambda ids=stored: ids <= count_event_ids(recorder).keys())  # type: ignore[misc]
                counts = count_event_ids(recorder)
            status, errors = await asyncio.to_thread(node.terminate)
        assert (status, "Traceback" in errors) == (0, False), (number, errors)
        assert set(counts.values()) <= {1}
        assert {id_ for id_ in counts if id_.startswith("episode:")} == stored
        statuses = {batch["batch_id"]: batch["status"] for batch in listed["batches"]}
        files = {path.stem: path.read_bytes() for path in stored_episodes(data_dir)}
        assert broken_promises(recording, position, statuses, files) == []


async def test_a_broker_with_an_older_store_gets_the_lost_events_again(tmp_path: Path) -> None:
    store = tmp_path / "data" / "nats" / "store"
    with NodeProcess(tmp_path / "data") as node:
        await play(node, "Maze")
        node.kill()
        older = shutil.copytree(store, tmp_path / "older")
        node.start()
        await play(node, "Wordle")
        node.kill()
        shutil.rmtree(store)
        older.rename(store)  # the broker syncs what it acknowledged only every two minutes
        node.start()
        async with subscribe_to_node(node) as recorder:
            expected = episode_event_ids(tmp_path / "data")
            await recorder.wait_until(lambda: expected <= count_event_ids(recorder).keys())
            assert set(count_event_ids(recorder).values()) == {1}
            assert len(expected) == 6


async def play(node: NodeProcess, env: str) -> None:
    """Play three episodes of an environment, and wait until their events and that of the batch are published."""
    async with await node.connect() as connection, subscribe_to_node(node) as recorder:
        batch_id = str(ULID())
        await node.request(connection, "start", batch_id=batch_id, envs=[env], agent="oracle", repeat=3)
        await recorder.wait_until(lambda: f"batch:{batch_id}" in count_event_ids(recorder))
