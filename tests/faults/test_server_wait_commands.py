"""Batches of a node and of ``agentgym-runner --run`` whose environment server is killed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
from nats.aio.msg import Msg
from ulid import ULID

from runner.bus.connection import NatsConnection
from tests.support.command import run_shell, start_agentgym
from tests.support.env_server_process import EnvServerProcess, free_port
from tests.support.node_process import NodeProcess, running_node

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]

N_TASKS = 100
BATCH: dict[str, Any] = {"envs": ["Maze"], "agent": "random", "repeat": N_TASKS, "max_rounds": 3}


def write_profile(folder: Path, port: int, **entry: Any) -> Path:  # noqa: ANN401
    maze = {"name": "Maze", "port": port, "transport": "http", **entry}
    path = folder / "p.yaml"
    path.write_text(json.dumps({"id": "p", "environments": {"lightweight": [maze]}}))
    return path


def kill_server(node: NodeProcess) -> None:
    """Kill the Maze server that the node started."""
    for child in psutil.Process(node.pid).children(recursive=True):
        if "serve" in child.cmdline() and "-S" not in child.cmdline():
            os.kill(child.pid, signal.SIGKILL)
            psutil.wait_procs([child], timeout=20)


async def wait_until_up(node: NodeProcess, connection: NatsConnection) -> None:
    async with asyncio.timeout(60):
        while (await node.request(connection, "server_start", env="Maze"))["status"] != "running":  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def outcomes_by_task(data_dir: Path, batch_id: str) -> dict[int, list[str]]:
    tasks: dict[int, list[str]] = {}
    for path in (data_dir / "runs" / batch_id).glob("*.json"):
        episode = json.loads(path.read_bytes())
        tasks.setdefault(episode["task_index"], []).append(episode["outcome"])
    return tasks


async def test_a_batch_continues_when_the_node_has_started_its_server_again(tmp_path: Path) -> None:
    data_dir, batch_id = tmp_path / "data", str(ULID())
    command = f"agentgym-runner serve Maze --port {(port := free_port())}"
    profile = write_profile(tmp_path, port, server_cmd=command, autostart=True)
    with NodeProcess(data_dir, "--config", str(profile)) as node:
        async with await node.connect() as connection:
            await node.request(connection, "start", batch_id=batch_id, **BATCH)
            await node.wait_for_batch(connection, batch_id, "running", n_done=5)
            await asyncio.to_thread(kill_server, node)
            async with asyncio.timeout(60):
                while (batch := (await node.request(connection, "list"))["batches"][0])["waiting_s"] is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert 0 < batch["waiting_s"] <= 60
            assert batch["waiting_for"].endswith(": nothing listens there")
            await wait_until_up(node, connection)
            batch = await node.wait_for_batch(connection, batch_id, "completed")
            assert (batch["n_done"], batch["waiting_s"], batch["waiting_for"]) == (N_TASKS, None, None)
        _, errors = await asyncio.to_thread(node.terminate)
    assert f"batch {batch_id}: the server of Maze is gone (http://127.0.0.1:" in errors
    assert "replies again; the batch continues" in errors
    tasks = outcomes_by_task(data_dir, batch_id)
    assert tasks.keys() == set(range(N_TASKS))
    assert Counter(map(len, tasks.values())) == {1: N_TASKS}
    assert sum(outcomes == ["error"] for outcomes in tasks.values()) <= 1


async def test_a_batch_resumed_without_its_server_reports_why_it_ends(tmp_path: Path) -> None:
    batch_id, progress = str(ULID()), asyncio.Queue[dict[str, Any]]()
    profile = write_profile(tmp_path, port := free_port(), wait_sec=2)

    async def on_batch(message: Msg) -> None:
        for item in json.loads(message.data)["items"]:
            if item["kind"] == "batch.progress":
                await progress.put(item)

    async with running_node(tmp_path / "data", "--config", str(profile)) as (node, connection):
        await connection.client.subscribe("agentgym.live.batch.v1.n1", cb=on_batch)
        await connection.client.flush()
        for resume in (False, True):
            await node.request(connection, "start", batch_id=batch_id, **BATCH, resume=resume)
            item = await asyncio.wait_for(progress.get(), 30)
            assert (item["batch_id"], item["interrupted"], item["n_planned"]) == (batch_id, True, N_TASKS)
            assert item["interruption"].startswith(f"Maze cannot be played at http://127.0.0.1:{port}: nothing")
            batch = await node.wait_for_batch(connection, batch_id, "interrupted")
            assert batch["interruption"] == item["interruption"]
        with EnvServerProcess("Maze", port=port):
            (resumed,) = await node.request(connection, "start", batch_id=batch_id, **BATCH, resume=True)
            assert resumed["interruption"] is None
            batch = await node.wait_for_batch(connection, batch_id, "completed", n_done=N_TASKS)
            assert batch["interruption"] is None


def test_a_run_whose_server_stays_away_prints_the_command_that_continues_it(tmp_path: Path) -> None:
    with EnvServerProcess("Maze") as server:
        write_profile(tmp_path, server.port, wait_sec=2)
        options = ["--agent", "random", "--config", "./p.yaml", "--max-rounds", "3"]
        started = start_agentgym(tmp_path, "--run", "Maze", "--repeat", str(N_TASKS), *options)
        with started as (run, _, errors):
            lines = [line for line, _ in zip(errors, range(6), strict=False)]
            server.kill()
            lines += errors.readlines()
            assert run.wait(60) == 130
        server.start()
        text = "".join(lines)
        assert re.search(r"waiting for the server, [12] s left \(http://127\.0\.0\.1:", text)
        assert "Maze: interrupted: its server did not reply for 2 s (http://127.0.0.1:" in text
        assert f" of {N_TASKS} episodes are left. Start the server again, then run:" in text
        printed = lines[-1].strip()
        assert printed.startswith(shlex.join(["agentgym-runner", *options, "--run", "Maze", "--task-index"]))
        continued = run_shell(tmp_path, printed)
        assert continued.returncode == 0, continued.stderr
    batches = [path.name for path in (tmp_path / "data" / "runs").iterdir()]
    assert len(batches) == 2
    tasks = [task for batch_id in batches for task in outcomes_by_task(tmp_path / "data", batch_id).items()]
    played = Counter(task for task, outcomes in tasks if outcomes != ["interrupted"])
    assert played == Counter(range(N_TASKS))
    assert sum(outcomes == ["error"] for _, outcomes in tasks) <= 1


def test_a_signal_ends_a_run_that_waits_at_once(tmp_path: Path) -> None:
    with EnvServerProcess("Maze") as server:
        write_profile(tmp_path, server.port, wait_sec=1000)
        options = ("--run", "Maze", "--repeat", str(N_TASKS), "--agent", "random", "--config", "./p.yaml")
        with start_agentgym(tmp_path, *options) as (run, _, errors):
            assert "Maze: over HTTP at" in errors.readline()
            errors.readline()
            server.kill()
            while "waiting for the server, 1000 s left" not in (line := errors.readline()):
                assert line, "the run ended without a wait"
            run.send_signal(signal.SIGINT)
            rest = errors.read()
            assert run.wait(20) == 130
    assert "Stopping after the current steps" in rest
    assert "did not reply" not in rest
