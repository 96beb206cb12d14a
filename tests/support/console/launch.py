"""The console in a terminal beside a node of its own, for tests that play."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
from ulid import ULID

from runner.bus.address import address_of_node
from runner.bus.connection import NatsConnection
from runner.bus.rpc import send_request
from runner.events.subjects import control_subject
from tests.support.terminal import Terminal

CONSOLE = str(Path(sys.executable).with_name("agentgym-tui"))
NODE = "n1"
START_S = 60.0


@contextmanager
def node_of(data_dir: Path) -> Iterator[None]:
    """Whatever node the console starts on a state directory is gone at the end, also when the test fails."""
    try:
        yield
    finally:
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            psutil.Process(node_pid(data_dir)).kill()


def launched(data_dir: Path, columns: int = 120, rows: int = 40) -> Terminal:
    return Terminal(
        CONSOLE, "launch", "--data-dir", str(data_dir), "--node", NODE, columns=columns, rows=rows, cwd=data_dir.parent
    )


def node_pid(data_dir: Path) -> int:
    return int(json.loads((data_dir / "node.json").read_bytes())["pid"])


def running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def stored(data_dir: Path) -> list[dict[str, Any]]:
    """The episode files, the oldest first."""
    return [
        json.loads(path.read_bytes()) for path in sorted(data_dir.glob("runs/*/*.json"), key=lambda path: path.stem)
    ]


def stop_node(data_dir: Path) -> None:
    """Tell it to, and wait for its end."""
    ended = os.pidfd_open(node_pid(data_dir))
    ask_node(data_dir, "shutdown")
    assert select.select([ended], [], [], 30)[0], "the node goes on"
    os.close(ended)


def ask_node(data_dir: Path, op: str, **args: Any) -> Any:  # noqa: ANN401
    """The result of a request to the node, from another client than the console."""

    async def asked() -> Any:  # noqa: ANN401
        async with await connection_to(data_dir) as connection:
            return _result(await _reply(connection, op, args))

    return asyncio.run(asked())


def start_paused(data_dir: Path, *envs: str, repeat: int) -> list[str]:
    """Have the node play a battery, and pause it as soon as it does; the ids of its batches."""
    start = {"batch_id": str(ULID()), "envs": envs, "agent": "oracle", "repeat": repeat}

    async def started() -> list[str]:
        async with await connection_to(data_dir) as connection, asyncio.timeout(START_S):
            batch_ids = [batch["batch_id"] for batch in _result(await _reply(connection, "start", start))]
            while not (await _reply(connection, "pause", {"batch_id": batch_ids[0]}))["ok"]:  # noqa: ASYNC110 - it is in another process
                await asyncio.sleep(0.01)  # it still waits in the queue
            return batch_ids

    return asyncio.run(started())


async def connection_to(data_dir: Path) -> NatsConnection:
    address = address_of_node(data_dir)
    assert address is not None
    return await NatsConnection.open(address, name="test")


async def _reply(connection: NatsConnection, op: str, args: Mapping[str, Any]) -> dict[str, Any]:
    payload = msgspec.json.encode({"id": "test", "op": op, "args": args})
    answered = await send_request(connection, control_subject(NODE), payload, timeout_s=10)
    return dict(msgspec.json.decode(answered or b"{}"))


def _result(reply: Mapping[str, Any]) -> Any:  # noqa: ANN401
    assert reply.get("ok"), reply
    return reply.get("result")


def pick(terminal: Terminal, env: str) -> None:
    """Put the cursor of the environment table, which has the keys, on an environment."""
    lines = terminal.lines
    top = next(row for row, line in enumerate(lines) if line.startswith(" environment"))
    below = next(row for row, line in enumerate(lines[top + 1 :]) if line[1:].startswith(env))
    terminal.send("g" + "j" * below)
    terminal.wait_for(f"▸{env}")
