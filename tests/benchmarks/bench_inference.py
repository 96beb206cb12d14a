"""CPU and time of an inference by manager and by agent, compared with a bare httpx request to the same endpoint."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import httpx

from runner.agents.model import ReactAgent
from runner.config import AgentSettings
from runner.config.profile import EndpointConfig
from runner.inference.inference_session import InferenceSession
from runner.inference.manager import InferenceManager
from runner.tracing import SpanList, Tracer
from runner.types import Action, Chat, EpisodeInfo, StreamDelta
from tests.benchmarks.delayed_model import ANSWER, run_delayed_model
from tests.benchmarks.measure import PAIRS, Ratio, Row, ratio
from tests.support.inference import TOOLS, episode_header

N = 40
"""Calls per measurement."""
MAX_RATIO = 0.8

PIECES = 14
"""Number of events of a streamed answer."""
CHAT: Chat = [{"role": "user", "content": f"Round {number}: you see nothing. What do you do?"} for number in range(20)]
BODY = {"model": "m", "messages": CHAT, "tools": TOOLS}


def run() -> list[Row]:
    """Measure with and without streaming.

    The bounds apply to the client alone: the server is a separate process that answers immediately.
    """
    with run_delayed_model(0.0, pieces=PIECES) as model, asyncio.Runner() as runner:
        return [row for stream in (False, True) for row in _rows(runner, model.url, stream)]


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

    bare = play(partial(post_bare, url, stream))
    sides = {"manager": play(partial(infer_with_manager, session)), "agent": play(partial(act_with_agent, settings))}
    rows: list[Row] = []
    for side, call in sides.items():
        name = f"per answer{', streamed' if stream else ''}, {side} with tracing / bare httpx"
        cpu = ratio(call, bare)
        wall = ratio(call, bare, clock=time.perf_counter)
        rows += [
            Row.of_ratio(f"CPU {name} ({PAIRS * N} calls)", cpu, at_most=MAX_RATIO),
            Row(f"CPU {name}, per call", _per_call(cpu)),
            Row(f"time {name}", f"{wall}, {_per_call(wall)}"),
        ]
    return rows


def _per_call(measured: Ratio) -> str:
    return f"{measured.a_median / N * 1e3:.2f} ms / {measured.b_median / N * 1e3:.2f} ms"


async def infer_with_manager(session: InferenceSession) -> None:
    """Call the manager as an agent does."""
    for _ in range(N):
        tracer = Tracer(collectors=(SpanList(),))
        deltas: list[StreamDelta] = []
        inference = await session.infer(CHAT, tools=TOOLS, time_left_s=60, on_delta=deltas.append, tracer=tracer)
        assert inference.message["content"] == ANSWER


async def act_with_agent(settings: AgentSettings) -> None:
    """Call the agent; its conversation is at most as long as that of the others."""
    manager = InferenceManager(settings, {})
    for start in range(0, N, len(CHAT) // 2):
        agent = ReactAgent(inference_mngr=manager, settings=settings)
        agent.tracer = Tracer(collectors=(SpanList(),))
        deltas: list[str | StreamDelta] = []
        agent.enter(EpisodeInfo(episode_header(), lambda: 60.0, deltas.append, 15))
        for message in CHAT[start % len(CHAT) :][: len(CHAT) // 2]:
            _, action = await agent.act([message], TOOLS)
            assert action == Action(text="move up")


async def post_bare(url: str, stream: bool) -> None:
    """Send the same requests with httpx and read the answers."""
    async with httpx.AsyncClient(timeout=60, verify=False) as client:
        for _ in range(N):
            read = read_streamed if stream else read_plain
            assert await read(client, url) == ANSWER


async def read_plain(client: httpx.AsyncClient, url: str) -> str:
    """Return an answer without streaming."""
    response = await client.post(url, json=BODY)
    content: str = response.json()["choices"][0]["message"]["content"]
    return content


async def read_streamed(client: httpx.AsyncClient, url: str) -> str:
    """Return a streamed answer."""
    texts: list[str] = []
    options = {"stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", url, json=BODY | options) as response:
        async for line in response.aiter_lines():
            data = line.removeprefix("data: ")
            if data and data != "[DONE]":
                texts += [choice["delta"].get("content", "") for choice in json.loads(data)["choices"]]
    return "".join(texts)
