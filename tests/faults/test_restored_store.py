"""An external broker whose store is replaced by an older copy: it has lost its newest events, but not its streams."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections import Counter
from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest
from ulid import ULID

from runner.events.subjects import DURABLE
from tests.support.command import run_agentgym
from tests.support.nats_server import NatsServer
from tests.support.node_events import episode_event_ids
from tests.support.node_process import NodeProcess, clean_environ
from tests.support.publishing import add_external_stream, event_ids, nats_client, stored_messages
from tests.support.subscriptions import SUBJECT, publish_events, publish_with_retries
from tests.support.watch_process import recorded_watch

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

STREAM = "THEIRS"


class CopiedStore:
    """A copy of a server's store, taken while the server is stopped."""

    def __init__(self, server: NatsServer, folder: Path) -> None:
        self._server = server
        self._copy = folder / "copy"
        server.stop()
        shutil.copytree(server.store, self._copy)
        server.start()

    def restore(self) -> None:
        self._server.kill()
        self._server.empty_store()
        shutil.copytree(self._copy, self._server.store)
        self._server.start()


async def copy_store(server: NatsServer, folder: Path) -> CopiedStore:
    return await asyncio.to_thread(CopiedStore, server, folder)


async def play(folder: Path, server: NatsServer, env: str, repeat: int) -> subprocess.CompletedProcess[str]:
    """Play episodes in a run that publishes to the server, and return the run once it has ended."""
    options = ("--run", env, "--agent", "oracle", "--repeat", str(repeat))
    run = await asyncio.to_thread(run_agentgym, folder, *options, environ={"NATS_URL": server.url})
    assert run.returncode == 0, run.stderr
    assert "not delivered" not in run.stderr
    return run


async def stored_ids(server: NatsServer) -> Counter[str]:
    return Counter(event_ids(await stored_messages(server, STREAM)))


async def test_the_next_run_sends_the_lost_events_again_and_names_their_number(
    tmp_path: Path, nats_server: NatsServer
) -> None:
    await add_external_stream(nats_server, subjects=list(DURABLE))
    await play(tmp_path, nats_server, "Maze", 2)
    copy = await copy_store(nats_server, tmp_path)
    await play(tmp_path, nats_server, "Wordle", 3)
    before = await stored_ids(nats_server)
    await asyncio.to_thread(copy.restore)
    n_lost = len(before) - len(await stored_ids(nats_server))
    assert n_lost == 6  # running, three episodes, the batch, stopped
    run = await play(tmp_path, nats_server, "Maze", 1)
    assert f"external broker {nats_server.display_url} gets the {n_lost} events again that {STREAM} lost" in run.stderr
    after = await stored_ids(nats_server)
    assert before.keys() < after.keys()
    assert set(after.values()) == {1}


async def test_a_running_node_sends_the_lost_events_again(tmp_path: Path, nats_server: NatsServer) -> None:
    await add_external_stream(nats_server, subjects=list(DURABLE))
    with NodeProcess(tmp_path / "data", env=clean_environ(NATS_URL=nats_server.url)) as node:
        await play_on_node(node, nats_server, "Maze")
        copy = await copy_store(nats_server, tmp_path)
        await play_on_node(node, nats_server, "Wordle")
        before = await stored_ids(nats_server)
        await asyncio.to_thread(copy.restore)
        await wait_for_ids(nats_server, before.keys())
        await play_on_node(node, nats_server, "Maze")
        assert set((await stored_ids(nats_server)).values()) == {1}


async def play_on_node(node: NodeProcess, server: NatsServer, env: str) -> None:
    """Play three episodes, and wait until the external broker has their events and that of the batch."""
    batch = str(ULID())
    async with await node.connect() as connection:
        await node.request(connection, "start", batch_id=batch, envs=[env], agent="oracle", repeat=3)
        await node.wait_for_batch(connection, batch, "completed", n_done=3)
    await wait_for_ids(server, episode_event_ids(node.data_dir) | {f"batch:{batch}"})


async def wait_for_ids(server: NatsServer, expected: AbstractSet[str]) -> None:
    async with asyncio.timeout(30):
        while not expected <= (await stored_ids(server)).keys():  # noqa: ASYNC110 - another process sends
            await asyncio.sleep(0.1)


async def test_lost_events_are_sent_again_although_another_publisher_has_taken_their_sequences(
    tmp_path: Path, nats_server: NatsServer
) -> None:
    (first := tmp_path / "first").mkdir()
    (second := tmp_path / "second").mkdir()
    await add_external_stream(nats_server, subjects=list(DURABLE))
    copy = await copy_store(nats_server, tmp_path)
    await play(first, nats_server, "Maze", 2)
    lost = (await stored_ids(nats_server)).keys()
    await asyncio.to_thread(copy.restore)
    await play(second, nats_server, "Maze", 4)
    await play(first, nats_server, "Maze", 1)
    assert lost <= (await stored_ids(nats_server)).keys()


async def test_a_viewer_names_the_loss_and_shows_what_is_sent_again_once(
    tmp_path: Path, nats_server: NatsServer
) -> None:
    await add_external_stream(nats_server, subjects=list(DURABLE))
    async with nats_client(nats_server, max_reconnect_attempts=-1) as client:
        await publish_events(client, 1, 2)
        copy = await copy_store(nats_server, tmp_path)
        options = ("--nats", nats_server.url, "--subject", SUBJECT, "--since", "all")
        async with recorded_watch(tmp_path, *options) as recorder:
            await recorder.wait_for_rows(2)
            await publish_with_retries(client, [3, 4, 5])
            await recorder.wait_for_rows(5)
            await asyncio.to_thread(copy.restore)
            await recorder.wait_for_notice(f"stream {STREAM} lost its newest 3 messages")
            await publish_with_retries(client, [3, 4, 5, 6])
            await recorder.wait_for_rows(6)
            assert [row["data"]["pid"] for row in recorder.rows] == [1, 2, 3, 4, 5, 6]


async def test_a_viewer_shows_new_events_that_have_taken_the_sequences_of_lost_ones(
    tmp_path: Path, nats_server: NatsServer
) -> None:
    await add_external_stream(nats_server, subjects=list(DURABLE))
    async with nats_client(nats_server, max_reconnect_attempts=-1) as client:
        copy = await copy_store(nats_server, tmp_path)
        options = ("--nats", nats_server.url, "--subject", SUBJECT, "--since", "all")
        async with recorded_watch(tmp_path, *options) as recorder:
            await publish_with_retries(client, [1, 2, 3])
            await recorder.wait_for_rows(3)
            recorder.suspend()
            await asyncio.to_thread(copy.restore)
            await publish_with_retries(client, [4, 5, 6, 7])
            recorder.resume()
            await recorder.wait_until(lambda: bool(recorder.rows) and recorder.rows[-1]["data"]["pid"] == 7)
            assert [row["data"]["pid"] for row in recorder.rows] == [1, 2, 3, 4, 5, 6, 7]
