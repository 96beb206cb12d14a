"""A real HTTP server, in a thread of its own, that answers as each test wants: properly, rudely, or not at all."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

from runner.envs.base import EmbeddedEnvironment
from runner.types import Action

JSON = "application/json"


class Asked(NamedTuple):
    """A request as it came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def sent(self) -> Any:  # noqa: ANN401 - whatever the client sent
        return json.loads(self.body) if self.body else None


Answer: TypeAlias = Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


async def _nothing(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """Close the connection without an answer."""
    writer.close()


class RudeServer:
    """``answer`` is called for each request; a connection stays open until the answer closes it.

    Attributes:
        asked: all requests, over all connections.
        n_connections: how many connections there were.
        n_closed: how many of them are over.
    """

    def __init__(self) -> None:
        self.url = ""
        self.answer: Answer = _nothing
        self.asked: list[Asked] = []
        self.n_connections = 0
        self.n_closed = 0
        self._closed = threading.Condition()

    def start_over(self, answer: Answer) -> None:
        self.answer = answer
        self.asked, self.n_connections = [], 0

    def wait_closed(self, n_connections: int) -> None:
        """Wait until so many connections are over."""
        with self._closed:
            assert self._closed.wait_for(lambda: self.n_closed >= n_connections, 10)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.n_connections += 1
        try:
            while not writer.is_closing() and (asked := await _request(reader)):
                self.asked.append(asked)
                await self.answer(asked, writer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with self._closed:
                self.n_closed += 1
                self._closed.notify_all()


async def _request(reader: asyncio.StreamReader) -> Asked | None:
    if not (line := await reader.readline()):
        return None
    method, path, _ = line.decode().split()
    headers: dict[str, str] = {}
    while (line := await reader.readline()).strip():
        name, _, value = line.decode().partition(":")
        headers[name.strip().lower()] = value.strip()
    return Asked(method, path, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


@contextmanager
def rude_server(port: int = 0) -> Iterator[RudeServer]:
    """Serve on a port, by default one that is free, until the end."""
    server, ready = RudeServer(), threading.Event()
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def run() -> None:
        stop = asyncio.Event()
        listener = await asyncio.start_server(server.serve, "127.0.0.1", port)
        server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        loops.append((asyncio.get_running_loop(), stop))
        ready.set()
        await stop.wait()
        listener.close()

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    thread.start()
    assert ready.wait(10)
    yield server
    loop, stop = loops[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(10)


def raw(body: bytes | str, status: int = 200, kind: str = JSON, **headers: str) -> bytes:
    """A whole reply as bytes; keyword arguments are further headers, with _ for -."""
    content = body.encode() if isinstance(body, str) else body
    fields = {"content-length": str(len(content)), "content-type": kind}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} Whatever\r\n{head}\r\n".encode() + content


class Served:
    """Answers like AgentGym's server of an environment that embedded ones play; ``step`` is answered by ``rudely``.

    Attributes:
        envs: the instances by their ids, which count from 0.
        rudely: what to do with a step instead of playing it, if anything.
    """

    def __init__(self, factory: Callable[[], EmbeddedEnvironment], rudely: Answer | None = None) -> None:
        self.envs: dict[int, EmbeddedEnvironment] = {}
        self.rudely = rudely
        self._factory = factory

    async def __call__(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        what = asked.path.rpartition("/")[2]
        if what == "step" and self.rudely is not None:
            await self.rudely(asked, writer)
        else:
            writer.write(told(self._reply(what, asked.sent)))

    def _reply(self, what: str, sent: Any) -> Any:  # noqa: ANN401 - JSON
        if what == "create":
            self.envs[len(self.envs)] = self._factory()
            return {"id": len(self.envs) - 1}
        env = self.envs[sent["id"]]
        if what == "reset":
            return {"observation": env.reset(task_index=sent["game"])[0]["content"]}
        if what == "close":
            return True
        chat, reward, done = env.step(Action(text=sent["action"]))
        return {"observation": chat[0]["content"], "reward": reward, "done": done, "truncated": env.truncated}


def told(payload: object) -> bytes:
    """A whole reply of JSON."""
    return raw(json.dumps(payload))
