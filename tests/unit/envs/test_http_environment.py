from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from runner.agents.baselines import RandomAgent
from runner.envs.http.client import RemoteInstance
from runner.envs.http.dialects import dialect_for
from runner.envs.http.environment import MAX_REQUEST_BYTES, HttpEnvironment
from runner.envs.http.server import ServerAddress
from runner.envs.maze import Maze
from runner.errors import EnvironmentFault
from runner.testing import check_env
from runner.types import Action, StepResult, ToolCall
from runner.types.protocols import maybe_await
from tests.support.rude_env_server import (
    EnvironmentHandler,
    ReceivedRequest,
    RudeServer,
    http_response,
    json_response,
    run_rude_server,
)

UP = Action(text="move up")


@pytest.fixture
def env_server(rude_server: RudeServer) -> RudeServer:
    """A server that answers like AgentGym's Maze server until a test replaces its handler."""
    rude_server.reset(EnvironmentHandler(Maze))
    return rude_server


def maze_over_http(server: RudeServer) -> HttpEnvironment:
    return HttpEnvironment(env="maze", address=ServerAddress(server.url, 10))


def test_the_environment_fulfills_the_contract(env_server: RudeServer) -> None:
    check_env(lambda: maze_over_http(env_server), tasks=(0,), max_steps=20)


async def test_an_episode_equals_the_embedded_one(env_server: RudeServer) -> None:
    twin, env = Maze(), maze_over_http(env_server)
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
    assert [request.path for request in env_server.requests][-1] == "/maze/close"


async def test_invalid_actions_send_no_request(env_server: RudeServer) -> None:
    env = maze_over_http(env_server)
    await env.reset()
    n_requests = len(env_server.requests)
    calls = [ToolCall("a", "move", '{"direction": "sideways"}'), ToolCall("b", "move", '{"direction": "up"}')]
    chat, reward, done = await env.step(Action(tool_calls=calls))
    assert [message["role"] for message in chat] == ["tool", "tool"]
    hint = 'Invalid action. Expected move with direction: one of "left", "right", "up", "down"; got "sideways".'
    assert chat[0]["content"] == hint
    assert (reward, done) == (0.0, False)
    chat, _, _ = await env.step(Action(text="x" * MAX_REQUEST_BYTES))
    assert chat[0]["content"] == "Invalid action. Expected a shorter text."
    assert len(env_server.requests) == n_requests
    chat, _, _ = await env.step(Action(tool_calls=calls[1:]))
    assert env_server.requests[-1].payload == {"id": 0, "action": "move up"}
    await env.cleanup()


async def test_a_step_outside_an_episode_sends_no_request(env_server: RudeServer) -> None:
    env = maze_over_http(env_server)
    with pytest.raises(EnvironmentFault, match="call reset first"):
        await env.step(UP)
    await env.reset(task_index=20)
    await env.cleanup()
    n_requests = len(env_server.requests)
    with pytest.raises(EnvironmentFault, match="call reset first"):
        await env.step(UP)
    await env.cleanup()
    assert len(env_server.requests) == n_requests
    await env.reset(task_index=20)
    assert env.get_episode_id() == "Maze-20@1"
    await env.cleanup()


