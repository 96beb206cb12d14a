"""A cluster of three servers of which one is killed, drained, restarted or emptied: viewers, runs and nodes."""

from __future__ import annotations

import asyncio
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from nats.aio.client import Client

from runner.bus.connection import BusAddress, NatsConnection, TlsSettings
from runner.events.subjects import DURABLE
from tests.support.bus import BusStateRecorder, Certificates
from tests.support.command import COMMAND, ENVIRON, run_agentgym
from tests.support.nats_cluster import SETTLE_S, NatsCluster, begin_lame_duck_mode
from tests.support.nats_server import NatsServer
from tests.support.node_events import episode_event_ids, wait_until
from tests.support.node_process import clean_environ, running_node
from tests.support.subscriptions import SUBJECT, retry_until_success, status_event, status_headers
from tests.support.watch_process import CANARY, WatchRecorder, recorded_watch

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]

STREAM = "S"
MAZE = ("--run", "Maze", "--agent", "oracle")
N_BETWEEN = 30
"""Events that a viewer shows before the next fault, so that each one hits a viewer that is following."""

N_EPISODES = 60
"""Episodes of a run: it goes on for some seconds after its first events."""


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with NatsCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
async def cluster(shared_cluster: NatsCluster) -> NatsCluster:
    """Three healthy servers, and an empty stream of the durable subjects with a copy on each."""
    await shared_cluster.wait_until_healthy()
    await shared_cluster.add_only_stream(STREAM, list(DURABLE))
    await shared_cluster.wait_until_healthy()
    return shared_cluster


class Publishing:
    """Publishes numbered events one after the other, each until the stream has acknowledged it."""

    def __init__(self, client: Client) -> None:
        self.n_acknowledged = 0
        self._client = client
        self._is_stopped = False
        self._changed = asyncio.Condition()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        self._is_stopped = True
        await self._task

    async def wait_for_more(self, count: int) -> None:
        wanted = self.n_acknowledged + count
        async with asyncio.timeout(SETTLE_S), self._changed:
            await self._changed.wait_for(lambda: self.n_acknowledged >= wanted)

    async def _run(self) -> None:
        while not self._is_stopped:
            await retry_until_success(self._publish, SETTLE_S)
            async with self._changed:
                self.n_acknowledged += 1
                self._changed.notify_all()
            await asyncio.sleep(0.01)

    async def _publish(self) -> None:
        event, headers = status_event(self.n_acknowledged), status_headers(self.n_acknowledged)
        await self._client.jetstream(timeout=1).publish(SUBJECT, event, headers=headers)


@asynccontextmanager
async def publishing(cluster: NatsCluster) -> AsyncIterator[Publishing]:
    async with cluster.client() as client:
        publisher = Publishing(client)
        try:
            yield publisher
        finally:
            await publisher.stop()


async def stored_ids(cluster: NatsCluster) -> list[str]:
    """Return the event ids of the stream in order, read from its leader by a client that is not ours."""
    ids: list[str] = []
    async with cluster.client() as client:
        js = client.jetstream(timeout=5)

        async def read_rest() -> None:
            for sequence in range(len(ids) + 1, (await js.stream_info(STREAM)).state.last_seq + 1):
                ids.append(((await js.get_msg(STREAM, sequence)).headers or {})["ce-id"])

        await retry_until_success(read_rest, SETTLE_S)
    return ids


async def assert_shown_once(recorder: WatchRecorder, cluster: NatsCluster, n_acknowledged: int) -> None:
    """Check that the viewer has shown the stream as it is stored: each event once, in order, without a gap."""
    await recorder.wait_for_rows(n_acknowledged)
    ids = await stored_ids(cluster)
    assert ids == [f"status:b:{number}" for number in range(n_acknowledged)]
    assert [row["id"] for row in recorder.rows] == ids
    assert [row["sequence"] for row in recorder.rows] == list(range(1, n_acknowledged + 1))
    hidden = ("dropped them", "lost its newest", "made again", "were skipped", "was deleted", "may have been missed")
    assert [notice for notice in recorder.notices if any(text in notice for text in hidden)] == []


def watch_options(*servers: NatsServer) -> tuple[str, ...]:
    return ("--nats", ",".join(server.url for server in servers), "--subject", SUBJECT, "--since", "all")


def assert_loss_named(recorder: WatchRecorder) -> None:
    """Check that a notice has the reason of the loss: one of its own, or that of the reconnect if it came at once."""
    reasons = ("closed the connection", "cannot be reached")
    assert any(reason in notice for notice in recorder.notices for reason in reasons), recorder.notices


