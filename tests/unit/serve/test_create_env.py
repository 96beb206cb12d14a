"""The protocol with ``/createEnv``, on the application without a network."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from runner import plugins
from runner.envs.base import EmbeddedEnvironment
from runner.envs.maze import Maze
from runner.envs.sqlgym import SQLGym
from runner.envs.wordle import Wordle
from runner.serve.env_api import DIALECTS, PoolOptions, environment_app
from runner.types import Action, Mode, SupportsOracle


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


class Server:
    """Sends requests to the application of one environment."""

    def __init__(self, name: str, executor: ThreadPoolExecutor, mode: Mode = "strict", max_open: int = 9) -> None:
        app = environment_app(name, mode, PoolOptions(executor, max_open, 60)).application()
        self._http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")

    async def post(self, path: str, **body: object) -> Any:  # noqa: ANN401
        response = await self._http.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.json()

    async def get(self, path: str, **query: str) -> Any:  # noqa: ANN401
        response = await self._http.get(path, params=query)
        assert response.status_code == 200, response.text
        return response.json()

    async def send(self, method: str, path: str, body: object = None) -> httpx.Response:
        return await self._http.request(method, path, json=body)


def opening(task_index: int) -> dict[str, object]:
    return {"observation": Maze().reset(task_index=task_index)[0]["content"], "done": False}


async def test_the_server_counts_the_tasks_up_unless_the_client_chooses(executor: ThreadPoolExecutor) -> None:
    server = Server("Maze", executor)
    bodies: list[dict[str, object]] = [{}, {"env_name": "Maze", "task_index": 24}, {"env_name": "maze"}]
    bodies += [{"env_name": None, "task_index": None}, {"task_index": 26}, {"task_index": -1}]
    for body, task_index in zip(bodies, (0, 24, 1, 2, 1, 24), strict=True):
        created = await server.post("/createEnv", **body)
        assert await server.post("/observation", **created) == opening(task_index)
        assert await server.post("/maze/observation", **created) == opening(task_index)


@pytest.mark.parametrize("mode", ["strict", "compat"])
@pytest.mark.parametrize("prefix", ["", "/maze"])
async def test_an_instance_plays_its_task_to_the_end_and_is_closed(
    executor: ThreadPoolExecutor, prefix: str, mode: Mode
) -> None:
    server = Server("Maze", executor, mode, max_open=1)
    created = await server.post(f"{prefix}/createEnv", env_name="Maze")
    assert created == {"env_id": 0}
    assert "which is its limit" in (await server.post(f"{prefix}/createEnv"))["error"]
    local = Maze(mode=mode)
    local.reset(task_index=0)
    planner, text, done = local.oracle(0), "", False
    while not done:
        action = planner.next_action()
        (message,), reward, done = local.step(Action(text=action))
        text = str(message["content"])
        reply = await server.post(f"{prefix}/step", **created, action=action)
        assert reply == {"observation": text, "reward": reward, "done": done, "truncated": False}
    assert await server.post(f"{prefix}/observation", **created) == {"observation": text, "done": True}
    finished = await server.post(f"{prefix}/step", **created, action="move up")
    assert finished == {"error": "The task with environment 0 has finished."}
    assert [await server.post(f"{prefix}/close", **created) for _ in range(2)] == [True, False]
    assert await server.post(f"{prefix}/observation", **created) == {"error": "The id 0 is not valid."}


async def test_another_environments_name_is_rejected(executor: ThreadPoolExecutor) -> None:
    server = Server("TextCraft", executor)
    assert "env_id" in await server.post("/createEnv", env_name="text-craft")
    error = (await server.post("/createEnv", env_name="Maze\x1b[31m"))["error"]
    assert error.startswith("This server plays TextCraft, not Maze")
    assert "\x1b" not in error
    assert (await server.get("/health"))["open"] == 1


async def test_both_ids_name_the_same_instance(executor: ThreadPoolExecutor) -> None:
    server = Server("SQLGym", executor)
    instance = (await server.post("/createEnv", task_index=3))["env_id"]
    reply = await server.post("/step", env_id=instance, action="SELECT 1")  # starts the task without /observation
    assert reply == {"observation": "[(1,)]", "reward": 0.0, "done": True, "truncated": False}
    question = SQLGym().reset(task_index=3)[0]["content"]
    assert await server.get("/observation", env_idx=str(instance)) == question
    assert await server.post("/observation", env_id=instance) == {"observation": "[(1,)]", "done": True}
    await server.post("/reset", env_idx=instance, item_id=0)
    own = await server.post("/step", env_idx=instance, env_id=99, action="SELECT 2")
    assert own == {"state": "[(2,)]", "reward": 0.0, "done": True, "info": {}, "truncated": False}


@pytest.mark.parametrize("mode", ["strict", "compat"])
@pytest.mark.parametrize("name", sorted(DIALECTS))
async def test_only_some_environments_are_stepped_after_the_end_and_only_in_compat_mode(
    executor: ThreadPoolExecutor, name: str, mode: Mode
) -> None:
    server, id_field = Server(name, executor, mode), DIALECTS[name].id_field
    local = plugins.load(plugins.ENVS, name)(mode=mode)
    local.reset(task_index=0)
    assert isinstance(local, EmbeddedEnvironment)
    assert isinstance(local, SupportsOracle)
    instance, planner, done = (await server.post("/createEnv"))["env_id"], local.oracle(0), False
    while not done:
        action = planner.next_action()
        local.step(Action(text=action))
        done = (await server.post("/step", env_id=instance, action=action))["done"]
    goes_on = mode == "compat" and name in ("TextCraft", "SQLGym", "WebShop")
    assert ("observation" in await server.post("/step", env_id=instance, action=action)) == goes_on
    own = await server.send("POST", f"{DIALECTS[name].prefix}/step", {id_field: instance, "action": action})
    assert (own.status_code == 200 and "error" not in own.json()) == goes_on
    if not goes_on and mode == "strict":
        assert f"The task with environment {instance} has finished." in own.text
    read = await server.send("GET", f"{DIALECTS[name].prefix}/observation?{id_field}={instance}")
    assert ("has finished" not in read.text) == (name in ("TextCraft", "SQLGym", "WebShop"))


async def test_malformed_requests_name_the_field(executor: ThreadPoolExecutor) -> None:
    server = Server("Maze", executor)
    for path, body, field in [
        ("/step", {"action": "x"}, "`id`"),
        ("/step", {"env_id": 0}, "`action`"),
        ("/step", {"env_id": "x", "action": "x"}, "`$.env_id`"),
        ("/observation", {"id": 0}, "`env_id`"),
        ("/createEnv", {"env_name": 7}, "`$.env_name`"),
        ("/createEnv", {"task_index": "first"}, "`$.task_index`"),
    ]:
        response = await server.send("POST", path, body)
        (problem,) = response.json()["detail"]
        assert (response.status_code, problem["loc"]) == (422, ["body"])
        assert problem["msg"].endswith(field)


async def test_a_wrong_method_is_answered_with_all_allowed_methods(executor: ThreadPoolExecutor) -> None:
    server = Server("BabyAI", executor)
    response = await server.send("PUT", "/observation")
    assert response.status_code == 405
    assert {*response.headers["allow"].split(", ")} >= {"GET", "POST"}
    assert (await server.send("GET", "/createEnv")).status_code == 405
    assert (await server.send("HEAD", "/health")).status_code == 200


@pytest.mark.parametrize("mode", ["strict", "compat"])
async def test_wordles_remaining_words_are_listed_before_and_after_the_reset(
    executor: ThreadPoolExecutor, mode: Mode
) -> None:
    server, local = Server("Wordle", executor, mode), Wordle(mode=mode)
    instance = str((await server.post("/wordle/create"))["id"])
    assert await server.get("/wordle/filtered_vocab", id=instance) == list(local.words)
    local.reset(task_index=5)
    await server.post("/wordle/reset", id=instance, seed=5)
    remaining = list(local.words)
    for guess in ("panic", "hello", "shire"):
        local.step(Action(text=guess))
        await server.post("/wordle/step", id=instance, action=guess)
        listed = await server.get("/wordle/filtered_vocab", id=instance)
        assert listed == local.remaining_words
        assert set(listed) <= set(remaining)
        remaining = listed
    assert 0 < len(remaining) < len(local.words)
    assert await server.get("/wordle/filtered_vocab", id="7") == {"error": "The id 7 is not valid."}
