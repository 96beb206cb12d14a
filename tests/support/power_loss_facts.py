"""What a node promised until each position of its disk log, and whether a state directory keeps these promises."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from nats.aio.msg import Msg
from ulid import ULID

from runner.batch.workspace import Workspace
from runner.bus.connection import NatsConnection
from runner.events.subjects import DurableNames
from runner.node.batch_queue import BatchQueue, Status, derived_batch_id, recover_queue
from runner.publish.outbox import EventRecorder
from tests.support.node_events import stored_episodes
from tests.support.node_process import NodeProcess
from tests.support.power_loss import DiskLog
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
