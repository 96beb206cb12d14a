"""Environment servers of a node: started with it or on request, and stopped with it."""

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

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]


@pytest.fixture
def profile_path(tmp_path: Path) -> Path:
    """Profile whose Maze server starts with the node; the Wordle server starts on request."""
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


async def wait_until_exited(pids: list[int]) -> None:
    """Wait until no process of ``pids`` runs."""
    async with asyncio.timeout(20):
        while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def server_pids(node: NodeProcess) -> list[int]:
    children = psutil.Process(node.pid).children(recursive=True)
    return [child.pid for child in children if "serve" in child.cmdline()]


async def test_a_node_starts_uses_and_stops_its_environment_servers(profile_path: Path, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with NodeProcess(data_dir, "--config", str(profile_path)) as node:
        async with await node.connect() as connection:
            batch_id = await node.start_batch(connection, "Maze")
            await node.wait_for_batch(connection, batch_id, "completed")
            for env, status in (("Wordle", "starting"), ("maze", "running")):
                assert (await node.request(connection, "server_start", env=env))["status"] == status
            async with asyncio.timeout(60):
                states = await environment_states(node, connection)
                while states["Wordle"] != ("up", "http"):
                    await asyncio.sleep(0.1)
                    states = await environment_states(node, connection)
            assert states["Maze"] == ("up", "http")
            assert (await node.request(connection, "server_stop", env="Wordle"))["status"] in ("stopped", "running")
            for env in ("SQLGym", "WebShop", "../x"):
                rejected = await node.request_reply(connection, "server_start", env=env)
                assert rejected["error"]["code"] == "refused"
            unknown = await node.request_reply(
                connection, "start", batch_id=str(ULID()), envs=["gymnasium:FrozenLake-v1"], agent="oracle"
            )
            assert "is not in the profile" in unknown["error"]["message"]
        pids = server_pids(node)
        assert pids
        exit_status, errors = await asyncio.to_thread(node.terminate)
        assert exit_status == 0, errors
        assert f"batch {batch_id}: Maze runs over HTTP at http://127.0.0.1:" in errors
        await wait_until_exited(pids)
    (episode,) = (data_dir / "runs" / batch_id).glob("*.json")
    assert (json.loads(episode.read_bytes())["transport"], json.loads(episode.read_bytes())["success"]) == (
        "http",
        True,
    )


async def environment_states(node: NodeProcess, connection: object) -> dict[str, tuple[str, str]]:
    items = (await node.request(connection, "health"))["items"]  # type: ignore[arg-type]
    envs = {item["env"]: (item["status"], item["transport"]) for item in items if item["kind"] == "env.health"}
    return {env: envs[env] for env in ("Maze", "Wordle")}


async def test_servers_do_not_outlive_a_killed_node(profile_path: Path, tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", "--config", str(profile_path)) as node:
        async with asyncio.timeout(30):
            while not (pids := server_pids(node)):  # noqa: ASYNC110 - in another process
                await asyncio.sleep(0.02)
        os.kill(node.pid, signal.SIGKILL)
        await wait_until_exited(pids)
