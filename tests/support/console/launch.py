"""A console in a pseudo-terminal with a node of its own."""

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

from runner.bus.address import address_of_node
from runner.bus.connection import NatsConnection
from runner.bus.rpc import send_request
from runner.events.subjects import control_subject
from tests.support.terminal import Terminal

CONSOLE = str(Path(sys.executable).with_name("agentgym-tui"))
NODE = "n1"


@contextmanager
def node_cleanup(data_dir: Path) -> Iterator[None]:
    """Kill the node that a console started on a state directory, even when the test fails."""
    try:
        yield
    finally:
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            psutil.Process(node_pid(data_dir)).kill()


def launch_console(data_dir: Path, columns: int = 120, rows: int = 40) -> Terminal:
    return Terminal(
        CONSOLE, "launch", "--data-dir", str(data_dir), "--node", NODE, columns=columns, rows=rows, cwd=data_dir.parent
    )


def node_pid(data_dir: Path) -> int:
    return int(json.loads((data_dir / "node.json").read_bytes())["pid"])


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def read_episodes(data_dir: Path) -> list[dict[str, Any]]:
    """Return the episode files, oldest first."""
    return [
        json.loads(path.read_bytes()) for path in sorted(data_dir.glob("runs/*/*.json"), key=lambda path: path.stem)
    ]


def stop_node(data_dir: Path) -> None:
    """Request a shutdown and wait until the process has ended."""
    process = os.pidfd_open(node_pid(data_dir))
    request_node(data_dir, "shutdown")
    assert select.select([process], [], [], 30)[0], "the node did not stop"
    os.close(process)


def request_node(data_dir: Path, op: str, **args: Any) -> Any:  # noqa: ANN401
    """Send a request to the node from a second client and return its result."""

    async def request() -> Any:  # noqa: ANN401
        async with await connect_to_node(data_dir) as connection:
            return _result(await _reply(connection, op, args))

    return asyncio.run(request())


async def connect_to_node(data_dir: Path) -> NatsConnection:
    address = address_of_node(data_dir)
    assert address is not None
    return await NatsConnection.open(address, name="test")


async def _reply(connection: NatsConnection, op: str, args: Mapping[str, Any]) -> dict[str, Any]:
    payload = msgspec.json.encode({"id": "test", "op": op, "args": args})
    response = await send_request(connection, control_subject(NODE), payload, timeout_s=10)
    return dict(msgspec.json.decode(response or b"{}"))


def _result(reply: Mapping[str, Any]) -> Any:  # noqa: ANN401
    assert reply.get("ok"), reply
    return reply.get("result")


def select_environment(terminal: Terminal, env: str) -> None:
    """Move the cursor of the focused environment table to an environment."""
    lines = terminal.lines
    top = next(row for row, line in enumerate(lines) if line.startswith(" environment"))
    below = next(row for row, line in enumerate(lines[top + 1 :]) if line[1:].startswith(env))
    terminal.send("g" + "j" * below)
    terminal.wait_for(f"▸{env}")
