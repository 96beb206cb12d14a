"""Requests to a node, in an order that makes its replies and live items the same each time.

The model sends each piece of its answer only on a signal, so that every request finds the batches in a known state and
every piece is an item of its own.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
from nats.aio.msg import Msg
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from runner.bus.connection import NatsConnection
from runner.bus.rpc import send_request
from runner.episode.loop import EMIT_INTERVAL_S
from runner.events.subjects import BATCH_COMPLETED, BATTERY_COMPLETED, FIELD_STATUS, control_subject
from tests.support.node_process import NodeProcess

PLAYED, STEPPED, WAITING, BATTERY, CANCELLED, REPLAYED, NOTE = (f"01K000000000000000000G{n:04}" for n in range(7))
UNKNOWN = "01K00000000000000000009999"
PROFILE = """
id: golden
episode: {{max_rounds: 15, concurrent: 1}}
agent:
  model: m
  endpoints: [{{name: golden, url: "{url}/v1", kind: openai}}]
  price: {{m: {{prompt_per_mtok: 2, completion_per_mtok: 10}}}}
  currency: EUR
nats: {{live_tokens: always}}
environments:
  lightweight:
    - {{name: Maze}}
    - {{name: Wordle}}
    - {{name: SQLGym, port: 1, server_cmd: "sleep 600"}}
"""
_PIECES = {
    "reasoning": {"reasoning_content": "The goal is below."},
    "text": {"content": "Down — ✓"},
    "call": {
        "tool_calls": [{"index": 0, "id": "call_7", "function": {"name": "move", "arguments": '{"direction": "down"}'}}]
    },
}
"""The parts of each answer of the model, each of which is an item of its own."""
_USAGE = {"prompt_tokens": 120, "completion_tokens": 30, "total_tokens": 150}


class ToldModel:
    """A model that sends each piece of its answer on a signal."""

    def __init__(self) -> None:
        self._asked, self._told = threading.Semaphore(0), threading.Semaphore(0)
        complete = Route("/v1/chat/completions", self._complete, methods=["POST"])
        self.app = Starlette(routes=[complete, Route("/v1/models", self._list)])

    async def wait_until_asked(self) -> None:
        assert await asyncio.to_thread(self._asked.acquire, timeout=30)

    def tell(self) -> None:
        """Let it send the next piece."""
        self._told.release()

    async def _list(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "m", "object": "model"}]})

    async def _complete(self, request: Request) -> Response:
        return StreamingResponse(self._answer(), media_type="text/event-stream")

    async def _answer(self) -> AsyncIterator[str]:
        self._asked.release()
        for delta in _PIECES.values():
            assert await asyncio.to_thread(self._told.acquire, timeout=60)
            yield _event(choices=[{"index": 0, "delta": delta, "finish_reason": None}])
        yield _event(choices=[{"index": 0, "delta": {}, "finish_reason": "tool_calls"}], usage=_USAGE)
        yield "data: [DONE]\n\n"


def _event(**fields: object) -> str:
    return f"data: {json.dumps({'id': 'c', 'object': 'chat.completion.chunk', 'model': 'm', **fields})}\n\n"


class _Live(msgspec.Struct):
    items: list[msgspec.Raw]


class _Health(msgspec.Struct):
    result: _Live


class Listener:
    """Keeps the messages of a bus in the order in which they arrive."""

    def __init__(self) -> None:
        self.messages: list[Msg] = []
        self._changed = asyncio.Condition()

    async def keep(self, message: Msg) -> None:
        async with self._changed:
            self.messages.append(message)
            self._changed.notify_all()

    def found(self, *parts: str) -> list[Any]:
        """Return the payloads and items that contain all of these texts, or whose subject does."""
        texts = [(m.subject.encode() + b" ", each) for m in self.messages for each in contents(m)]
        return [json.loads(each) for subject, each in texts if all(part.encode() in subject + each for part in parts)]

    @property
    def statuses(self) -> list[str]:
        """The statuses of the node since it first played."""
        statuses = [event["status"] for event in self.found(FIELD_STATUS)]
        return statuses[statuses.index("running") :] if "running" in statuses else []

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until messages have made a condition true."""
        async with asyncio.timeout(30), self._changed:
            await self._changed.wait_for(condition)

    async def wait_for(self, *parts: str, n: int = 1) -> Any:  # noqa: ANN401
        """Return the first payload or item with all of these texts, as soon as there are ``n``."""
        await self.until(lambda: len(self.found(*parts)) >= n)
        return self.found(*parts)[0]


