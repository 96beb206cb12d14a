"""Power loss at every sync of a node: what it answered and published before holds on what the disk kept."""

from __future__ import annotations

import asyncio
import filecmp
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from nats.aio.msg import Msg
from ulid import ULID

from runner.batch.workspace import Workspace
from runner.bus.connection import NatsConnection
from runner.events.subjects import DurableNames
from runner.node.batch_queue import BatchQueue, Status, derived_batch_id, recover_queue
from runner.publish.outbox import EventRecorder
from tests.support.node_events import count_event_ids, episode_event_ids, stored_episodes, subscribe_to_node
from tests.support.node_process import NodeProcess, clean_environ
from tests.support.power_loss import DiskLog, Operation, disks_at_syncs
from tests.support.worker_runs import wait_until_ended

MANY = 5000


@dataclass
class Facts:
    """Position of the log at which a client knew each fact: accepted and ended batches, and episodes that ended."""

    accepted: dict[str, int] = field(default_factory=dict)
    ended: dict[str, tuple[int, Status]] = field(default_factory=dict)
    episodes: dict[str, int] = field(default_factory=dict)

    def until(self, position: int) -> Facts:
        """Return the facts that were known at a position."""
        return Facts(
            {id_: at for id_, at in self.accepted.items() if at <= position},
            {id_: (at, status) for id_, (at, status) in self.ended.items() if at <= position},
            {id_: at for id_, at in self.episodes.items() if at <= position},
        )


@dataclass(frozen=True)
class Recording:
    """A killed node's log, its promises, and its episode files by id."""

    log: DiskLog
    facts: Facts
    files: dict[str, bytes]


class _Client:
    """A client that notes the position of the log with each answer and event."""

    def __init__(self, node: NodeProcess, connection: NatsConnection, log: DiskLog) -> None:
        self.facts = Facts()
        self._node = node
        self._connection = connection
        self._log = log

    async def subscribe(self) -> None:
        for subject in ("agentgym.episode.completed.v1", "agentgym.live.episode.v1.*"):
            await self._connection.client.subscribe(subject, cb=self._note_episodes)

    async def _note_episodes(self, message: Msg) -> None:
        payload = json.loads(message.data)
        for item in payload.get("items", [payload]):
            if item.get("kind", "episode.ended") == "episode.ended":
                self.facts.episodes.setdefault(item["episode_id"], self._log.position)

    async def start(self, env: str, *more: str, repeat: int) -> str:
        batch_id = str(ULID())
        args: dict[str, Any] = {"envs": [env, *more], "agent": "oracle", "repeat": repeat, "concurrency": 2}
        await self._node.request(self._connection, "start", batch_id=batch_id, **args)
        for accepted in [derived_batch_id(batch_id, name) for name in (env, *more)] if more else [batch_id]:
            self.facts.accepted[accepted] = self._log.position
        return batch_id

    async def cancel(self, batch_id: str) -> None:
        await self._node.request(self._connection, "cancel", batch_id=batch_id)
        self.facts.ended[batch_id] = self._log.position, "cancelled"

    async def wait_until(self, batch_id: str, status: Status, n_done: int = 0) -> None:
        await self._node.wait_for_batch(self._connection, batch_id, status, n_done=n_done)
        if status in ("completed", "cancelled"):
            self.facts.ended.setdefault(batch_id, (self._log.position, status))


async def record_node(log: DiskLog, node: NodeProcess) -> Recording:
    """Play, cancel and queue batches on a node that writes the log, then kill it."""
    async with await node.connect() as connection:
        client = _Client(node, connection, log)
        await client.subscribe()
        await client.wait_until(await client.start("Maze", repeat=4), "completed")
        running = await client.start("BabyAI", repeat=MANY)
        await client.wait_until(running, "running", n_done=3)
        battery = await client.start("Maze", "Wordle", repeat=2)
        queued = await client.start("BabyAI", repeat=MANY)
        await client.cancel(queued)
        await client.cancel(running)
        for env in ("Maze", "Wordle"):
            await client.wait_until(derived_batch_id(battery, env), "completed")
        await client.wait_until(await client.start("BabyAI", repeat=MANY), "running", n_done=3)
        children = psutil.Process(node.pid).children(recursive=True)
        node.kill()
        await asyncio.to_thread(wait_until_ended, *children)  # its workers still end their steps
    files = {path.stem: path.read_bytes() for path in stored_episodes(node.data_dir)}
    return Recording(log, client.facts, files)


def find_violations(recording: Recording, position: int, data_dir: Path) -> list[str]:
    """Recover a state directory as the start of a node does; return the promises until ``position`` that it breaks."""
    workspace = Workspace(data_dir, node="n1", profile="p")
    queue = BatchQueue(data_dir)
    with closing(workspace):
        recorder = EventRecorder(workspace, DurableNames(), role="node")
        recover_queue(queue, workspace, recorder.ended_batches())
        recorder.record_missed_batches(queue.ids)
        recorder.finish_reading()
        batches = queue.listed(n_waiting=1000, n_others=1000)
        statuses = {batch.batch_id: batch.status for batch in batches}
        interrupted = [batch for batch in batches if not batch.has_ended]
        finished = [batch for batch in interrupted if workspace.n_finished(batch.batch_id) >= batch.spec.n_planned]
        events = {id_.partition(":")[2] for id_ in recorder.outbox.known_ids("episode")}
        recorder.close()
        unreadable = [f"{damaged.path.name} is damaged: {damaged.reason}" for damaged in workspace.index.damaged]
    stored = {path.stem: path.read_bytes() for path in stored_episodes(data_dir)}
    return [
        *unreadable,
        *broken_promises(recording, position, statuses, stored),
        *(f"batch {batch.batch_id} is complete but interrupted" for batch in finished),
        *(f"episode {episode_id} is stored without an event" for episode_id in stored.keys() - events),
        *(f"episode {episode_id} has an event but no file" for episode_id in events - stored.keys()),
    ]


def broken_promises(
    recording: Recording, position: int, statuses: dict[str, Status], stored: dict[str, bytes]
) -> list[str]:
    """Return what was promised until ``position`` and is not kept by these batches and episode files."""
    known = recording.facts.until(position)
    return [
        *(f"accepted batch {batch_id} is lost" for batch_id in known.accepted.keys() - statuses.keys()),
        *(
            f"batch {batch_id} was {status} and is {statuses.get(batch_id)}"
            for batch_id, (_, status) in known.ended.items()
            if statuses.get(batch_id) != status
        ),
        *(
            f"episode {episode_id} is not stored as it was"
            for episode_id in known.episodes
            if stored.get(episode_id) != recording.files[episode_id]
        ),
    ]


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
