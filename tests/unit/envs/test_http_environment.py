from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator

import pytest

from runner.agents.random import RandomAgent
from runner.envs.http import HttpEnvironment, ServerAddress, dialect_for
from runner.envs.http.environment import MAX_REQUEST_BYTES
from runner.envs.http.session import RemoteInstance
from runner.envs.maze import Maze
from runner.errors import EnvironmentFault
from runner.testing import check_env
from runner.types import Action, StepResult, ToolCall
from runner.types.maybe_async import maybe_await
from tests.support.rude_env_server import (
    EnvironmentHandler,
    ReceivedRequest,
    RudeServer,
    http_response,
    json_response,
    run_rude_server,
)

UP = Action(text="move up")


@pytest.fixture(scope="module")
def serving() -> Iterator[RudeServer]:
    with run_rude_server() as server:
        yield server


@pytest.fixture
def server(serving: RudeServer) -> RudeServer:
    serving.reset(EnvironmentHandler(Maze))
    return serving


def maze(server: RudeServer) -> HttpEnvironment:
    return HttpEnvironment(env="maze", address=ServerAddress(server.url, 10))


def test_it_keeps_the_contract_of_environments(server: RudeServer) -> None:
    check_env(lambda: maze(server), tasks=(0,), max_steps=20)


async def test_an_episode_is_the_embedded_one(server: RudeServer) -> None:
    twin, env = Maze(), maze(server)
    planner = twin.oracle(0)
    assert await env.reset(task_index=28, seed=1) == twin.reset(task_index=28)
    done = False
    while not done:
        text = planner.next_action()
        result: StepResult = await env.step(Action(text=text))
        assert result == twin.step(Action(text=text))
        done = result[2]
    assert env.get_episode_id() == "Maze-3@0"
    assert env.admissible_actions() == twin.admissible_actions()
    await env.cleanup()
    assert [request.path for request in server.requests][-1] == "/maze/close"


async def test_a_limit_of_the_server_is_a_truncation(server: RudeServer) -> None:
    env = maze(server)
    await env.reset(task_index=0)
    done = False
    while not done:
        _, _, done = await env.step(UP)
    ended_by_limit = [env.truncated]
    await env.reset(task_index=0)
    ended_by_limit.append(env.truncated)
    assert ended_by_limit == [True, False]
    await env.cleanup()


async def test_invalid_actions_are_answered_without_a_request(server: RudeServer) -> None:
    env = maze(server)
    await env.reset()
    n_requests = len(server.requests)
    calls = [ToolCall("a", "move", '{"direction": "sideways"}'), ToolCall("b", "move", '{"direction": "up"}')]
    chat, reward, done = await env.step(Action(tool_calls=calls))
    assert [message["role"] for message in chat] == ["tool", "tool"]
    assert str(chat[0]["content"]).startswith("Invalid action. Expected move with exactly direction")
    assert (reward, done) == (0.0, False)
    chat, _, _ = await env.step(Action(text="x" * MAX_REQUEST_BYTES))
    assert chat[0]["content"] == "Invalid action. Expected a shorter text."
    assert len(server.requests) == n_requests
    chat, _, _ = await env.step(Action(tool_calls=calls[1:]))
    assert server.requests[-1].payload == {"id": 0, "action": "move up"}
    await env.cleanup()


async def test_outside_an_episode_nothing_is_sent(server: RudeServer) -> None:
    env = maze(server)
    with pytest.raises(EnvironmentFault, match="call reset first"):
        await env.step(UP)
    await env.reset(task_index=20)
    await env.cleanup()
    n_requests = len(server.requests)
    with pytest.raises(EnvironmentFault, match="call reset first"):
        await env.step(UP)
    await env.cleanup()
    assert len(server.requests) == n_requests
    await env.reset(task_index=20)
    assert env.get_episode_id() == "Maze-20@1"
    await env.cleanup()