def contents(message: Msg) -> list[bytes]:
    """Return the items of a live message as they were sent, or the payload of another one."""
    if message.subject.startswith("agentgym.live."):
        return [bytes(item) for item in msgspec.json.decode(message.data, type=_Live).items]
    return [message.data]


def write_profile(path: Path, url: str) -> Path:
    """Write the profile of the node, whose only model answers at a URL."""
    path.write_text(PROFILE.format(url=url))
    return path


class Scene:
    """Sends the requests to a node; ``exchanged`` has each of them with its reply, as bytes."""

    def __init__(self, node: NodeProcess, connection: NatsConnection, model: ToldModel, listener: Listener) -> None:
        self._node, self._connection, self._model, self._listener = node, connection, model, listener
        self.exchanged: list[bytes] = []
        self._n_played = 0

    async def ask(self, op: str, **args: Any) -> Any:  # noqa: ANN401
        """Send a request, keep it and its reply, and return the reply."""
        payload = msgspec.json.encode({"id": f"{op}-{len(self.exchanged)}", "op": op, "args": args})
        reply = await send_request(self._connection, control_subject(self._node.name), payload, timeout_s=20)
        assert reply is not None
        self.exchanged += [payload, reply]
        return json.loads(reply)

    async def play(self) -> None:
        """Play everything but the end of the node."""
        await self._health()
        await self._batches_and_refusals()
        await self._waiting_batches()
        await self._steps()
        await self._ends()
        await self._files()
        for seen in ('"kind":"heartbeat"', '"kind":"model.health"', '"status":"up"'):
            await self._listener.wait_for(seen)

    async def _health(self) -> None:
        """Keep the reply of the idle node with the health of its environments, without the items that come in time."""
        n_envs, is_complete = PROFILE.count("- {{name: "), False
        async with asyncio.timeout(30):
            while not is_complete:
                self.exchanged.clear()
                result = (await self.ask("health"))["result"]
                n_known = sum(item["kind"] == "env.health" for item in result["items"])
                is_complete = result["status"] == "idle" and n_known == n_envs
        reply = self.exchanged[-1]
        items = [bytes(item) for item in msgspec.json.decode(reply, type=_Health).result.items]
        kept = [item for item in items if b'"kind":"env.health"' in item]
        self.exchanged[-1] = reply.replace(b",".join(items), b",".join(kept), 1)

    async def _batches_and_refusals(self) -> None:
        await self.ask("start", batch_id=PLAYED, envs=["Maze"], agent="oracle", tasks={"Maze": [24, 3]})
        await self._completed(PLAYED)
        await self.ask("start", batch_id=PLAYED, envs=["Wordle"], agent="oracle")
        await self.ask("start", batch_id="x", envs=[])
        await self.ask("start", batch_id=UNKNOWN, envs=["Maze"], agent="unheard-of")
        await self.ask("start", batch_id=UNKNOWN, envs=["Maze"], model="unheard-of")
        await self.ask("pause", batch_id=PLAYED)
        await self.ask("cancel", batch_id=UNKNOWN)
        await self.ask("step", episode_id=UNKNOWN)
        await self.ask("resume", everything=True)
        await self.ask("move", batch_id=PLAYED, to=0)
        await self.ask("nonsense")

    async def _waiting_batches(self) -> None:
        """Change the queue while a batch waits for its model."""
        await self.ask("start", batch_id=STEPPED, envs=["Maze"], agent="tools", tasks={"Maze": [24]}, max_rounds=3)
        await self._model.wait_until_asked()
        queued = '"kind":"queue"'
        await self._changes(queued, "start", batch_id=WAITING, envs=["Wordle"], agent="oracle")
        await self._changes(queued, "start", batch_id=BATTERY, envs=["Maze", "Wordle"], agent="oracle")
        await self._changes(queued, "move", batch_id=BATTERY, to=0)
        await self._changes(queued, "pause", batch_id=WAITING)
        await self.ask("list")
        await self._changes(queued, "resume", batch_id=WAITING)
        await self._changes(queued, "cancel", batch_id=WAITING)

    async def _steps(self) -> None:
        """Pause the running batch, play one step of it, and let it go on."""
        paused = ('"kind":"episode.paused"',)
        await self._changes('"paused":true', "pause", batch_id=STEPPED)
        await self._answer(1)
        episode_id = (await self._listener.wait_for(*paused))["episode_id"]
        await self.ask("list")
        await self.ask("step", episode_id=episode_id)
        await self._model.wait_until_asked()
        await self._answer(2)
        await self._listener.wait_for(*paused, n=2)
        await self.ask("resume", episode_id=episode_id)
        await self._model.wait_until_asked()
        await self._answer(3)
        await self._listener.wait_for(BATTERY_COMPLETED, BATTERY)
        await self._idle()

    async def _ends(self) -> None:
        """Cancel a batch between two steps, and play again what has ended."""
        await self.ask("start", batch_id=CANCELLED, envs=["Maze"], agent="tools", repeat=2)
        await self._model.wait_until_asked()
        await self.ask("pause", batch_id=CANCELLED)
        await self._answer(4)
        await self._listener.wait_for('"kind":"episode.paused"', n=3)
        await self.ask("cancel", batch_id=CANCELLED)
        await self._completed(CANCELLED)
        await self.ask("replay", batch_id=PLAYED, only="errors")
        await self.ask("replay", batch_id=WAITING, new_batch_id=REPLAYED)
        await self._completed(REPLAYED)
        await self.ask("list")

    async def _files(self) -> None:
        """Read and annotate an episode, and start and stop a server."""
        episode_id = self._listener.found('"kind":"episode.started"', PLAYED)[0]["episode_id"]
        await self.ask("episode", episode_id=episode_id)
        await self.ask("episode", episode_id=UNKNOWN, offset=7)
        note = {"note": "a note — ✓", "note_id": NOTE, "author": "me"}
        await self.ask("annotate", episode_id=episode_id, add=["seen"], **note)
        await self.ask("annotate", episode_id=episode_id, step=1, add=["turn"])
        await self.ask("annotate", episode_id=episode_id, add=["two words"])
        for op, env in (("start", "Maze"), ("start", "SQLGym"), ("start", "sqlgym"), ("stop", "SQLGym"), ("stop", "x")):
            await self.ask(f"server_{op}", env=env)

    async def _completed(self, batch_id: str) -> None:
        """Wait until a batch has ended and the node has nothing else to do."""
        await self._listener.wait_for(BATCH_COMPLETED, batch_id)
        await self._idle()

    async def _idle(self) -> None:
        """Wait until the node has said once more that it is idle, after it played."""
        self._n_played += 1
        await self._listener.until(lambda: self._listener.statuses == ["running", "idle"] * self._n_played)

    async def _answer(self, number: int) -> None:
        """Let the model send an answer, with a pause before each piece in which the node does not merge it."""
        for part in _PIECES:
            await asyncio.sleep(1.5 * EMIT_INTERVAL_S)
            self._model.tell()
            if part != "call":
                kind = '"part":"reasoning"' if part == "reasoning" else '"text":"Down'
                await self._listener.wait_for('"kind":"token"', kind, n=number)

    async def _changes(self, kind: str, op: str, **args: Any) -> None:  # noqa: ANN401
        """Send a request, and wait for the next item of a kind."""
        n = len(self._listener.found(kind))
        await self.ask(op, **args)
        await self._listener.wait_for(kind, n=n + 1)
