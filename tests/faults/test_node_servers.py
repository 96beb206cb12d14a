"""A node with a server of its own: started with it or on request, played on, and gone when the node is."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from pathlib import Path

import psutil
import pytest
from ulid import ULID

from tests.support.node_process import NodeProcess

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Maze is played on a server that comes with the node, Wordle on one if somebody starts it."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        ports = one.getsockname()[1], two.getsockname()[1]
    path = tmp_path / "p.yaml"
    path.write_text(
        f"""
id: p
environments:
  lightweight:
    - {{name: Maze, port: {ports[0]}, transport: http, autostart: true,
       server_cmd: agentgym-runner serve Maze --port {ports[0]}}}
    - {{name: Wordle, port: {ports[1]}, server_cmd: agentgym-runner serve Wordle --port {ports[1]}}}
    - {{name: SQLGym}}
"""
    )
    return path


async def _gone(pids: list[int]) -> None:
    """Until none of the processes, which are not this one's, runs any more."""
    async with asyncio.timeout(20):
        while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def _servers(node: NodeProcess) -> list[int]:
    children = psutil.Process(node.pid).children(recursive=True)
    return [child.pid for child in children if "serve" in child.cmdline()]


@pytest.mark.long
async def test_a_node_starts_servers_plays_on_them_and_takes_them_along(profile: Path, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with NodeProcess(data_dir, "--config", str(profile)) as node:
        async with await node.connect() as connection:
            batch_id = str(ULID())
            await node.request(connection, "start", batch_id=batch_id, envs=["Maze"], agent="oracle")
            await node.wait_for_batch(connection, batch_id, "completed")
            for env, said in (("Wordle", "starting"), ("maze", "running")):
                assert (await node.request(connection, "server_start", env=env))["status"] == said
            async with asyncio.timeout(60):
                while len(known := await _known(node, connection)) < 2 or known["Wordle"] != ("up", "http"):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            assert known["Maze"] == ("up", "http")
            assert (await node.request(connection, "server_stop", env="Wordle"))["status"] in ("stopped", "running")
            for env in ("SQLGym", "WebShop", "../x"):
                refused = await node.request_reply(connection, "server_start", env=env)
                assert refused["error"]["code"] == "refused"
            unplayed = await node.request_reply(
                connection, "start", batch_id=str(ULID()), envs=["gymnasium:FrozenLake-v1"], agent="oracle"
            )
            assert "is not in the profile" in unplayed["error"]["message"]
        pids = _servers(node)
        assert pids
        status, said = await asyncio.to_thread(node.terminate)
        assert status == 0, said
        assert f"batch {batch_id}: Maze runs over HTTP at http://127.0.0.1:" in said
        await _gone(pids)
    (episode,) = (data_dir / "runs" / batch_id).glob("*.json")
    assert (json.loads(episode.read_bytes())["transport"], json.loads(episode.read_bytes())["success"]) == (
        "http",
        True,
    )


async def _known(node: NodeProcess, connection: object) -> dict[str, tuple[str, str]]:
    items = (await node.request(connection, "health"))["items"]  # type: ignore[arg-type]
    envs = {item["env"]: (item["status"], item["transport"]) for item in items if item["kind"] == "env.health"}
    return {env: envs[env] for env in ("Maze", "Wordle")}


async def test_servers_do_not_outlive_a_killed_node(profile: Path, tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", "--config", str(profile)) as node:
        async with asyncio.timeout(30):
            while not (pids := _servers(node)):  # noqa: ASYNC110 - in another process
                await asyncio.sleep(0.02)
        os.kill(node.pid, signal.SIGKILL)
        await _gone(pids)
