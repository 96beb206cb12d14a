"""A real node: two clients write tags at once, and an idle node archives old episodes."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from runner.store import EpisodeStore
from runner.store.notes import Notes
from tests.support.episodes import new_id, stored_files
from tests.support.node_process import NodeProcess

PROFILE = """id: small
environments:
  lightweight: [{name: Maze, transport: embedded}]
"""

pytestmark = pytest.mark.long


def write_profile(folder: Path, more: str = "") -> str:
    path = folder / "small.yaml"
    path.write_text(PROFILE + more)
    return str(path)


async def play(node: NodeProcess, n: int = 2) -> list[str]:
    """Play a batch to its end; return the ids of its episodes."""
    connection, batch_id = await node.connect(), new_id()
    try:
        await node.request(connection, "start", batch_id=batch_id, envs=["Maze"], agent="oracle", repeat=n)
        await node.wait_for_batch(connection, batch_id, "completed")
    finally:
        await connection.close()
    return [file.episode_id for file in stored_files(EpisodeStore(node.data_dir)) if file.batch_id == batch_id]


def test_two_clients_write_tags_and_notes_at_once_and_lose_none(tmp_path: Path) -> None:
    async def write(node: NodeProcess, episode_id: str, name: str) -> None:
        connection = await node.connect()
        try:
            for number in range(25):
                change = {"add": [f"{name}-{number}"], "note": f"{name} {number}", "note_id": new_id(), "author": name}
                for _ in range(2):  # as if the first reply was lost
                    await node.request(connection, "annotate", episode_id=episode_id, **change)
                if number % 2:
                    await node.request(connection, "annotate", episode_id=episode_id, remove=[f"{name}-{number}"])
        finally:
            await connection.close()

    async def check(node: NodeProcess) -> None:
        episode_id, _ = await play(node)
        async with asyncio.timeout(60):
            await asyncio.gather(write(node, episode_id, "ada"), write(node, episode_id, "bob"))
        notes = Notes(node.data_dir).of_episode(episode_id)
        tags = {f"{name}-{number}" for name in ("ada", "bob") for number in range(0, 25, 2)}
        assert sorted(note.text for note in notes if note.kind == "tag") == sorted(tags)
        assert len([note for note in notes if note.kind == "note"]) == 50
        connection = await node.connect()
        try:
            (node.data_dir / "index.sqlite").unlink()
            shown = await node.request(connection, "annotate", episode_id=episode_id)
            assert [note["text"] for note in shown] == [note.text for note in notes]
            for args, code in (
                ({"episode_id": new_id(), "add": ["a"]}, "not_found"),
                ({"episode_id": episode_id, "add": ["a b"]}, "bad_request"),
                ({"episode_id": episode_id, "add": ["a"] * 51}, "bad_request"),
                ({"episode_id": episode_id, "note": "x" * 4001}, "bad_request"),
            ):
                reply = await node.request_reply(connection, "annotate", **args)
                assert reply["error"]["code"] == code
        finally:
            await connection.close()

    with NodeProcess(tmp_path / "data", "--config", write_profile(tmp_path)) as node:
        asyncio.run(check(node))


def test_an_idle_node_archives_by_its_profile_and_names_the_archive_to_clients(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with NodeProcess(data_dir, "--config", write_profile(tmp_path)) as node:
        ids = asyncio.run(play(node))
        assert node.terminate()[0] == 0
    contents = {each: EpisodeStore(data_dir).read_bytes(each) for each in ids}
    _backdate_acknowledgements(data_dir)

    async def check(node: NodeProcess) -> None:
        await asyncio.to_thread(_wait_until_archived, data_dir)
        connection = await node.connect()
        try:
            for each in ids:
                assert EpisodeStore(data_dir).read_bytes(each) == contents[each]
                reply = await node.request_reply(connection, "episode", episode_id=each, offset=0)
                assert "archived; on the node's machine, run" in reply["error"]["message"]
        finally:
            await connection.close()

    with NodeProcess(data_dir, "--config", write_profile(tmp_path, "retention: {older: 0s}\n")) as node:
        asyncio.run(check(node))


def _wait_until_archived(data_dir: Path) -> None:
    deadline = time.monotonic() + 30
    while any(not file.is_archived for file in stored_files(EpisodeStore(data_dir))):
        assert time.monotonic() < deadline, "the node archives nothing"
        time.sleep(0.05)


def _backdate_acknowledgements(data_dir: Path) -> None:
    """Let the acknowledgements of all events be older than the time in which a broker may lose them."""
    with closing(sqlite3.connect(data_dir / "outbox.sqlite")) as connection, connection:
        connection.execute("UPDATE marks SET at = at - 3600")