async def test_requests_of_one_instance_never_overlap(env_server: RudeServer) -> None:
    running, max_running = 0, 0

    async def answer_slowly(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        nonlocal running, max_running
        running += 1
        max_running = max(max_running, running)
        await asyncio.sleep(0.01)
        running -= 1
        writer.write(json_response({"observation": "x", "reward": 0, "done": False}))

    env_server.reset(EnvironmentHandler(Maze, answer_slowly))
    env = maze_over_http(env_server)
    await env.reset()
    await asyncio.gather(*(env.step(UP) for _ in range(4)))
    await env.cleanup()
    assert max_running == 1


async def test_environments_of_one_loop_share_a_connection_which_closes_when_idle() -> None:
    with run_rude_server() as server:  # a server of its own: no connection of another test closes late
        server.reset(EnvironmentHandler(Maze))
        envs = [maze_over_http(server) for _ in range(17)]
        for _ in range(2):
            server.n_connections = server.n_closed = 0
            for env in envs:
                await env.reset()
                await env.step(UP)
            for env in envs:
                assert (server.n_connections, server.n_closed) == (1, 0)
                await env.cleanup()
            await asyncio.to_thread(server.wait_closed, 1)


def test_each_thread_has_separate_connections(env_server: RudeServer) -> None:
    async def play() -> None:
        env = maze_over_http(env_server)
        await env.reset()
        await env.step(UP)
        await env.cleanup()

    threads = [threading.Thread(target=asyncio.run, args=(play(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert env_server.n_connections == 3
    assert len(env_server.requests) == 15


async def test_an_episode_waits_for_a_free_instance_of_a_full_server(env_server: RudeServer) -> None:
    instance_ids = iter([1, 1, 2, *[1] * 100])
    is_full = threading.Event()

    async def answer_create(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        is_create = request.path.endswith("create")
        writer.write(json_response({"id": next(instance_ids)} if is_create else {"observation": "x"}))
        if len([sent for sent in env_server.requests if sent.path.endswith("create")]) == 5:
            is_full.set()

    env_server.reset(answer_create)
    envs = [maze_over_http(env_server) for _ in range(3)]
    for env in envs[:2]:
        await env.reset()
    assert [env.get_episode_id() for env in envs[:2]] == ["Maze-0@1", "Maze-0@2"]
    waiting = asyncio.create_task(envs[2].reset())
    assert await asyncio.to_thread(is_full.wait, 60)
    await envs[0].cleanup()
    await waiting
    assert envs[2].get_episode_id() == "Maze-0@1"
    for env in envs[1:]:
        await env.cleanup()


async def test_garbage_collection_of_an_instance_ends_its_lease(env_server: RudeServer) -> None:
    """An abandoned worker never cleans up its environment."""

    is_full = threading.Event()

    async def answer(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(json_response({"id": 1}))
        if len(env_server.requests) == 3:
            is_full.set()

    env_server.reset(answer)
    dialect = dialect_for("maze")
    assert dialect is not None
    abandoned, later = (RemoteInstance(dialect, ServerAddress(env_server.url, 10)) for _ in range(2))
    await abandoned.open(0)
    waiting = asyncio.create_task(later.open(0))
    assert await asyncio.to_thread(is_full.wait, 60)
    del abandoned
    gc.collect()
    await waiting
    await later.close()


@pytest.mark.parametrize(
    "reply", [http_response("no", 404), json_response({"has_search_bar": 1, "clickables": []}), json_response("x")]
)
async def test_an_invalid_page_reply_is_an_error(env_server: RudeServer, reply: bytes) -> None:
    async def answer(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        answers = {
            "/create": json_response(3),
            "/reset": json_response(["WebShop [SEP] Instruction: [SEP] a hat [SEP] Search", None]),
        }
        writer.write(answers.get(request.path, reply))

    env_server.reset(answer)
    env = HttpEnvironment(env="webshop", address=ServerAddress(env_server.url, 10))
    await env.reset()
    with pytest.raises(EnvironmentFault, match=r"WebShop: GET http://.*/available_actions\?env_idx=3 returned"):
        await maybe_await(env.admissible_actions())
    await env.cleanup()


async def test_a_random_agent_uses_the_clickables_of_a_page(env_server: RudeServer) -> None:
    async def answer(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        page = {"has_search_bar": True, "clickables": ["search"]}
        opening = ["WebShop [SEP] Instruction: [SEP] a hat [SEP] Search", None]
        answers = {
            "/create": json_response(3),
            "/reset": json_response(opening),
            "/available_actions?env_idx=3": json_response(page),
        }
        writer.write(answers.get(request.path, json_response({"state": "x", "reward": 1, "done": True})))

    env_server.reset(answer)
    env, agent = HttpEnvironment(env="webshop", address=ServerAddress(env_server.url, 10)), RandomAgent()
    agent.bind(env, {})
    _, action = await maybe_await(agent.act(await env.reset(), []))
    assert action == Action(text="search[a hat]")
    assert (await env.step(action))[1:] == (1.0, True)
    await env.cleanup()


async def test_a_login_is_sent_and_cookies_are_not(env_server: RudeServer) -> None:
    async def answer(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(http_response('{"id": 5, "observation": "x"}', set_cookie="a=b; Path=/"))

    env_server.reset(answer)
    address = ServerAddress(env_server.url.replace("//", "//me:hidden@"), 10)
    env = HttpEnvironment(env="maze", address=address)
    await env.reset()
    await env.cleanup()
    for request in env_server.requests:
        assert request.headers["authorization"] == "Basic bWU6aGlkZGVu"
        assert request.headers["content-type"] == "application/json"
        assert "cookie" not in request.headers


async def test_a_lone_surrogate_becomes_a_question_mark(env_server: RudeServer) -> None:
    env = maze_over_http(env_server)
    await env.reset()
    await env.step(Action(text="\ud800"))
    assert env_server.requests[-1].payload["action"] == "?"
    await env.cleanup()
