"""Model calls as fast as one process can make them: ``python -m tests.benchmarks.bare_client URL N STREAM``."""

from __future__ import annotations

import asyncio
import json
import sys

import aiohttp

CHAT = [{"role": "user", "content": f"Round {number}: you see nothing. What do you do?"} for number in range(15)]


async def converse(session: aiohttp.ClientSession, url: str, stream: bool) -> None:
    """Send conversations of 15 answers, and read each answer to its end."""
    while True:
        for n_messages in range(1, len(CHAT) + 1):
            body: dict[str, object] = {"model": "m", "messages": CHAT[:n_messages], "stream": stream}
            async with session.post(url, json=body) as response:
                if stream:
                    async for line in response.content:
                        if line.startswith(b"data: {"):
                            json.loads(line[6:])
                else:
                    await response.json()


async def _run(url: str, n_conversations: int, stream: bool) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session, asyncio.TaskGroup() as group:
        for _ in range(n_conversations):
            group.create_task(converse(session, url, stream))


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1"))
