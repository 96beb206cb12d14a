"""The command ``watch`` as a separate process, with a password in its environment."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.command import COMMAND

CANARY = "canary-81f3c2"
"""Password of the user ``me``, which no output may contain."""


@asynccontextmanager
async def watch(folder: Path, *options: str, password: str = CANARY) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the command in ``folder`` for at most 20 s."""
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "NATS_USER": "me", "NATS_PASSWORD": password}
    process = await asyncio.create_subprocess_exec(
        *(COMMAND, "watch", *options), cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        async with asyncio.timeout(20):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def read_line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode()