@pytest.mark.parametrize("role", ["leads the stream", "follows"])
@pytest.mark.parametrize("knows", ["one address", "all addresses"])
async def test_a_viewer_whose_server_is_killed_continues_with_another(
    tmp_path: Path, cluster: NatsCluster, role: str, knows: str
) -> None:
    leader = await cluster.leader(STREAM)
    first = leader if role == "leads the stream" else cluster.others(leader)[0]
    known = [first] if knows == "one address" else [first, *cluster.others(first)]
    async with publishing(cluster) as publisher, recorded_watch(tmp_path, *watch_options(*known)) as recorder:
        await recorder.wait_for_rows(N_BETWEEN)
        used = await cluster.wait_for_server_of(recorder.pid)
        used.kill()
        await cluster.wait_for_server_of(recorder.pid, other_than=used)
        await recorder.wait_for_notice("reconnected")
        await recorder.wait_for_rows(publisher.n_acknowledged + N_BETWEEN)
        await publisher.stop()
        await assert_shown_once(recorder, cluster, publisher.n_acknowledged)
        assert_loss_named(recorder)


async def test_a_viewer_loses_nothing_when_a_server_that_it_does_not_use_is_killed(
    tmp_path: Path, cluster: NatsCluster
) -> None:
    leader = await cluster.leader(STREAM)
    (used, _) = cluster.others(leader)
    async with publishing(cluster) as publisher, recorded_watch(tmp_path, *watch_options(used)) as recorder:
        await recorder.wait_for_rows(N_BETWEEN)
        leader.kill()
        await recorder.wait_for_rows(publisher.n_acknowledged + N_BETWEEN)
        await publisher.stop()
        await assert_shown_once(recorder, cluster, publisher.n_acknowledged)
        assert await cluster.wait_for_server_of(recorder.pid) is used
        assert [notice for notice in recorder.notices if "connect" in notice] == []


@pytest.mark.parametrize("role", ["leads the stream", "follows"])
async def test_a_viewer_leaves_a_server_in_lame_duck_mode(tmp_path: Path, cluster: NatsCluster, role: str) -> None:
    leader = await cluster.leader(STREAM)
    used = leader if role == "leads the stream" else cluster.others(leader)[0]
    async with publishing(cluster) as publisher, recorded_watch(tmp_path, *watch_options(used)) as recorder:
        await recorder.wait_for_rows(N_BETWEEN)
        begin_lame_duck_mode(used)
        await cluster.wait_for_server_of(recorder.pid, other_than=used)
        await recorder.wait_for_notice("reconnected")
        await recorder.wait_for_rows(publisher.n_acknowledged + N_BETWEEN)
        await publisher.stop()
        await assert_shown_once(recorder, cluster, publisher.n_acknowledged)
        assert_loss_named(recorder)


async def test_a_viewer_follows_while_its_server_is_killed_and_comes_back_once_as_it_was_and_twice_empty(
    tmp_path: Path, cluster: NatsCluster
) -> None:
    first = cluster.servers[0]
    async with publishing(cluster) as publisher, recorded_watch(tmp_path, *watch_options(first)) as recorder:
        for number in range(1, 4):
            await recorder.wait_for_rows(publisher.n_acknowledged + N_BETWEEN)
            used = await cluster.wait_for_server_of(recorder.pid)
            used.kill()
            await cluster.wait_for_server_of(recorder.pid, other_than=used)
            await recorder.wait_for_notice("reconnected", number)
            if number > 1:
                used.empty_store()
            await cluster.wait_until_healthy()
        await recorder.wait_for_rows(publisher.n_acknowledged + N_BETWEEN)
        await publisher.stop()
        await assert_shown_once(recorder, cluster, publisher.n_acknowledged)


async def test_a_suspended_viewer_whose_server_is_killed_catches_up_from_another(
    tmp_path: Path, cluster: NatsCluster
) -> None:
    async with (
        publishing(cluster) as publisher,
        recorded_watch(tmp_path, *watch_options(cluster.servers[0])) as recorder,
    ):
        await recorder.wait_for_rows(N_BETWEEN)
        recorder.suspend()
        cluster.servers[0].kill()
        await publisher.wait_for_more(N_BETWEEN)
        recorder.resume()
        await recorder.wait_for_rows(publisher.n_acknowledged + N_BETWEEN)
        await publisher.stop()
        await assert_shown_once(recorder, cluster, publisher.n_acknowledged)


def authorization(password: str) -> dict[str, object]:
    return {"authorization": {"users": [{"user": "me", "password": password}]}}


@pytest.mark.parametrize("knows", ["one address", "all addresses"])
async def test_a_viewer_returns_to_a_server_that_has_rejected_its_login(tmp_path: Path, knows: str) -> None:
    with NatsCluster(tmp_path / "pair", n_servers=2, jetstream=False, config=authorization(CANARY)) as pair:
        first = pair.servers[0]
        async with recorded_watch(tmp_path, "--nats", first.url if knows == "one address" else pair.url) as recorder:
            await recorder.wait_for_notice("showing only new messages")
            used = await pair.wait_for_server_of(recorder.pid)
            (other,) = pair.others(used)
            accepting = other.config
            other.reload(accepting | authorization("rotated"))
            await wait_until(lambda: "Reloaded server configuration" in other.log.read_text())
            used.kill()
            await wait_until(lambda: "authentication error" in other.log.read_text())
            other.reload(accepting)
            await recorder.wait_until(lambda: any("reconnected" in notice for notice in recorder.notices), 15)
            assert await pair.wait_for_server_of(recorder.pid) is other


