"""The HTTP client replays recorded exchanges of AgentGym's servers and hand-written ones of every dialect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from runner.envs.http.dialects import dialect_for
from runner.envs.http.environment import HttpEnvironment, RewardReader
from runner.envs.http.response import Payload, ServerRequest, ServerResponse, decode_response
from runner.envs.http.server import ServerAddress
from runner.errors import EnvironmentFault
from runner.types import Action, TimeStep, Trajectory
from tests.support.episodes import make_step
from tests.support.recordings import Exchange, load_recording
from tests.support.rude_env_server import ReceivedRequest, RudeServer, http_response, json_response, run_rude_server

CASES = Path(__file__).parent / "wire_cases"
REQUEST = ServerRequest("Maze", "http://127.0.0.1:1/step", b"{}")


def cases(name: str) -> list[Any]:
    rows = [json.loads(line) for line in (CASES / name).read_text("utf-8").splitlines()]
    return [pytest.param(row, id=row["name"]) for row in rows]


@pytest.fixture(scope="module")
def rude_server() -> Iterator[RudeServer]:
    with run_rude_server() as server:
        yield server


NO_REQUEST = ("no request", None, json_response({"detail": "unexpected request"}))


class ScriptedReplies:
    """Handler that answers requests in order with instance_id replies and records unexpected requests.

    It has no ``/observation``.
    """

    def __init__(self, script: list[tuple[str, Any, bytes]]) -> None:
        self.remaining = list(script)
        self.unexpected: list[str] = []

    async def __call__(self, request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if "/observation?" in request.path:
            writer.write(http_response("no", 404))
            return
        path, sent, reply = self.remaining.pop(0) if self.remaining else NO_REQUEST
        if (request.path, request.payload) != (path, sent):
            self.unexpected.append(f"{request.path} {request.payload} instead of {path} {sent}")
        writer.write(reply)


@pytest.mark.parametrize("case", cases("episodes.jsonl"))
async def test_written_episodes_are_replayed(rude_server: RudeServer, case: dict[str, Any]) -> None:
    script = [
        (exchange["path"], exchange["sent"], http_response(exchange["body"], exchange["status"], exchange["type"]))
        for exchange in case["exchanges"]
    ]
    rude_server.reset(replies := ScriptedReplies(script))
    address = ServerAddress(rude_server.url, 10, dialect=case["dialect"])
    env = HttpEnvironment(env=case["env"], address=address, mode=case["mode"])
    steps: list[TimeStep] = []
    chat = await env.reset(task_index=case["task"])
    assert chat == [{"role": "user", "content": case["opening"]}]
    for index, step in enumerate(case["steps"]):
        chat, reward, done = await env.step(action := Action(text=step["action"]))
        actual = (chat[0]["content"], reward, done, env.truncated)
        assert actual == (step["observation"], step["reward"], step["done"], step["truncated"])
        steps.append(make_step(index, action=action, observation=chat, reward=reward, done=done))
    assert env.success(Trajectory(episode_id="x", timesteps=steps)) == case["success"]
    await env.cleanup()
    assert replies.unexpected == []
    assert replies.remaining == []


@pytest.mark.parametrize("case", cases("errors.jsonl"))
def test_error_texts_of_agentgym_are_reported(case: dict[str, Any]) -> None:
    reply = ServerResponse(case["status"], case["type"], case["body"].encode())
    with pytest.raises(EnvironmentFault) as caught:
        decode_response(REQUEST, reply)
    message = str(caught.value)
    assert message.startswith("Maze: POST http://127.0.0.1:1/step {} ")
    assert case["message"] in message
    for hidden in case["hides"]:
        assert hidden not in message


@pytest.mark.parametrize(
    ("env", "name", "n_faults"),
    [
        ("babyai", "babyai.jsonl", 7),
        ("babyai", "babyai_late.jsonl", 0),
        ("maze", "maze.jsonl", 12),
        ("wordle", "wordle.jsonl", 3),
        ("wordle", "wordle_rng.jsonl", 2),
        ("sqlgym", "sqlgym_fakebird.jsonl", 8),
        ("textcraft", "textcraft.jsonl", 11),
    ],
)
def test_every_recorded_reply_is_decoded(env: str, name: str, n_faults: int) -> None:
    dialect = dialect_for(env)
    assert dialect is not None
    faults = 0
    for exchange in load_recording(name):
        reply = ServerResponse(exchange.status, exchange.content_type, exchange.body.encode())
        if exchange.kind.endswith("error"):
            with pytest.raises(EnvironmentFault):
                decode_response(REQUEST, reply)
            faults += 1
            continue
        payload = Payload(REQUEST, decode_response(REQUEST, reply))
        received = exchange.received
        match exchange.kind:
            case "create":
                assert payload.id(dialect.created_at) == (received if isinstance(received, int) else received["id"])
            case "reset":
                assert len(payload.text(dialect.opening[-1])) > 10
            case "step":
                observation = payload.text(dialect.observation_at)
                reward, done = RewardReader(dialect).read(payload, observation)
                completed = env == "babyai" and reward != 0 and "The task is completed." in observation
                assert (reward, done) == (received["reward"], received["done"] or completed)
    assert faults == n_faults


@pytest.mark.parametrize(
    ("env", "name", "n_shown"),
    [("babyai", "babyai.jsonl", 2), ("textcraft", "textcraft.jsonl", 2), ("sqlgym", "sqlgym_fakebird.jsonl", 1)],
)
def test_what_an_instance_shows_is_known_as_recorded(env: str, name: str, n_shown: int) -> None:
    dialect = dialect_for(env)
    assert dialect is not None and dialect.shows is not None
    texts: list[str] = []
    for exchange in load_recording(name):
        payload = Payload(REQUEST, exchange.received)
        if exchange.kind == "reset":
            texts = [payload.text(dialect.opening[-1])]
        elif exchange.kind == "step":
            texts.append(payload.text(dialect.observation_at))
        elif exchange.kind == "observation" and texts:
            assert payload.text(dialect.shown_at) == dialect.shows(texts[0], texts[-1])
            n_shown -= 1
    assert n_shown == 0


def recorded_episodes(name: str, n_tasks: int, task_field: str) -> Iterator[list[Exchange]]:
    """Return the recorded episodes, each from a successful reset to its end or first error."""
    episode: list[Exchange] = []
    for exchange in load_recording(name):
        if exchange.kind == "reset":
            if len(episode) > 1:
                yield episode
            task = exchange.sent.get(task_field)
            episode = [exchange] if isinstance(task, int) and 0 <= task < n_tasks else []
        elif exchange.kind == "step" and episode:
            episode.append(exchange)
        elif exchange.kind in ("server error", "http error") and len(episode) > 1:
            yield episode
            episode = []
    if len(episode) > 1:
        yield episode


@pytest.mark.parametrize(
    ("env", "name", "task_field", "expected"),
    [
        ("babyai", "babyai.jsonl", "data_idx", (1, 5)),
        ("maze", "maze.jsonl", "game", (3, 46)),
        ("wordle", "wordle.jsonl", "seed", (3, 11)),
        ("wordle", "wordle_rng.jsonl", "seed", (8, 21)),
        ("sqlgym", "sqlgym_fakebird.jsonl", "item_id", (1, 1)),
        ("textcraft", "textcraft.jsonl", "data_idx", (12, 32)),
    ],
)
async def test_recorded_episodes_are_replayed(
    rude_server: RudeServer, env: str, name: str, task_field: str, expected: tuple[int, int]
) -> None:
    """The client plays against a server that replays the recorded exchanges."""
    n_replayed = [0, 0]
    client = HttpEnvironment(env=env, address=ServerAddress(rude_server.url, 10), mode="compat")
    for episode in islice(recorded_episodes(name, client.n_tasks, task_field), 12):
        first = episode[0].sent
        instance_id = first["id"] if "id" in first else first["env_idx"]
        created = json.dumps(instance_id if "env_idx" in first else {"id": instance_id})
        prefix = episode[0].path.removesuffix("/reset")
        script: list[tuple[str, Any, bytes]] = [(f"{prefix}/create", {}, http_response(created))]
        script += [(exchange.path, exchange.sent, http_response(exchange.body)) for exchange in episode]
        rude_server.reset(replies := ScriptedReplies(script))
        client = HttpEnvironment(env=env, address=ServerAddress(rude_server.url, 10), mode="compat")
        await client.reset(task_index=first[task_field])
        for exchange in episode[1:]:
            chat, reward, done = await client.step(Action(text=exchange.sent["action"]))
            received = exchange.received
            assert chat[0]["content"] == received.get("observation", received.get("state"))
            assert reward == received["reward"]
            n_replayed[1] += 1
            if done:
                break
        assert replies.unexpected == []
        n_replayed[0] += 1
        await client.cleanup()
    assert tuple(n_replayed) == expected
