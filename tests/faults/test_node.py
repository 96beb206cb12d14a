"""The node as a process: started twice, killed, stopped, resumed, asked nonsense."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import select
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import cast

import psutil
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from ulid import ULID

from runner.config import Profile
from runner.node import shutdown
from runner.node.batch_runner import BatchRunner
from runner.node.handlers import derived_batch_id
from runner.node.node import Node
from runner.publish.publisher import Publisher, Sink
from runner.store import EpisodeStore, open_index
from runner.types import Outcome
from tests.support.episodes import RecordedEpisode, make_step
from tests.support.nats_server import NatsServer
from tests.support.node_process import NodeProcess, clean_environ
from tests.support.publishing import open_outbox, outbox_event

pytestmark = pytest.mark.timeout(120)

STOP_TIMEOUT_S = 14.0


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """One for those that leave it as it is."""
    with NodeProcess(tmp_path_factory.mktemp("shared") / "data") as node:
        yield node


async def test_a_batch_asked_for_is_played_and_announced_once(shared: NodeProcess) -> None:
    async with await shared.connect() as connection:
        heard: list[Msg] = []
        await connection.client.subscribe("agentgym.>", cb=_into(heard))
        batch_id = str(ULID())
        for _ in range(2):  # idempotent by batch_id
            (started,) = await shared.request(
                connection, "start", batch_id=batch_id, envs=["maze"], agent="oracle", repeat=3
            )
            assert started["batch_id"] == batch_id
        await shared.wait_for_batch(connection, batch_id, "completed", n_done=3)
        await _until(lambda: len(_ids(heard, "agentgym.eval.batch.completed.v1")) == 1)
        assert len(_ids(heard, "agentgym.episode.completed.v1")) == 3
        assert _ids(heard, "agentgym.eval.batch.completed.v1") == [f"batch:{batch_id}"]
        await _until(lambda: {"episode", "timestep", "batch"} <= _channels(heard))


async def test_an_episode_file_comes_in_chunks(shared: NodeProcess) -> None:
    content = (path := _large_episode(shared.data_dir)).read_bytes()
    assert len(content) > 1 << 20
    async with await shared.connect() as connection:
        got = b""
        while len(got) < len(content):
            chunk = await shared.request(connection, "episode", episode_id=path.stem, offset=len(got))
            assert (chunk["total"], chunk["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
            assert chunk["data"]
            got += base64.b64decode(chunk["data"])
        assert got == content


def _large_episode(data_dir: Path) -> Path:
    store = EpisodeStore(data_dir)
    index = open_index(store)
    recording = RecordedEpisode(store, index)
    recording.start()
    recording.play(make_step(0, observation=[{"role": "user", "content": "x" * (1 << 20)}]))
    recording.end()
    index.close()
    return recording.file


async def test_pause_step_resume_and_cancel_reach_the_running_batch(shared: NodeProcess) -> None:
    async with await shared.connect() as connection:
        batch_id = str(ULID())
        await shared.request(connection, "start", batch_id=batch_id, envs=["BabyAI"], agent="oracle", repeat=5000)
        await shared.wait_for_batch(connection, batch_id, "running", n_done=1)
        await shared.request(connection, "pause", batch_id=batch_id)
        await shared.wait_for_batch(connection, batch_id, "paused")
        await shared.request(connection, "resume", batch_id=batch_id)
        before = await shared.wait_for_batch(connection, batch_id, "running")
        await shared.wait_for_batch(connection, batch_id, "running", n_done=before["n_done"] + 1)
        await shared.request(connection, "cancel", batch_id=batch_id)
        await shared.wait_for_batch(connection, batch_id, "cancelled")


async def test_a_battery_is_one_batch_per_environment(shared: NodeProcess) -> None:
    async with await shared.connect() as connection:
        battery_id = str(ULID())
        started = await shared.request(
            connection, "start", batch_id=battery_id, envs=["Maze", "Wordle"], agent="oracle"
        )
        assert [batch["battery_id"] for batch in started] == [battery_id] * 2
        assert [batch["batch_id"] for batch in started] == [
            derived_batch_id(battery_id, "Maze"),
            derived_batch_id(battery_id, "Wordle"),
        ]
        for batch in started:
            await shared.wait_for_batch(connection, batch["batch_id"], "completed")


@pytest.mark.long
async def test_a_killed_node_leaves_an_interrupted_batch_that_can_be_resumed(tmp_path: Path) -> None:
    data_dir, batch_id, repeat = tmp_path / "data", str(ULID()), 25
    with NodeProcess(data_dir) as node:
        async with await node.connect() as connection:
            await node.request(connection, "start", batch_id=batch_id, envs=["BabyAI"], agent="oracle", repeat=repeat)
            await node.wait_for_batch(connection, batch_id, "running", n_done=5)
        node.kill()
        finished = {path.stem for path in (data_dir / "runs" / batch_id).glob("*.json")}
        node.start()
        async with await node.connect() as connection:
            heard: list[Msg] = []
            await connection.client.subscribe("agentgym.eval.batch.completed.v1", cb=_into(heard))
            stopped = await node.wait_for_batch(connection, batch_id, "interrupted")
            assert 5 <= stopped["n_done"] < repeat
            (resumed,) = await node.request(
                connection, "start", batch_id=batch_id, envs=["BabyAI"], agent="oracle", repeat=repeat, resume=True
            )
            assert resumed["status"] in ("queued", "running")
            await node.wait_for_batch(connection, batch_id, "completed", n_done=repeat)
            await _until(lambda: len(heard) == 1)
    records = [EpisodeStore(data_dir).load(path) for path in (data_dir / "runs" / batch_id).glob("*.json")]
    ended = [record.task_index for record in records if record.outcome is not Outcome.INTERRUPTED]
    assert sorted(ended) == list(range(repeat))
    assert finished <= {record.episode_id for record in records}
    assert json.loads(heard[0].data)["n_episodes"] == repeat


async def test_sigterm_interrupts_says_stopped_and_exits_0(tmp_path: Path) -> None:
    data_dir, batch_id = tmp_path / "data", str(ULID())
    with NatsServer(tmp_path / "other") as other, NodeProcess(data_dir, env=clean_environ(NATS_URL=other.url)) as node:
        client = Client()
        await client.connect(other.url)
        heard: list[Msg] = []
        await client.subscribe("agentgym.field.status.v1", cb=_into(heard))
        async with await node.connect() as connection:
            await node.request(connection, "start", batch_id=batch_id, envs=["BabyAI"], agent="oracle", repeat=5000)
            await node.wait_for_batch(connection, batch_id, "running", n_done=1)
        status, said = await asyncio.to_thread(node.terminate)
        await _until(lambda: any(json.loads(message.data)["status"] == "stopped" for message in heard))
        await client.close()
    assert status == 0, said
    assert list((data_dir / "runs" / batch_id).glob("*.journal.jsonl")) == []


def test_a_node_says_that_it_serves(tmp_path: Path) -> None:
    with NodeProcess(data_dir := tmp_path / "data") as node:
        url = json.loads((data_dir / "node.json").read_text())["url"]
        _, said = node.terminate()
        assert f"node: n1, pid {node.pid}, serves {data_dir} at {url}\n" in said


@pytest.mark.long
async def test_a_node_that_stops_leaves_what_is_stuck_to_the_next_one(tmp_path: Path) -> None:
    with (
        NatsServer(tmp_path / "other") as other,
        NodeProcess(tmp_path / "data", env=clean_environ(NATS_URL=other.url)) as node,
    ):
        async with await node.connect() as connection:
            other.pause()
            batch_id = str(ULID())
            await node.request(connection, "start", batch_id=batch_id, envs=["Maze"], agent="oracle")
            await node.wait_for_batch(connection, batch_id, "completed")
        async with asyncio.timeout(STOP_TIMEOUT_S):  # less than it would wait for a broker that takes events
            status, said = await asyncio.to_thread(node.terminate)
    assert status == 0, said


@pytest.mark.parametrize("told", [True, False], ids=["told again", "nothing arrives"])
async def test_the_wait_for_the_last_events_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: bool) -> None:
    immediate = asyncio.Event()
    if told:
        immediate.set()
    else:
        monkeypatch.setattr(shutdown, "STALL_TIMEOUT_S", 0.1)
        monkeypatch.setattr(shutdown, "STOP_TIMEOUT_S", 600)
    with open_outbox(tmp_path) as outbox:
        outbox.add(outbox_event(1))
        publisher = Publisher(outbox, [Sink("local", lambda: None)])  # it does not run, so nothing ever arrives
        async with asyncio.timeout(30):
            await shutdown.publish_remaining(publisher, immediate)
        assert outbox.has_pending(["local"])


async def test_a_second_signal_gives_up_what_is_played(tmp_path: Path) -> None:
    """The player is one that never ends."""

    class Endless:
        stopping = False

        def stop(self) -> None:
            self.stopping = True
            node.interrupt()

        def join(self, timeout_s: float | None) -> bool:
            return False

    node = Node(Profile(id="p"), tmp_path / "data", "n1", egress=lambda: None)
    node.interrupt()
    immediate = node._immediate
    assert not immediate.is_set()
    async with asyncio.timeout(10):
        await shutdown.stop_batches(cast("BatchRunner", Endless()), lambda: False, immediate)


def test_an_idle_node_leaves_by_itself(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", "--idle-exit", "0.5") as node:
        assert node.process is not None
        assert node.process.wait(timeout=30) == 0


def test_the_broker_dies_with_its_node(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node:
        watched = os.pidfd_open(_broker_of(node))
        node.kill()
        _wait_for_end(watched)


def _broker_of(node: NodeProcess) -> int:
    (broker,) = (child.pid for child in psutil.Process(node.pid).children() if "nats-server" in child.name())
    return broker


def _wait_for_end(pidfd: int) -> None:
    assert select.select([pidfd], [], [], 30)[0], "the broker outlived its node"
    os.close(pidfd)


@pytest.mark.long
async def test_the_broker_is_started_again_and_nothing_is_lost(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node:
        async with await node.connect() as connection:
            batch_id = str(ULID())
            await node.request(connection, "start", batch_id=batch_id, envs=["BabyAI"], agent="oracle", repeat=20)
            await node.wait_for_batch(connection, batch_id, "running", n_done=2)
            os.kill(_broker_of(node), signal.SIGKILL)
            await _until(lambda: not connection.connected, timeout_s=10)
            await _until(lambda: connection.connected, timeout_s=20)
            await node.wait_for_batch(connection, batch_id, "completed", n_done=20)
            js = connection.client.jetstream()
            subscription = await js.pull_subscribe("agentgym.episode.completed.v1", stream="AGENTGYM_EVENTS")
            ids: list[str] = []
            async with asyncio.timeout(30):
                while len(ids) < 20:
                    ids += [
                        str((message.headers or {})["ce-id"]) for message in await subscription.fetch(20, timeout=5)
                    ]
            assert len(set(ids)) == len(ids) == 20


def _into(heard: list[Msg]) -> Callable[[Msg], Awaitable[None]]:
    async def take(message: Msg) -> None:
        heard.append(message)

    return take


def _channels(heard: list[Msg]) -> set[str]:
    return {message.subject.split(".")[2] for message in heard if message.subject.startswith("agentgym.live.")}


def _ids(heard: list[Msg], subject: str) -> list[str]:
    return [str((message.headers or {}).get("ce-id")) for message in heard if message.subject == subject]


async def _until(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - the condition is in another process
            await asyncio.sleep(0.01)