async def test_an_announced_server_is_checked_against_the_name_of_the_first(tmp_path: Path) -> None:
    """Servers announce IP addresses, but the certificate names the host of the address that was given."""
    certificates = Certificates(tmp_path / "tls", host="localhost")
    with NatsCluster(tmp_path / "pair", n_servers=2, jetstream=False, config=certificates.server_config()) as pair:
        url = pair.servers[0].url.replace("127.0.0.1", "localhost")
        states = BusStateRecorder()
        address = BusAddress(url, tls=TlsSettings(str(certificates.ca)))
        async with await NatsConnection.open(address, name="test", on_state=states) as connection:
            await wait_until(lambda: bool(connection.client.discovered_servers))
            pair.servers[0].kill()
            await states.wait_for("disconnected")
            await states.wait_for("connected")
            await connection.client.flush()


async def wait_for_more_events(cluster: NatsCluster, count: int = 10) -> None:
    """Wait until the stream has this many events more than now; it may have no leader for some seconds."""
    async with cluster.client() as client, asyncio.timeout(SETTLE_S):
        first = last = await _last_sequence(client)
        while last < first + count:
            await asyncio.sleep(0.05)
            last = await _last_sequence(client)


async def _last_sequence(client: Client) -> int:
    sequences: list[int] = []

    async def look_up() -> None:
        sequences.append((await client.jetstream(timeout=1).stream_info(STREAM)).state.last_seq)

    await retry_until_success(look_up, SETTLE_S)
    return sequences[-1]


async def wait_for_ids(cluster: NatsCluster, expected: set[str]) -> Counter[str]:
    """Wait until the stream has these events; return how often it has each event."""
    async with asyncio.timeout(SETTLE_S):
        while not expected <= (ids := Counter(await stored_ids(cluster))).keys():  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.2)
    return ids


def without_status(ids: Counter[str]) -> set[str]:
    return {event_id for event_id in ids if not event_id.startswith("status:")}


@pytest.mark.parametrize("fault", [NatsServer.kill, begin_lame_duck_mode], ids=["killed", "drained"])
async def test_a_node_delivers_each_event_once_while_each_server_goes_and_comes_back(
    tmp_path: Path, cluster: NatsCluster, fault: Callable[[NatsServer], None]
) -> None:
    async with running_node(tmp_path / "data", env=clean_environ(NATS_URL=cluster.url)) as (node, connection):
        batch = await node.start_batch(connection, "BabyAI", repeat=5000)
        for server in cluster.servers:
            await wait_for_more_events(cluster)
            fault(server)
            await wait_until(lambda s=server: not s.running, SETTLE_S)  # type: ignore[misc]
            await wait_for_more_events(cluster)
            await cluster.wait_until_healthy()
        await node.request(connection, "cancel", batch_id=batch)
        await node.wait_for_batch(connection, batch, "cancelled")
        expected = episode_event_ids(node.data_dir) | {f"batch:{batch}"}
        ids = await wait_for_ids(cluster, expected)
    assert without_status(ids) == expected
    assert set(ids.values()) == {1}


async def test_a_node_that_knows_one_address_delivers_after_that_server_is_gone(
    tmp_path: Path, cluster: NatsCluster
) -> None:
    first = cluster.servers[0]
    async with running_node(tmp_path / "data", env=clean_environ(NATS_URL=first.url)) as (node, connection):
        batch = await node.start_batch(connection, "BabyAI", repeat=5000)
        await wait_for_more_events(cluster)
        first.kill()
        await wait_for_more_events(cluster)
        await node.request(connection, "cancel", batch_id=batch)
        await node.wait_for_batch(connection, batch, "cancelled")
        expected = episode_event_ids(node.data_dir) | {f"batch:{batch}"}
        ids = await wait_for_ids(cluster, expected)
    assert without_status(ids) == expected
    assert set(ids.values()) == {1}


async def test_a_run_delivers_each_event_once_although_the_leader_of_the_stream_is_killed(
    tmp_path: Path, cluster: NatsCluster
) -> None:
    environ = ENVIRON | {"NATS_URL": cluster.url}
    options = ("--run", "BabyAI", "--agent", "oracle", "--repeat", str(N_EPISODES))
    run = await asyncio.create_subprocess_exec(
        *(COMMAND, *options), cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        await wait_for_more_events(cluster)
        (await cluster.leader(STREAM)).kill()
        ended_before = run.returncode is not None
        _, stderr = await asyncio.wait_for(run.communicate(), SETTLE_S)
    finally:
        if run.returncode is None:
            run.kill()
            await run.wait()
    assert (run.returncode, ended_before) == (0, False), stderr
    played = episode_event_ids(tmp_path / "data")
    assert len(played) == N_EPISODES
    rest = await asyncio.to_thread(run_agentgym, tmp_path, *MAZE, environ={"NATS_URL": cluster.url})
    assert "not delivered" not in rest.stderr
    ids = Counter(await stored_ids(cluster))
    assert played < ids.keys()
    assert set(ids.values()) == {1}
