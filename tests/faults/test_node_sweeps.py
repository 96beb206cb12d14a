"""A node plays several models, and adaptive repeats, from one request, also after it was killed in between."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg
from ulid import ULID

from runner.store import EpisodeStore
from runner.types import UNFINISHED
from tests.support.episodes import stored_files
from tests.support.model_server import ModelServer
from tests.support.node_events import collect_into, wait_until
from tests.support.node_process import clean_environ, running_node

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]

ENDED = "completed"
MODELS = ["qwen35_9b", "qwen3:8b"]


def parts(listed: dict[str, Any], battery: str) -> list[tuple[int, str]]:
    return [
        (each["n_planned"], each["status"]) for each in reversed(listed["batches"]) if each["battery_id"] == battery
    ]


async def test_each_model_plays_the_same_tasks_one_model_after_the_other(tmp_path: Path) -> None:
    with ModelServer(models=MODELS) as ollama:
        env = clean_environ(TENSORZERO_URL="http://127.0.0.1:1", OLLAMA_HOST=ollama.url)
        async with running_node(tmp_path / "data", env=env) as (node, connection):
            battery = str(ULID())
            request: dict[str, Any] = {
                "batch_id": battery,
                "envs": ["Maze", "Wordle"],
                "models": MODELS,
                "attempts": 2,
            }
            started = await node.request(connection, "start", **request)
            assert [(each["model"], each["env"]) for each in started] == [
                (model, env) for model in MODELS for env in ("Maze", "Wordle")
            ]
            assert len({each["batch_id"] for each in started}) == 4
            assert {each["battery_id"] for each in started} == {battery}
            again = await node.request(connection, "start", **request)
            assert [each["batch_id"] for each in again] == [each["batch_id"] for each in started]
            for each in started:
                await node.wait_for_batch(connection, each["batch_id"], "completed", n_done=2)
            refused: dict[str, dict[str, Any]] = {
                "bad_request": {"models": [*MODELS, MODELS[0]]},
                "unknown_model": {"models": ["other", MODELS[0]]},
                "refused": {"batch_id": battery, "models": MODELS[:1]},
            }
            for code, changes in refused.items():
                changed = {**request, "batch_id": str(ULID()), **changes}
                assert (await node.request_reply(connection, "start", **changed))["error"]["code"] == code
    store = EpisodeStore(tmp_path / "data")
    episodes = [store.load(file.episode_id) for file in stored_files(store)]
    played = {(each.model, each.env, each.task_index, each.attempt, each.seed) for each in episodes}
    assert played == {
        (model, env, 0, attempt, attempt) for model in MODELS for env in ("Maze", "Wordle") for attempt in (0, 1)
    }


async def test_adaptive_repeats_go_on_where_a_killed_node_stopped(tmp_path: Path) -> None:
    battery, other = str(ULID()), str(ULID())
    request: dict[str, Any] = {
        "batch_id": battery,
        "envs": ["Maze"],
        "agent": "oracle",
        "repeat": 500,
        "until_width": 0.04,
    }
    request |= {"task_index": 3, "budget": {"tokens": 10**9}}
    async with running_node(tmp_path / "data") as (node, connection):
        (first,) = await node.request(connection, "start", **request)
        await node.request(connection, "start", batch_id=other, envs=["Maze"], agent="oracle", repeat=300)
        assert (first["battery_id"], first["n_planned"]) == (battery, 32)
        await node.wait_for_batch(connection, first["batch_id"], "completed")
        node.kill()
    node.start()
    try:
        async with await node.connect() as connection:
            ends: list[Msg] = []
            await connection.client.subscribe("agentgym.eval.battery.completed.v1", cb=collect_into(ends))
            listed = parts(await node.request(connection, "list"), battery)
            assert listed[0] == (32, "completed")
            assert len(listed) > 1
            await node.request(connection, "start", **request, resume=True)

            expected = [(32, ENDED), (32, ENDED), (64, ENDED)]  # the interval of 128 successes is narrow enough
            async with asyncio.timeout(60):
                while True:
                    if parts(await node.request(connection, "list"), battery) == expected:
                        break
                    await asyncio.sleep(0.02)
            error = (await node.request_reply(connection, "start", **{**request, "until_width": 0.5}))["error"]
            assert "differs in until_width" in error["message"]
            for invalid in ({"until_width": 0}, {"until_width": 2}, {"attempts": 2}, {"repeat": 1}):
                changed = {**request, "batch_id": str(ULID()), **invalid}
                assert (await node.request_reply(connection, "start", **changed))["error"]["code"] == "bad_request"
            await wait_until(lambda: bool(ends))
            again = await node.request(connection, "replay", batch_id=battery)
            assert [each["n_planned"] for each in again] == [32, 32, 64]
            (end,) = [json.loads(message.data) for message in ends]
            assert (end["battery_id"], end["n_episodes"], len(end["batches"])) == (battery, 128, 3)
    finally:
        node.kill()
    store = EpisodeStore(tmp_path / "data")
    episodes = [each for file in stored_files(store) if (each := store.load(file.episode_id)).battery_id == battery]
    # the episode that the kill stopped stays as a file, and its task is played again
    tasks = sorted(each.task_index for each in episodes if each.outcome not in UNFINISHED)
    assert tasks == list(range(3, 131))
