"""A real node process, and its control requests."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import psutil
from ulid import ULID

from runner.bus.address import address_of_node
from runner.bus.connection import NatsConnection
from runner.bus.rpc import send_request
from runner.events.subjects import control_subject
from tests.support.command import limited_command

COMMAND = str(Path(sys.executable).with_name("agentgym-runner"))
START_TIMEOUT_S = 30.0


def clean_environ(**more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **more}


class NodeProcess:
    """``agentgym-runner node`` on a state directory; killed at the end of the block."""

    def __init__(
        self,
        data_dir: Path,
        *options: str,
        env: Mapping[str, str] | None = None,
        name: str = "n1",
        n_files: int | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        self.data_dir = data_dir
        self.name = name
        self._command = [*prefix, COMMAND, "node", "--data-dir", str(data_dir), "--node", name, *options]
        if n_files is not None:
            self._command = limited_command(n_files, *self._command)
        self._env = dict(env or clean_environ())
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> Self:
        (self.data_dir / "node.json").unlink(missing_ok=True)
        self.process = subprocess.Popen(self._command, env=self._env, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not (self.data_dir / "node.json").exists():
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < deadline, "the node did not start"
            time.sleep(0.02)
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def broker(self) -> psutil.Process:
        """Process of the node's own broker."""
        (broker,) = (child for child in psutil.Process(self.pid).children() if "nats-server" in child.name())
        return broker

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
        if self.process is not None:
            self.process.communicate(timeout=30)

    def terminate(self) -> tuple[int, str]:
        """Send SIGTERM; return the exit status and the text on standard error."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors

    async def connect(self, *, reads: bool = False) -> NatsConnection:
        """Return a connection to the bus of the node; unless it ``reads`` them still, it has read its episodes."""
        address = address_of_node(self.data_dir)
        assert address is not None
        connection = await NatsConnection.open(address, name="test")
        while not reads and (await self.request(connection, "health"))["indexing"] is not None:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)
        return connection

    async def start_batch(self, connection: NatsConnection, env: str, **args: Any) -> str:  # noqa: ANN401
        """Start a batch of the oracle in an environment; return its id."""
        batch_id = str(ULID())
        await self.request(connection, "start", batch_id=batch_id, envs=[env], **{"agent": "oracle", **args})
        return batch_id

    async def request(self, connection: NatsConnection, op: str, **args: Any) -> Any:  # noqa: ANN401
        """Return the result of a request; a rejected request fails the test."""
        reply = await self.request_reply(connection, op, **args)
        assert reply["ok"], reply
        return reply["result"]

    async def request_reply(self, connection: NatsConnection, op: str, **args: Any) -> Any:  # noqa: ANN401
        payload = msgspec.json.encode({"id": f"test-{op}", "op": op, "args": args})
        async with asyncio.timeout(20):
            while True:
                reply = await send_request(connection, control_subject(self.name), payload, timeout_s=10)
                if reply is not None:
                    return msgspec.json.decode(reply)
                await asyncio.sleep(0.02)  # after a restart of the broker the node has not reconnected yet

    async def wait_for_batch(
        self, connection: NatsConnection, batch_id: str, *statuses: str, n_done: int = 0
    ) -> dict[str, Any]:
        """Return the batch once it has one of these statuses and at least ``n_done`` episodes."""
        async with asyncio.timeout(60):
            while True:
                listed = await self.request(connection, "list")
                batch: dict[str, Any] = next(b for b in listed["batches"] if b["batch_id"] == batch_id)
                if batch["status"] in statuses and batch["n_done"] >= n_done:
                    return batch
                await asyncio.sleep(0.02)


@asynccontextmanager
async def running_node(
    data_dir: Path,
    *options: str,
    **kwargs: Any,  # noqa: ANN401 - of ``NodeProcess``
) -> AsyncIterator[tuple[NodeProcess, NatsConnection]]:
    """Run a node, and yield it with a connection."""
    with NodeProcess(data_dir, *options, **kwargs) as node:
        async with await node.connect() as connection:
            yield node, connection
