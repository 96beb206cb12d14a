"""A node killed around the acceptance, the claim and the end of a batch, with a torn record of its batches, or no room.

The node is observed from outside only: by its replies to control requests, its events, its files, and what it lists
after a restart. The steps of a batch of ``Gated`` wait until the test creates a file.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from ulid import ULID

from runner.bus.connection import NatsConnection
from tests.support.command import environ_with_environments
from tests.support.full_disk import FileSizeLimit, mount_small_disk
from tests.support.node_events import count_event_ids, stored_episodes, subscribe_to_node, wait_until
from tests.support.node_process import NodeProcess, clean_environ

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

REPEAT = 3
JOURNAL = "batches.jsonl"
MAZE: dict[str, Any] = {"envs": ["Maze"], "agent": "oracle", "repeat": REPEAT}
GATED: dict[str, Any] = {"envs": ["Gated"], "agent": "up", "repeat": REPEAT}


class GatedNode(NodeProcess):
    """A node with the environment ``Gated``, and the file that lets it step."""

    def __init__(self, folder: Path, data_dir: Path | None = None) -> None:
        self.gate = folder / "gate"
        (plugins := folder / "plugins").mkdir()
        environ = environ_with_environments(plugins, "Gated", agents={"up": "tests.support.fakes:UpAgent"})
        super().__init__(data_dir or folder / "data", env=clean_environ(**environ, GATE=str(self.gate)))

    async def statuses(self, connection: NatsConnection) -> dict[str, str]:
        listed = await self.request(connection, "list")
        return {batch["batch_id"]: batch["status"] for batch in listed["batches"]}

    async def resume_to_the_end(self, connection: NatsConnection, batch_id: str, plan: dict[str, Any]) -> None:
        await self.request(connection, "start", batch_id=batch_id, **plan, resume=True)
        await self.wait_for_batch(connection, batch_id, "completed", n_done=REPEAT)

    def finished_tasks(self, batch_id: str) -> Counter[int]:
        """Return how often each task of a batch was played to its end."""
        records = [json.loads(path.read_bytes()) for path in stored_episodes(self.data_dir, batch_id)]
        return Counter(record["task_index"] for record in records if record["outcome"] != "interrupted")


def new_ids(n: int) -> list[str]:
    return [str(ULID()) for _ in range(n)]


async def assert_ends_announced_once(node: NodeProcess, batch_ids: list[str]) -> None:
    async with subscribe_to_node(node) as recorder:
        expected = {f"batch:{batch_id}" for batch_id in batch_ids}
        await recorder.wait_until(lambda: expected <= count_event_ids(recorder).keys(), 60)
        assert {id_: n for id_, n in count_event_ids(recorder).items() if n > 1} == {}


@pytest.mark.parametrize("is_claimed", [False, True], ids=["acknowledged", "claimed"])
async def test_a_batch_whose_node_is_killed_before_its_first_episode_ends_is_played_once(
    is_claimed: bool, tmp_path: Path
) -> None:
    batch_id, waiting = new_ids(2)
    with GatedNode(tmp_path) as node:
        async with await node.connect() as connection:
            await node.request(connection, "start", batch_id=batch_id, **GATED)
            if is_claimed:
                await node.wait_for_batch(connection, batch_id, "running")
                await node.request(connection, "start", batch_id=waiting, **MAZE)
            node.kill()
        plans = {batch_id: GATED} | ({waiting: MAZE} if is_claimed else {})
        node.start()
        async with await node.connect() as connection:
            for id_, plan in plans.items():  # the request of a client that got no reply, which changes nothing
                await node.request(connection, "start", batch_id=id_, **plan)
            assert await node.statuses(connection) == dict.fromkeys(plans, "interrupted")
            node.gate.touch()
            for id_, plan in plans.items():
                await node.resume_to_the_end(connection, id_, plan)
                await node.request(connection, "start", batch_id=id_, **plan, resume=True)
        await assert_ends_announced_once(node, [*plans])
        for id_ in plans:
            assert node.finished_tasks(id_) == dict.fromkeys(range(REPEAT), 1)


async def test_a_waiting_batch_that_was_paused_stays_so_after_kills_until_it_is_resumed(tmp_path: Path) -> None:
    running, paused = new_ids(2)
    with GatedNode(tmp_path) as node:
        async with await node.connect() as connection:
            await node.request(connection, "start", batch_id=running, **GATED)
            await node.wait_for_batch(connection, running, "running")
            await node.request(connection, "start", batch_id=paused, **MAZE)
            await node.request(connection, "pause", batch_id=paused)
            node.kill()
        for _ in range(2):
            node.start()
            async with await node.connect() as connection:
                assert await node.statuses(connection) == {running: "interrupted", paused: "queued"}
                assert stored_episodes(node.data_dir, paused) == []
                node.kill()
        node.start()
        async with await node.connect() as connection:
            await node.request(connection, "resume", batch_id=paused)
            await node.wait_for_batch(connection, paused, "completed", n_done=REPEAT)
        assert node.finished_tasks(paused) == dict.fromkeys(range(REPEAT), 1)


async def last_file(node: GatedNode, connection: NatsConnection, batch_id: str) -> None:
    await wait_until(lambda: len(stored_episodes(node.data_dir, batch_id)) == REPEAT)


async def listed_end(node: GatedNode, connection: NatsConnection, batch_id: str) -> None:
    await node.wait_for_batch(connection, batch_id, "completed")


async def announced_end(node: GatedNode, connection: NatsConnection, batch_id: str) -> None:
    async with subscribe_to_node(node) as recorder:
        await recorder.wait_until(lambda: f"batch:{batch_id}" in count_event_ids(recorder))


@pytest.mark.parametrize("moment", [last_file, listed_end, announced_end])
async def test_a_node_killed_while_a_batch_finishes_lists_it_as_completed_and_announces_it_once(
    moment: Callable[..., Any], tmp_path: Path
) -> None:
    (batch_id,) = new_ids(1)
    with GatedNode(tmp_path) as node:
        async with await node.connect() as connection:
            await node.request(connection, "start", batch_id=batch_id, **GATED)
            await node.wait_for_batch(connection, batch_id, "running")
            reached = asyncio.create_task(moment(node, connection, batch_id))
            node.gate.touch()
            await reached
            node.kill()
        files = stored_episodes(node.data_dir, batch_id)
        node.start()
        async with await node.connect() as connection:
            await node.request(connection, "start", batch_id=batch_id, **GATED, resume=True)
            await node.wait_for_batch(connection, batch_id, "completed", n_done=REPEAT)
        await assert_ends_announced_once(node, [batch_id])
        assert stored_episodes(node.data_dir, batch_id) == files
        assert node.finished_tasks(batch_id) == dict.fromkeys(range(REPEAT), 1)


async def test_a_cancelled_batch_stays_cancelled_over_all_restarts(tmp_path: Path) -> None:
    running, waiting, resumable = new_ids(3)
    with GatedNode(tmp_path) as node:
        async with await node.connect() as connection:
            await node.request(connection, "start", batch_id=resumable, **GATED)
            node.kill()
        node.start()
        async with await node.connect() as connection:
            await node.request(connection, "start", batch_id=running, **GATED)
            await node.wait_for_batch(connection, running, "running")
            await node.request(connection, "start", batch_id=waiting, **MAZE)
            for batch_id in (waiting, resumable):
                await node.request(connection, "cancel", batch_id=batch_id)
            node.kill()
        expected = {running: "interrupted", waiting: "cancelled", resumable: "cancelled"}
        for _ in range(2):
            node.start()
            async with await node.connect() as connection:
                await node.request(connection, "start", batch_id=waiting, **MAZE, resume=True)
                assert await node.statuses(connection) == expected
            await assert_ends_announced_once(node, [waiting, resumable])
            node.kill()
        assert stored_episodes(node.data_dir, waiting) == []


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """State directory of a killed node, and the statuses of its batches in order: completed, cancelled, accepted."""
    folder = tmp_path_factory.mktemp("killed")
    return folder / "data", asyncio.run(_accept_until_killed(folder))


async def _accept_until_killed(folder: Path) -> dict[str, str]:
    completed, running, cancelled, accepted = new_ids(4)
    with GatedNode(folder) as node:
        async with await node.connect() as connection:
            await node.request(connection, "start", batch_id=completed, **MAZE)
            await node.wait_for_batch(connection, completed, "completed")
            await node.request(connection, "start", batch_id=running, **GATED)
            await node.wait_for_batch(connection, running, "running")
            await node.request(connection, "start", batch_id=cancelled, **MAZE)
            await node.request(connection, "cancel", batch_id=cancelled)
            await node.request(connection, "start", batch_id=accepted, **MAZE)
    return {completed: "completed", running: "interrupted", cancelled: "cancelled", accepted: "interrupted"}


class Tail(NamedTuple):
    """What a power loss leaves at the end of the record: ``of_record`` makes it from the first record."""

    of_record: Callable[[bytes], bytes]
    is_named: bool = True


def _other(record: bytes) -> bytes:
    """Return the record of another batch, which no reply has acknowledged."""
    (batch_id,) = new_ids(1)
    return record.replace(json.loads(record)["batch_id"].encode(), batch_id.encode())


TAILS = {
    "half a line": Tail(lambda record: _other(record)[: len(record) // 2]),
    "a line without its end": Tail(_other, is_named=False),
    "garbage": Tail(lambda record: b"\xff\xfe{\x80]" * 40),
    "zeros": Tail(lambda record: bytes(len(record))),
}


@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS)
async def test_a_torn_end_of_the_record_loses_no_batch_before_and_none_after_it(
    tail: Tail, killed: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    data_dir, (added,) = shutil.copytree(killed[0], tmp_path / "data"), new_ids(1)
    with (data_dir / JOURNAL).open("rb+") as file:
        record = next(line for line in file if line.strip()).rstrip()
        file.seek(0, 2)
        file.write(tail.of_record(record))
    with GatedNode(tmp_path, data_dir) as node:
        async with await node.connect() as connection:
            listed = await node.statuses(connection)
            assert killed[1].items() <= listed.items()
            assert len(listed) <= len(killed[1]) + (not tail.is_named)
            await node.request(connection, "start", batch_id=added, **MAZE)
            await node.wait_for_batch(connection, added, "completed")
            node.kill()
        log = data_dir / "logs" / "runner.log"
        assert n_damages_named(log) == tail.is_named
        node.start()
        async with await node.connect() as connection:
            assert await node.statuses(connection) == listed | {added: "completed"}
        assert n_damages_named(log) == tail.is_named


def n_damages_named(log: Path) -> int:
    """Return how often a node has named a damage of the record in its log."""
    return sum("damaged line" in line and JOURNAL in line for line in log.read_text().splitlines())


async def test_a_start_without_room_is_refused_as_a_whole_and_accepted_once_there_is_room(tmp_path: Path) -> None:
    refused, later, battery = new_ids(3)
    with GatedNode(tmp_path) as node:
        disk = FileSizeLimit(node.pid)
        async with await node.connect() as connection:
            disk.fill()
            for batch_id, plan in ((refused, MAZE), (later, MAZE), (battery, MAZE | {"envs": ["Maze", "Wordle"]})):
                error = (await node.request_reply(connection, "start", batch_id=batch_id, **plan))["error"]
                assert (error["code"], "check for a full disk" in error["message"]) == ("refused", True)
            assert await node.statuses(connection) == {}
            disk.free_space()
            await node.request(connection, "start", batch_id=later, **MAZE)
            await node.wait_for_batch(connection, later, "completed", n_done=REPEAT)
            node.kill()
        node.start()
        async with await node.connect() as connection:
            assert await node.statuses(connection) == {later: "completed"}
        assert {path.parent.name for path in stored_episodes(node.data_dir)} == {later}


async def test_a_start_refused_on_a_full_disk_is_not_listed_by_the_next_node(tmp_path: Path) -> None:
    """A few lines still fit into the last block of the record."""
    played, *others = new_ids(20)
    statuses = {played: "completed"}
    with mount_small_disk(tmp_path / "disk", 24) as disk, GatedNode(tmp_path, disk.folder / "data") as node:
        async with await node.connect() as connection:
            await node.request(connection, "start", batch_id=played, **MAZE)
            await node.wait_for_batch(connection, played, "completed")
            disk.fill()
            for batch_id in others:
                reply = await node.request_reply(connection, "start", batch_id=batch_id, **MAZE)
                if reply["ok"]:
                    statuses[batch_id] = "interrupted"
                else:
                    assert "full" in reply["error"]["message"]
            node.kill()
        assert len(statuses) < len(others) / 2
        disk.free_space()
        node.start()
        async with await node.connect() as connection:
            assert await node.statuses(connection) == statuses
