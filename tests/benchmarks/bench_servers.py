"""Steps of our servers over HTTP, many instances at a time, next to the same steps of the bare environments."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
"""Steps of an instance in one measurement; an episode of Wordle has less, so that it takes several."""


def run() -> list[Row]:
    """Each environment."""
    return [row for name in ENVIRONMENTS for row in rows(name)]


def rows(name: str) -> list[Row]:
    """Time served against bare steps in pairs that take turns in who comes first."""
    episode = Episode.drawn(name)
    with server(name) as url, asyncio.Runner() as loop:
        crowd = loop.run(Crowd.opened(name, url))
        bare = [environment(name) for _ in range(N_INSTANCES)]
        loop.run(crowd.play(episode))
        pairs = []
        for number in range(PAIRS):
            if number % 2:
                locally_s = play_bare(bare, episode)
                pairs.append((loop.run(crowd.play(episode)), locally_s))
            else:
                pairs.append((loop.run(crowd.play(episode)), play_bare(bare, episode)))
        loop.run(crowd.close())
    measured = ratio_of(*zip(*pairs, strict=True))
    served, plain = (episode.n_steps * N_INSTANCES / seconds for seconds in (measured.a_median, measured.b_median))
    label = f"{name} steps/s over HTTP, {N_INSTANCES} instances / bare"
    return [Row(label, f"{served:,.0f} / {plain:,.0f}, {measured} the time")]


@dataclass(frozen=True)
class Episode:
    """Actions that do not end a task, and how often they are played to be worth timing."""

    actions: Sequence[str]
    n_times: int

    @property
    def n_steps(self) -> int:
        """Steps of one instance in all."""
        return len(self.actions) * self.n_times

    @classmethod
    def drawn(cls, name: str) -> Self:
        """Admissible actions of task 0, drawn with a fixed seed."""
        local, draw = environment(name), random.Random(0)
        actions: list[str] = []
        local.reset(task_index=0)
        n_steps = 5 if name == "Wordle" else N_STEPS
        while len(actions) < n_steps:
            action = draw.choice(local.admissible_actions() or [""])
            _, _, done = local.step(Action(text=action))
            actions.append(action)
            if done:
                local.reset(task_index=0)
                actions.clear()
        return cls(actions, N_STEPS // n_steps)


def environment(name: str) -> EmbeddedEnvironment:
    """A bare environment."""
    made = plugins.load(plugins.ENVS, name)()
    assert isinstance(made, EmbeddedEnvironment)
    return made


def play_bare(environments: Sequence[EmbeddedEnvironment], episode: Episode) -> float:
    """Seconds of all the steps, one instance after the other."""
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


class Crowd:
    """Clients of one server, each with an instance and a connection; as plain as can be, to measure the server."""

    def __init__(self, name: str, clients: Sequence[Client]) -> None:
        self._dialect = DIALECTS[name]
        self._clients = clients

    @classmethod
    async def opened(cls, name: str, url: str) -> Self:
        """Connect them all."""
        prefix = DIALECTS[name].prefix
        clients = [await Client.connected(url, prefix) for _ in range(N_INSTANCES)]
        return cls(name, clients)

    async def play(self, episode: Episode) -> float:
        """Seconds of all the steps, of all instances at the same time."""
        seconds = 0.0
        for _ in range(episode.n_times):
            for client in self._clients:
                await client.ask("/reset", {"id": client.id, self._dialect.task_field.name: 0})
            started = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for client in self._clients:
                    group.create_task(client.play(episode.actions))
            seconds += time.perf_counter() - started
        return seconds

    async def close(self) -> None:
        """Leave."""
        for client in self._clients:
            await client.close()


class Client:
    """One kept connection and the instance that is played over it."""

    def __init__(self, prefix: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._prefix = prefix
        self._reader = reader
        self._writer = writer
        self.id = -1

    @classmethod
    async def connected(cls, url: str, prefix: str) -> Self:
        """Connect and have an instance made."""
        parts = urlsplit(url)
        client = cls(prefix, *await asyncio.open_connection(parts.hostname, parts.port))
        client.id = (await client.ask("/create", {}))["id"]
        return client

    async def play(self, actions: Sequence[str]) -> None:
        """Take the actions, one after the other."""
        for action in actions:
            reply = await self.ask("/step", {"id": self.id, "action": action})
            if reply["done"]:
                raise RuntimeError(f"{action} ended the episode")

    async def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """What the server answers."""
        content = json.dumps(body).encode()
        head = f"POST {self._prefix}{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        answered = await self._reader.readuntil(b"\r\n\r\n")
        length = answered.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        reply: dict[str, Any] = json.loads(await self._reader.readexactly(int(length)))
        return reply

    async def close(self) -> None:
        """Close the connection."""
        self._writer.close()
        await self._writer.wait_closed()


@contextmanager
def server(name: str) -> Iterator[str]:
    """A server in a process of its own; gives its URL."""
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