async def test_requests_of_one_instance_never_overlap(server: RudeServer) -> None:
    running, most = 0, 0

    async def slowly(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        writer.write(json_response({"observation": "x", "reward": 0, "done": False}))

    server.reset(EnvironmentHandler(Maze, slowly))
    env = maze(server)
    await env.reset()
    await asyncio.gather(*(env.step(UP) for _ in range(4)))
    await env.cleanup()
    assert most == 1


async def test_environments_of_a_loop_share_connections_which_the_last_one_closes(server: RudeServer) -> None:
    closed_before = server.n_closed
    envs = [maze(server) for _ in range(3)]
    for env in envs:
        await env.reset()
        await env.step(UP)
    assert server.n_connections == 1
    for env in envs:
        assert server.n_closed == closed_before
        await env.cleanup()
    await asyncio.to_thread(server.wait_closed, closed_before + 1)


def test_each_thread_has_connections_of_its_own(server: RudeServer) -> None:
    async def play() -> None:
        env = maze(server)
        await env.reset()
        await env.step(UP)
        await env.cleanup()

    threads = [threading.Thread(target=asyncio.run, args=(play(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert server.n_connections == 3
    assert len(server.requests) == 12


async def test_an_instance_that_is_in_use_is_not_played_twice(server: RudeServer) -> None:
    given = iter([1, 1, 2, *[1] * 100])

    async def reissues(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        create = request.path.endswith("create")
        writer.write(json_response({"id": next(given)} if create else {"observation": "x"}))

    server.reset(reissues)
    envs = [maze(server) for _ in range(3)]
    for env in envs[:2]:
        await env.reset()
    assert [env.get_episode_id() for env in envs[:2]] == ["Maze-0@1", "Maze-0@2"]
    with pytest.raises(EnvironmentFault, match="Run fewer episodes at the same time"):
        await envs[2].reset()
    await envs[0].cleanup()
    await envs[2].reset()
    assert envs[2].get_episode_id() == "Maze-0@1"
    for env in envs[1:]:
        await env.cleanup()


async def test_a_garbage_collected_instance_ends_its_lease(server: RudeServer) -> None:
    """An abandoned worker never cleans up its environment."""

    async def answer(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(json_response({"id": 1}))

    server.reset(answer)
    row = dialect_for("maze")
    assert row is not None
    given_up, later = (RemoteInstance(row, ServerAddress(server.url, 10)) for _ in range(2))
    await given_up.open(0)
    with pytest.raises(EnvironmentFault, match="in use"):
        await later.open(0)
    await given_up.disconnect()
    del given_up
    gc.collect()
    await later.open(0)
    await later.close()
    await later.disconnect()


@pytest.mark.parametrize(
    "reply", [http_response("no", 404), json_response({"has_search_bar": 1, "clickables": []}), json_response("x")]
)
async def test_an_invalid_page_reply_is_an_error(server: RudeServer, reply: bytes) -> None:
    async def answer(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        answers = {
            "/create": json_response(3),
            "/reset": json_response(["WebShop [SEP] Instruction: [SEP] a hat [SEP] Search", None]),
        }
        writer.write(answers.get(request.path, reply))

    server.reset(answer)
    env = HttpEnvironment(env="webshop", address=ServerAddress(server.url, 10))
    await env.reset()
    with pytest.raises(EnvironmentFault, match=r"WebShop: GET http://.*/available_actions\?env_idx=3 returned"):
        await maybe_await(env.admissible_actions())
    await env.cleanup()


async def test_a_random_agent_uses_the_clickables_of_a_page(server: RudeServer) -> None:
    async def answer(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        page = {"has_search_bar": True, "clickables": ["search"]}
        opening = ["WebShop [SEP] Instruction: [SEP] a hat [SEP] Search", None]
        answers = {
            "/create": json_response(3),
            "/reset": json_response(opening),
            "/available_actions?env_idx=3": json_response(page),
        }
        writer.write(answers.get(request.path, json_response({"state": "x", "reward": 1, "done": True})))

    server.reset(answer)
    env, agent = HttpEnvironment(env="webshop", address=ServerAddress(server.url, 10)), RandomAgent()
    agent.bind(env, {})
    _, action = await maybe_await(agent.act(await env.reset(), []))
    assert action == Action(text="search[a hat]")
    assert (await env.step(action))[1:] == (1.0, True)
    await env.cleanup()


async def test_a_login_is_sent_and_cookies_are_not(server: RudeServer) -> None:
    async def answer(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(http_response('{"id": 5, "observation": "x"}', set_cookie="a=b; Path=/"))

    server.reset(answer)
    address = ServerAddress(server.url.replace("//", "//me:hidden@"), 10)
    env = HttpEnvironment(env="maze", address=address)
    await env.reset()
    await env.cleanup()
    for request in server.requests:
        assert request.headers["authorization"] == "Basic bWU6aGlkZGVu"
        assert request.headers["content-type"] == "application/json"
        assert "cookie" not in request.headers


async def test_half_of_a_surrogate_pair_becomes_a_question_mark(server: RudeServer) -> None:
    env = maze(server)
    await env.reset()
    await env.step(Action(text="\ud800"))
    assert server.requests[-1].payload["action"] == "?"
    await env.cleanup()
