"""A model server with scripted misbehavior, byte by byte."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeAlias, cast

Behavior: TypeAlias = "bytes | Callable[[PendingRequest], object]"
"""A complete HTTP response, or a function that writes one."""


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        return cast(dict[str, Any], json.loads(self.body))


class PendingRequest(NamedTuple):
    """A request that awaits its response; ``stopping`` is set when the server ends."""

    request: Request
    send: Callable[[bytes], object]
    stopping: threading.Event


class RudeModel:
    """Answers each POST with the next behavior of its script; the last one repeats.

    ``routes`` are the behaviors of other paths; any other GET is answered with 404.
    """

    def __init__(self, *script: Behavior, routes: Mapping[str, Behavior] | None = None) -> None:
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
    def chat_requests(self) -> list[Request]:
        return [request for request in self.requests if request.path.endswith("/v1/chat/completions") and request.body]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopping.set()
        self.kill()

    def kill(self) -> None:
        """Accept no more connections; a behavior that calls it and sends nothing breaks its own."""
        self._server.shutdown()
        self._server.server_close()

    def next_behavior(self, request: Request) -> Behavior:
        self.requests.append(request)
        if request.path in self.routes:
            return self.routes[request.path]
        if request.method == "GET" or request.path.startswith("/openai/"):
            return http_response(404, b'{"error": "not found"}')
        return self.script.pop(0) if len(self.script) > 1 else self.script[0]


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    model: RudeModel

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that disconnect."""


class _Handler(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True

    def handle(self) -> None:
        model = cast(_Server, self.server).model
        while (request := self._read()) is not None:
            behavior = model.next_behavior(request)
            if isinstance(behavior, bytes):
                self.wfile.write(behavior)
                if b"Content-Length" not in behavior:
                    return
            else:
                behavior(PendingRequest(request, self._send, model.stopping))
                return

    def _send(self, response: bytes) -> None:
        """Write a part; the head announces the end of the connection, or a client might reuse it in that moment."""
        is_announced = b"Connection: close" in response or not response.startswith(b"HTTP/1.1 ")
        self.wfile.write(response if is_announced else response.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))

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


def http_response(status: int, body: bytes, type: str = "application/json", **headers: str) -> bytes:
    """Return a complete response with its length."""
    lines = [f"HTTP/1.1 {status} Reason", f"Content-Type: {type}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chat_completion(message: dict[str, Any], finish: str | None = "stop", **fields: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}], "model": "served-model", **fields}


USAGE = {"prompt_tokens": 1000, "completion_tokens": 200, "total_tokens": 1200}


def completion_response(text: str, **fields: Any) -> bytes:  # noqa: ANN401
    """Return a response that is not streamed."""
    return http_response(
        200, json.dumps(chat_completion({"role": "assistant", "content": text}, usage=USAGE, **fields)).encode()
    )


def sse_event(data: object) -> bytes:
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


def delta_chunk(**fields: object) -> dict[str, Any]:
    return {"model": "served-model", "choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


FINISH_CHUNK: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def streamed_answer(pieces: Iterable[str]) -> bytes:
    events = b"".join(sse_event(delta_chunk(content=piece)) for piece in pieces)
    return events + sse_event(FINISH_CHUNK) + sse_event({"choices": [], "usage": USAGE}) + sse_event(b"[DONE]")


def stream_response(body: bytes, type: str = "text/event-stream") -> bytes:
    """Return a response that ends with its connection."""
    return f"HTTP/1.1 200 OK\r\nContent-Type: {type}\r\nConnection: close\r\n\r\n".encode() + body


def hang(pending: PendingRequest) -> None:
    """Send no response."""
    pending.stopping.wait(30)


def drip(pending: PendingRequest) -> None:
    """Send an endless response one byte at a time."""
    pending.send(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9000000\r\n\r\n{"')
    while not pending.stopping.wait(0.02):
        pending.send(b"x")


def finish_without_closing(pending: PendingRequest) -> None:
    """Send a complete stream without closing the connection."""
    pending.send(stream_response(streamed_answer(["up"])))
    pending.stopping.wait(30)
