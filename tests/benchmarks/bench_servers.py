"""Steps of the environment servers over HTTP, with many instances, compared with steps of the bare environments."""

from __future__ import annotations

import asyncio
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, Self
from urllib.parse import urlsplit

from runner import plugins
from runner.envs.base import EmbeddedEnvironment
from runner.serve.env_api import DIALECTS
from runner.types import Action
from tests.benchmarks.measure import PAIRS, Row, ratio_of
from tests.support.command import COMMAND, ENVIRON

ENVIRONMENTS = ("Maze", "Wordle", "TextCraft", "BabyAI")
N_INSTANCES = 16
N_STEPS = 15
"""Steps of an instance in one measurement; Wordle needs several episodes for them."""


def run() -> list[Row]:
    """Measure each environment."""
    return [row for name in ENVIRONMENTS for row in rows(name)]


def rows(name: str) -> list[Row]:
    """Time served and bare steps in pairs with alternating order."""
    episode = Episode.random(name)
    with run_server(name) as url, asyncio.Runner() as loop:
        clients = loop.run(ClientGroup.connect(name, url))
        bare = [environment(name) for _ in range(N_INSTANCES)]
        loop.run(clients.play(episode))
        pairs = []
        for number in range(PAIRS):
            if number % 2:
                bare_s = play_bare(bare, episode)
                pairs.append((loop.run(clients.play(episode)), bare_s))
            else:
                pairs.append((loop.run(clients.play(episode)), play_bare(bare, episode)))
        loop.run(clients.close())
    measured = ratio_of(*zip(*pairs, strict=True))
    served, plain = (episode.n_steps * N_INSTANCES / seconds for seconds in (measured.a_median, measured.b_median))
    label = f"{name} steps/s over HTTP, {N_INSTANCES} instances / bare"
    return [Row(label, f"{served:,.0f} / {plain:,.0f}, {measured} the time")]


@dataclass(frozen=True)
class Episode:
    """Actions that do not end a task, and the number of repetitions for a stable time."""

    actions: Sequence[str]
    n_times: int

    @property
    def n_steps(self) -> int:
        """All steps of one instance."""
        return len(self.actions) * self.n_times

    @classmethod
    def random(cls, name: str) -> Self:
        """Return random admissible actions of task 0, with a fixed seed."""
        local, generator = environment(name), Random(0)
        actions: list[str] = []
        local.reset(task_index=0)
        n_steps = 5 if name == "Wordle" else N_STEPS
        while len(actions) < n_steps:
            action = generator.choice(local.admissible_actions() or [""])
            _, _, done = local.step(Action(text=action))
            actions.append(action)
            if done:
                local.reset(task_index=0)
                actions.clear()
        return cls(actions, N_STEPS // n_steps)


def environment(name: str) -> EmbeddedEnvironment:
    """Return a bare environment."""
    created = plugins.load(plugins.ENVS, name)()
    assert isinstance(created, EmbeddedEnvironment)
    return created


def play_bare(environments: Sequence[EmbeddedEnvironment], episode: Episode) -> float:
    """Return the seconds of all steps, one instance after the other."""
    seconds = 0.0
    for _ in range(episode.n_times):
        for bare in environments:
            bare.reset(task_index=0)
        started = time.perf_counter()
        for bare in environments:
            for action in episode.actions:
                bare.step(Action(text=action))
        seconds += time.perf_counter() - started
    return seconds


class ClientGroup:
    """Minimal clients of one server, each with an instance and a connection."""

    def __init__(self, name: str, clients: Sequence[Client]) -> None:
        self._dialect = DIALECTS[name]
        self._clients = clients

    @classmethod
    async def connect(cls, name: str, url: str) -> Self:
        """Connect all clients."""
        prefix = DIALECTS[name].prefix
        clients = [await Client.connect(url, prefix) for _ in range(N_INSTANCES)]
        return cls(name, clients)

    async def play(self, episode: Episode) -> float:
        """Return the seconds of all steps, with all instances in parallel."""
        seconds = 0.0
        for _ in range(episode.n_times):
            for client in self._clients:
                await client.post("/reset", {"id": client.id, self._dialect.task_field: 0})
            started = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for client in self._clients:
                    group.create_task(client.play(episode.actions))
            seconds += time.perf_counter() - started
        return seconds

    async def close(self) -> None:
        """Close all connections."""
        for client in self._clients:
            await client.close()


class Client:
    """A persistent connection with one instance."""

    def __init__(self, prefix: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._prefix = prefix
        self._reader = reader
        self._writer = writer
        self.id = -1

    @classmethod
    async def connect(cls, url: str, prefix: str) -> Self:
        """Connect and create an instance."""
        parts = urlsplit(url)
        client = cls(prefix, *await asyncio.open_connection(parts.hostname, parts.port))
        client.id = (await client.post("/create", {}))["id"]
        return client

    async def play(self, actions: Sequence[str]) -> None:
        """Execute the actions in order."""
        for action in actions:
            response = await self.post("/step", {"id": self.id, "action": action})
            if response["done"]:
                raise RuntimeError(f"{action} ended the episode")

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return the decoded response."""
        content = json.dumps(body).encode()
        head = f"POST {self._prefix}{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        head_lines = await self._reader.readuntil(b"\r\n\r\n")
        length = head_lines.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        response: dict[str, Any] = json.loads(await self._reader.readexactly(int(length)))
        return response

    async def close(self) -> None:
        """Close the connection."""
        self._writer.close()
        await self._writer.wait_closed()


@contextmanager
def run_server(name: str) -> Iterator[str]:
    """Run a server in a separate process; yields its URL."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [COMMAND, "serve", name, "--port", "0"], cwd=folder, env=ENVIRON, stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout
            yield process.stdout.readline().split()[0]
        finally:
            process.terminate()
            process.communicate(timeout=30)
