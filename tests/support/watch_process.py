"""The command ``watch`` as a separate process, with a password in its environment."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.command import COMMAND

CANARY = "canary-81f3c2"
"""Password of the user ``me``, which no output may contain."""


@asynccontextmanager
async def watch(
    folder: Path, *options: str, password: str = CANARY, limit_s: float = 20.0
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the command in ``folder`` for at most ``limit_s`` seconds."""
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "NATS_USER": "me", "NATS_PASSWORD": password}
    process = await asyncio.create_subprocess_exec(
        *(COMMAND, "watch", *options), cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        async with asyncio.timeout(limit_s):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def read_line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode()


class WatchRecorder:
    """Records what ``watch --json`` prints: the rows, and the notices on standard error."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.pid = process.pid
        self.rows: list[dict[str, Any]] = []
        self.notices: list[str] = []
        self._changed = asyncio.Condition()
        self._process = process

    async def run(self) -> None:
        assert self._process.stdout is not None and self._process.stderr is not None
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read(self._process.stdout, lambda line: self.rows.append(json.loads(line))))
            tasks.create_task(self._read(self._process.stderr, lambda line: self.notices.append(line.strip())))

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(condition)
        except TimeoutError:
            raise AssertionError(f"watch printed {len(self.rows)} rows and {self.notices}") from None

    async def wait_for_rows(self, count: int) -> None:
        await self.wait_until(lambda: len(self.rows) >= count)

    async def wait_for_notice(self, text: str, count: int = 1) -> None:
        await self.wait_until(lambda: sum(text in notice for notice in self.notices) >= count)

    def suspend(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    async def _read(self, stream: asyncio.StreamReader, record: Callable[[str], None]) -> None:
        while line := await stream.readline():
            async with self._changed:
                record(line.decode())
                self._changed.notify_all()


@asynccontextmanager
async def recorded_watch(folder: Path, *options: str, limit_s: float = 100.0) -> AsyncIterator[WatchRecorder]:
    async with watch(folder, *options, "--json", limit_s=limit_s) as process:
        recorder = WatchRecorder(process)
        task = asyncio.create_task(recorder.run())
        try:
            yield recorder
        finally:
            task.cancel()
            await asyncio.wait([task])
