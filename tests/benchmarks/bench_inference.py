"""What manager and agent add to a call of a model: CPU and time, against a bare httpx post to the same endpoint."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx

from runner.agents.model import ReactAgent
from runner.config.profile import AgentSettings, EndpointConfig
from runner.inference import InferenceManager, InferenceSession
from runner.tracing import SpanList, Tracer
from runner.types import Action, Chat, EpisodeInfo, StreamDelta
from tests.benchmarks.measure import PAIRS, Ratio, Row, ratio
from tests.support.inference import TOOLS, episode_header
from tests.support.rude_model import completion_response, streamed_answer

N = 40
"""Calls that one measurement takes."""
MAX_RATIO = 1.3

ANSWER = "Thought: the goal is up there, and nothing is in the way.\nAction: go up"
CHAT: Chat = [{"role": "user", "content": f"Round {number}: you see nothing. What do you do?"} for number in range(20)]
BODY = {"model": "m", "messages": CHAT, "tools": TOOLS}


def run() -> list[Row]:
    """With and without streaming.

    The bound is on the client's CPU: with the server's time, which is next to nothing here, the ratio looks better.
    """
    with server() as url, asyncio.Runner() as runner:
        return [row for stream in (False, True) for row in _rows(runner, url, stream)]


def _rows(runner: asyncio.Runner, url: str, stream: bool) -> list[Row]:
    settings = AgentSettings(
        mode="local",
        local_fallback=None,
        endpoints=(EndpointConfig(url=url, kind="openai", model="m"),),
        stream=stream,
    )
    session = InferenceManager(settings, {}).session(episode_header())

    def play(calls: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        return lambda: runner.run(calls())

    bare = play(partial(posted, url, stream))
    sides = {"manager": play(partial(managed, session)), "agent": play(partial(acted, settings))}
    rows: list[Row] = []
    for who, ours in sides.items():
        name = f"per answer{', streamed' if stream else ''}, {who} with tracing / bare httpx"
        used = ratio(ours, bare)
        took = ratio(ours, bare, clock=time.perf_counter)
        rows += [
            Row.of_ratio(f"CPU {name} ({PAIRS * N} calls)", used, at_most=MAX_RATIO),
            Row(f"CPU {name}, per call", _per_call(used)),
            Row(f"time {name}", f"{took}, {_per_call(took)}"),
        ]
    return rows


def _per_call(measured: Ratio) -> str:
    return f"{measured.a_median / N * 1e3:.2f} ms / {measured.b_median / N * 1e3:.2f} ms"


async def managed(session: InferenceSession) -> None:
    """Calls as an agent makes them."""
    for _ in range(N):
        tracer = Tracer(collectors=(SpanList(),))
        told: list[StreamDelta] = []
        inference = await session.infer(CHAT, tools=TOOLS, time_left_s=60, on_delta=told.append, tracer=tracer)
        assert inference.message["content"] == ANSWER


async def acted(settings: AgentSettings) -> None:
    """Calls of the agent, which holds as long a conversation as the others send at the most."""
    manager = InferenceManager(settings, {})
    for start in range(0, N, len(CHAT) // 2):
        agent = ReactAgent(inference_mngr=manager, settings=settings)
        agent.tracer = Tracer(collectors=(SpanList(),))
        told: list[str | StreamDelta] = []
        agent.enter(EpisodeInfo(episode_header(), lambda: 60.0, told.append))
        for message in CHAT[start % len(CHAT) :][: len(CHAT) // 2]:
            _, action = await agent.act([message], TOOLS)
            assert action == Action(text="go up")


async def posted(url: str, stream: bool) -> None:
    """The same calls with nothing around them but what reads the answer."""
    async with httpx.AsyncClient(timeout=60, verify=False) as client:
        for _ in range(N):
            read = streamed if stream else whole
            assert await read(client, url) == ANSWER


async def whole(client: httpx.AsyncClient, url: str) -> str:
    """A plain answer."""
    reply = await client.post(url, json=BODY)
    content: str = reply.json()["choices"][0]["message"]["content"]
    return content


async def streamed(client: httpx.AsyncClient, url: str) -> str:
    """A streamed answer."""
    pieces: list[str] = []
    options = {"stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", url, json=BODY | options) as reply:
        async for line in reply.aiter_lines():
            data = line.removeprefix("data: ")
            if data and data != "[DONE]":
                pieces += [choice["delta"].get("content", "") for choice in json.loads(data)["choices"]]
    return "".join(pieces)


@contextmanager
def server() -> Iterator[str]:
    """A model in a process of its own, so that its work is not measured; gives its URL."""
    command = [sys.executable, "-m", "tests.benchmarks.bench_inference"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


class _Model(asyncio.Protocol):
    """Answers whatever is posted, at once."""

    def __init__(self) -> None:
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, separator, body = self._received.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
        if separator and len(body) >= length:
            self._received = b""
            assert isinstance(self._transport, asyncio.Transport)
            self._transport.write(STREAM if b'"stream":true' in body.replace(b" ", b"") else completion_response(ANSWER))


def _chunked(body: bytes) -> bytes:
    """As a stream on a connection that is kept: a chunk for each event."""
    events = [event + b"\n\n" for event in body.split(b"\n\n") if event]
    return b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events) + b"0\r\n\r\n"


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAM = HEAD + _chunked(streamed_answer(word if word == "Thought:" else f" {word}" for word in ANSWER.split(" ")))


async def _serve() -> None:
    listening = await asyncio.get_running_loop().create_server(_Model, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    sys.stdout.write(f"http://127.0.0.1:{port}/v1/chat/completions\n")
    sys.stdout.flush()
    await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve())
