"""Files by which clients find a node, deleted or changed while it runs, and a state directory open to every user."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import psutil
import pytest

from tests.support.command import run_agentgym
from tests.support.node_events import wait_until
from tests.support.node_process import NodeProcess
from tests.support.watch_process import read_line, watch

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

NODE_FILE, CREDENTIAL = "node.json", "nats/credential.json"


async def wait_for_content(path: Path, content: bytes) -> None:
    await wait_until(lambda: path.is_file() and path.read_bytes() == content, 20)


@pytest.mark.parametrize("deleted", [[NODE_FILE], [CREDENTIAL], [NODE_FILE, CREDENTIAL]], ids=["node", "key", "both"])
async def test_deleted_files_of_a_node_are_written_again(node: NodeProcess, deleted: list[str]) -> None:
    paths = [node.data_dir / name for name in deleted]
    contents = [path.read_bytes() for path in paths]
    for path in paths:
        path.unlink()
    for path, content in zip(paths, contents, strict=True):
        await wait_for_content(path, content)
        assert path.stat().st_mode & 0o777 == 0o600
    async with await node.connect() as connection:
        assert (await node.request(connection, "health"))["pid"] == node.pid


@pytest.mark.parametrize("name", [NODE_FILE, CREDENTIAL])
async def test_a_watch_that_starts_while_a_file_is_missing_waits_until_the_node_restores_it(
    node: NodeProcess, name: str
) -> None:
    process = psutil.Process(node.pid)
    process.suspend()  # it restores nothing until it is resumed
    (node.data_dir / name).unlink()
    async with watch(node.data_dir.parent, "--data-dir", str(node.data_dir), "--json") as viewer:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(viewer.wait(), 2)
        process.resume()
        assert json.loads(await read_line(viewer))["row"]


@pytest.mark.parametrize("name", [NODE_FILE, CREDENTIAL])
async def test_changed_files_of_a_node_are_written_again(node: NodeProcess, name: str) -> None:
    path = node.data_dir / name
    content = path.read_bytes()
    for other in (b"", b"\xff\x00", json.dumps({"user": "x", "password": "y", "url": "nats://127.0.0.1:1"}).encode()):
        path.write_bytes(other)
        await wait_for_content(path, content)
    path.chmod(0o644)  # clients reject such a file
    await wait_until(lambda: path.stat().st_mode & 0o777 == 0o600, 20)
    async with await node.connect() as connection:
        assert (await node.request(connection, "health"))["pid"] == node.pid


def test_a_node_warns_once_when_it_cannot_write_its_file_and_writes_it_later(tmp_path: Path) -> None:
    with NodeProcess(data_dir := tmp_path / "data") as node:
        path = data_dir / NODE_FILE
        content = path.read_bytes()
        path.unlink()
        path.mkdir()
        (path / "x").write_text("")
        node_log = data_dir / "logs" / "runner.log"
        asyncio.run(_wait_for_text(node_log, "node.json was deleted or changed and cannot be written"))
        (path / "x").unlink()
        path.rmdir()
        asyncio.run(wait_for_content(path, content))
        status, errors = node.terminate()
    assert status == 0, errors
    assert errors.count("cannot be written") == 1
    assert "node.json was deleted or changed while the node runs; it was written again" in errors


async def _wait_for_text(path: Path, text: str) -> None:
    await wait_until(lambda: path.exists() and text in path.read_text(), 20)


def test_a_node_and_a_run_warn_of_a_state_directory_that_every_user_can_change(tmp_path: Path) -> None:
    (data_dir := tmp_path / "data").mkdir()
    data_dir.chmod(0o777)
    warning = f"WARNING: {data_dir} can be changed by every user of this machine; run: chmod o-w {data_dir}"
    with NodeProcess(data_dir) as node:
        _, errors = node.terminate()
    assert errors.count(warning) == 1
    completed = run_agentgym(tmp_path, "--run", "Maze", "--agent", "oracle")
    assert (completed.returncode, completed.stderr.count(warning)) == (0, 1)
    data_dir.chmod(0o700)
    assert "every user" not in run_agentgym(tmp_path, "--run", "Maze", "--agent", "oracle").stderr
