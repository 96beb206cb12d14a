"""A model server that misbehaves as it is told, byte by byte."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeAlias, cast

Behaviour: TypeAlias = "bytes | Callable[[Exchange], object]"
"""A whole reply, or something that writes one."""


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        return cast(dict[str, Any], json.loads(self.body))


class Exchange(NamedTuple):
    """One request and the way back; ``stopping`` is set when the server ends."""

    request: Request
    send: Callable[[bytes], object]
    stopping: threading.Event


class RudeModel:
    """Answers each POST with the next behaviour of its script, of which the last one stays.

    Other paths than the script's are given by ``routes``; a GET that has none there is answered with 404.
    """

    def __init__(self, *script: Behaviour, routes: Mapping[str, Behaviour] | None = None) -> None:
        self.script = list(script)
        self.routes = routes or {}
        self.requests: list[Request] = []
        self.stopping = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.model = self

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        return f"{self.origin}/v1/chat/completions"

    @property
    def asked(self) -> list[Request]:
        """What reached the script."""
        return [request for request in self.requests if request.path.endswith("/v1/chat/completions") and request.body]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()

    def behaviour(self, request: Request) -> Behaviour:
        self.requests.append(request)
        if request.path in self.routes:
            return self.routes[request.path]
        if request.method == "GET" or request.path.startswith("/openai/"):
            return reply(404, b'{"error": "not found"}')
        return self.script.pop(0) if len(self.script) > 1 else self.script[0]


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    model: RudeModel

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is what is tested."""


class _Handler(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True

    def handle(self) -> None:
        model = cast(_Server, self.server).model
        while (request := self._read()) is not None:
            behaviour = model.behaviour(request)
            if isinstance(behaviour, bytes):
                self.wfile.write(behaviour)
                if b"Content-Length" not in behaviour:
                    return
            else:
                behaviour(Exchange(request, self.wfile.write, model.stopping))
                return

    def _read(self) -> Request | None:
        first = self.rfile.readline().decode("latin-1").split()
        if len(first) != 3:
            return None
        headers: dict[str, str] = {}
        while line := self.rfile.readline().decode("latin-1").strip():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        body = self.rfile.read(int(headers.get("content-length", 0)))
        return Request(first[0], first[1], headers, body)


def reply(status: int, body: bytes, type: str = "application/json", **headers: str) -> bytes:
    """A whole reply with a length."""
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Type: {type}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def completion(message: dict[str, Any], finish: str | None = "stop", **fields: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}], "model": "said-model", **fields}


USAGE = {"prompt_tokens": 1000, "completion_tokens": 200, "total_tokens": 1200}


def answer(text: str, **fields: Any) -> bytes:  # noqa: ANN401
    """A plain answer that is not streamed."""
    return reply(200, json.dumps(completion({"role": "assistant", "content": text}, usage=USAGE, **fields)).encode())


def event(data: object) -> bytes:
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


def delta(**fields: object) -> dict[str, Any]:
    return {"model": "said-model", "choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


FINISHED: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def chunks(pieces: Iterable[str]) -> bytes:
    """The events of a whole streamed answer."""
    told = b"".join(event(delta(content=piece)) for piece in pieces)
    return told + event(FINISHED) + event({"choices": [], "usage": USAGE}) + event(b"[DONE]")


def stream(body: bytes, type: str = "text/event-stream") -> bytes:
    """A reply that ends with its connection."""
    return f"HTTP/1.1 200 OK\r\nContent-Type: {type}\r\nConnection: close\r\n\r\n".encode() + body


def hang(exchange: Exchange) -> None:
    """Never say anything."""
    exchange.stopping.wait(30)


def drip(exchange: Exchange) -> None:
    """Begin an answer and go on with it a byte at a time, for ever."""
    exchange.send(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9000000\r\n\r\n{"')
    while not exchange.stopping.wait(0.02):
        exchange.send(b"x")


def over_but_open(exchange: Exchange) -> None:
    """A whole stream on a connection that is never closed."""
    exchange.send(stream(chunks(["up"])))
    exchange.stopping.wait(30)
