"""A model server in its own process whose answers take a fixed time, and which counts answers and its own CPU time.

``python -m tests.benchmarks.delayed_model SECONDS PIECES`` prints its URL and serves until it is terminated.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple
from urllib.parse import urlsplit
from urllib.request import urlopen

from tests.support.rude_model import completion_response, streamed_answer

ANSWER: Final = "Thought: the goal is up there, and nothing is in the way, so I go on.\nAction: move up"
HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
COUNT_PATH: Final = "/count"


class Count(NamedTuple):
    """Number of answers so far, the time of the reading, and the CPU seconds of the server."""

    answers: int
    at: float
    cpu_s: float


class DelayedModel(NamedTuple):
    """A running server; ``url`` is that of its chat completions."""

    url: str
    delay_s: float

    def read_count(self) -> Count:
        parts = urlsplit(self.url)
        with urlopen(f"http://{parts.netloc}{COUNT_PATH}", timeout=30) as response:
            return Count(**json.load(response))


@contextmanager
def run_delayed_model(delay_s: float, *, pieces: int = 1) -> Iterator[DelayedModel]:
    """Run a server in its own process.

    Args:
        delay_s: seconds from a request to the end of its answer. The first one of each connection takes up to as long
            again, so that episodes that start together do not stay in step.
        pieces: number of chunks of a streamed answer, evenly distributed over ``delay_s``.
    """
    options = [str(delay_s), str(pieces)]
    command = [sys.executable, "-m", "tests.benchmarks.delayed_model", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield DelayedModel(process.stdout.readline().strip(), delay_s)
        finally:
            process.kill()


class _Server:
    def __init__(self, delay_s: float, pieces: int) -> None:
        self.delay_s = delay_s
        self.stagger = random.Random(1)
        self.plain = completion_response(ANSWER)
        self.events = _events(pieces)
        self.n_answers = 0

    def count_response(self) -> bytes:
        count = Count(self.n_answers, time.monotonic(), time.process_time())
        body = json.dumps(count._asdict()).encode()
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


class _Connection(asyncio.Protocol):
    def __init__(self, server: _Server) -> None:
        self._server = server
        self._received = b""
        self._extra_s = server.stagger.uniform(0.0, server.delay_s)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, separator, body = self._received.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
        if not separator or len(body) < length:
            return
        self._received = b""
        if head.startswith(b"GET"):
            self._transport.write(self._server.count_response())
            return
        self._answer(is_streamed=b'"stream":true' in body.replace(b" ", b""))

    def _answer(self, *, is_streamed: bool) -> None:
        loop, starts_in_s, self._extra_s = asyncio.get_running_loop(), self._extra_s, 0.0
        if not is_streamed:
            loop.call_later(starts_in_s + self._server.delay_s, self._finish, self._server.plain)
            return
        *events, last = self._server.events
        for number, event in enumerate(events):
            loop.call_later(starts_in_s + self._server.delay_s * number / len(events), self._write, event)
        loop.call_later(starts_in_s + self._server.delay_s, self._finish, last)

    def _finish(self, data: bytes) -> None:
        self._server.n_answers += 1
        self._write(data)

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)


def _events(pieces: int) -> list[bytes]:
    """Return a streamed answer of this many text events as writes; the last one has all that ends it."""
    size = -(-len(ANSWER) // pieces)
    texts = [ANSWER[start : start + size] for start in range(0, len(ANSWER), size)]
    chunks = [_chunk(event + b"\n\n") for event in streamed_answer(texts).split(b"\n\n") if event]
    return [HEAD + chunks[0], *chunks[1 : len(texts)], b"".join(chunks[len(texts) :]) + b"0\r\n\r\n"]


def _chunk(event: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(event), event)


async def _serve(server: _Server) -> None:
    listener = await asyncio.get_running_loop().create_server(lambda: _Connection(server), "127.0.0.1", 0, backlog=512)
    port = listener.sockets[0].getsockname()[1]
    sys.stdout.write(f"http://127.0.0.1:{port}/v1/chat/completions\n")
    sys.stdout.flush()
    await listener.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(_Server(float(sys.argv[1]), int(sys.argv[2]))))
