"""An HTTP server in its own thread whose answers each test defines, including malformed and missing ones."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple, TypeAlias

from anyio.from_thread import start_blocking_portal

from runner.envs.base import EmbeddedEnvironment
from runner.types import Action

JSON = "application/json"


class ReceivedRequest(NamedTuple):
    """A request as received."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def payload(self) -> Any:  # noqa: ANN401 - any JSON value
        return json.loads(self.body) if self.body else None


Handler: TypeAlias = Callable[[ReceivedRequest, asyncio.StreamWriter], Awaitable[None]]


async def _disconnect(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.close()


class RudeServer:
    """Calls ``handler`` for each request; a connection stays open until the handler closes it.

    Attributes:
        requests: all requests, over all connections.
        n_connections: number of connections so far.
        n_closed: number of closed connections.
        unread: numbers of the connections, from 1, that are closed before a request is read.
    """

    def __init__(self) -> None:
        self.url = ""
        self.handler: Handler = _disconnect
        self.requests: list[ReceivedRequest] = []
        self.n_connections = 0
        self.n_closed = 0
        self.unread: frozenset[int] = frozenset()
        self._closed = threading.Condition()

    def reset(self, handler: Handler) -> None:
        self.handler = handler
        self.requests, self.n_connections = [], 0

    def wait_closed(self, n_connections: int) -> None:
        """Wait until ``n_connections`` are closed."""
        with self._closed:
            assert self._closed.wait_for(lambda: self.n_closed >= n_connections, 10)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.n_connections += 1
        if self.n_connections in self.unread:
            writer.close()
        try:
            while not writer.is_closing() and (request := await _read_request(reader)):
                self.requests.append(request)
                await self.handler(request, writer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with self._closed:
                self.n_closed += 1
                self._closed.notify_all()


async def _read_request(reader: asyncio.StreamReader) -> ReceivedRequest | None:
    if not (line := await reader.readline()):
        return None
    method, path, _ = line.decode().split()
    headers: dict[str, str] = {}
    while (line := await reader.readline()).strip():
        name, _, value = line.decode().partition(":")
        headers[name.strip().lower()] = value.strip()
    return ReceivedRequest(method, path, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


@contextmanager
def run_rude_server(port: int = 0, host: str = "127.0.0.1") -> Iterator[RudeServer]:
    """Run a server on ``port``, by default a free one, in a thread."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(_listen(port, host)) as server:
        yield server


@asynccontextmanager
async def _listen(port: int, host: str) -> AsyncIterator[RudeServer]:
    server = RudeServer()
    listener = await asyncio.start_server(server.serve, host, port)
    server.url = f"http://{host}:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()


def http_response(body: bytes | str, status: int = 200, kind: str = JSON, **headers: str) -> bytes:
    """Return a complete HTTP response; keyword arguments are further headers, with _ for -."""
    content = body.encode() if isinstance(body, str) else body
    fields = {"content-length": str(len(content)), "content-type": kind}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} Reason\r\n{head}\r\n".encode() + content


class EnvironmentHandler:
    """Answers like AgentGym's server, with embedded environments; ``step_handler`` may answer ``step`` instead.

    Attributes:
        envs: instances by id, from 0.
        shown: latest observation of each instance, unless ``step_handler`` answers steps.
        step_handler: handler of steps that replaces their execution, if any.
    """

    def __init__(self, factory: Callable[[], EmbeddedEnvironment], step_handler: Handler | None = None) -> None:
        self.envs: dict[int, EmbeddedEnvironment] = {}
        self.shown: dict[int, object] = {}
        self.step_handler = step_handler
        self._factory = factory

    async def __call__(self, request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        operation, _, query = request.path.rpartition("/")[2].partition("?id=")
        if operation == "observation":
            error = {"error": "'observation'"}
            writer.write(json_response(error if self.step_handler else self.shown.get(int(query), error)))
        elif operation == "step" and self.step_handler is not None:
            await self.step_handler(request, writer)
        else:
            writer.write(json_response(self._reply(operation, request.payload)))

    def _reply(self, operation: str, sent: Any) -> Any:  # noqa: ANN401 - JSON
        if operation == "create":
            self.envs[len(self.envs)] = self._factory()
            return {"id": len(self.envs) - 1}
        env = self.envs[sent["id"]]
        if operation == "reset":
            self.shown[sent["id"]] = env.reset(task_index=sent.get("game", sent.get("data_idx")))[0]["content"]
            return {"observation": self.shown[sent["id"]]}
        if operation == "close":
            return True
        chat, reward, done = env.step(Action(text=sent["action"]))
        self.shown[sent["id"]] = chat[0]["content"]
        return {"observation": chat[0]["content"], "reward": reward, "done": done, "truncated": env.truncated}


def json_response(payload: object) -> bytes:
    """Return a complete HTTP response with a JSON body."""
    return http_response(json.dumps(payload))
