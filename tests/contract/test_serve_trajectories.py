"""Oracle episodes are equal over ``serve`` and embedded, step by step, in all seven environments."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Literal

import httpx
import pytest

from runner import plugins
from runner.envs.base import EmbeddedEnvironment
from runner.envs.http.environment import HttpEnvironment
from runner.envs.http.server import ServerAddress
from runner.serve.env_api import DIALECTS
from runner.types import Action, InvalidAction, Mode, SupportsOracle, Trajectory
from runner.types.protocols import maybe_await
from tests.support.episodes import make_step
from tests.support.serving import serve_environments

pytestmark = pytest.mark.long

N_TASKS = 6
MAX_ROUNDS = 100


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[Mode, dict[str, str]]]:
    with serve_environments(list(DIALECTS)) as strict, serve_environments(list(DIALECTS), mode="compat") as compat:
        yield {"strict": strict, "compat": compat}


def embedded(name: str, mode: Mode) -> EmbeddedEnvironment:
    environment = plugins.load(plugins.ENVS, name)(mode=mode)
    assert isinstance(environment, EmbeddedEnvironment)
    return environment


async def solve(local: EmbeddedEnvironment, remote: HttpEnvironment, task_index: int) -> bool:
    """Run a task embedded and over HTTP with the same actions; return whether both solved it."""
    assert local.reset(task_index=task_index) == await remote.reset(task_index=task_index)
    assert isinstance(local, SupportsOracle)
    planner, steps = local.oracle(task_index), Trajectory(episode_id="episode", timesteps=[])
    done = False
    while not done and len(steps.timesteps) < MAX_ROUNDS:
        action = Action(text=planner.next_action())
        embedded_result, remote_result = local.step(action), await remote.step(action)
        assert embedded_result == remote_result
        assert local.truncated == remote.truncated
        chat, reward, done = embedded_result
        step = make_step(len(steps.timesteps), action=action, observation=chat, reward=reward, done=done)
        steps.timesteps.append(step)
    solved = local.success(steps)
    assert remote.success(steps) == solved
    return solved


@pytest.mark.parametrize(("mode", "dialect"), [("strict", "env"), ("compat", "env"), ("strict", "createEnv")])
@pytest.mark.parametrize("name", sorted(DIALECTS))
async def test_oracle_episodes_are_equal_embedded_and_served(
    name: str, mode: Mode, dialect: Literal["env", "createEnv"], urls: dict[Mode, dict[str, str]]
) -> None:
    """With ``createEnv`` the server chooses the tasks: it counts them up from 0."""
    local = embedded(name, mode)
    remote = HttpEnvironment(env=name, address=ServerAddress(urls[mode][name], dialect=dialect), mode=mode)
    async with httpx.AsyncClient(base_url=urls[mode][name], timeout=60) as http:
        n_open = (await http.get("/health")).json()["open"]
        try:
            solved = [await solve(local, remote, task_index) for task_index in range(N_TASKS)]
        finally:
            await remote.cleanup()
        assert (await http.get("/health")).json()["open"] == n_open
    assert sum(solved) >= N_TASKS - 1


@pytest.mark.parametrize("name", sorted(DIALECTS))
async def test_admissible_actions_are_equal_embedded_and_served(name: str, urls: dict[Mode, dict[str, str]]) -> None:
    """An agent that picks from the list of actions acts the same in both."""
    local = embedded(name, "strict")
    remote = HttpEnvironment(env=name, address=ServerAddress(urls["strict"][name], lists_actions=True))
    random = Random(0)
    try:
        for task_index in range(2):
            local.reset(task_index=task_index)
            await remote.reset(task_index=task_index)
            done, n_rounds = False, 0
            while not done and n_rounds < 10:
                actions = local.admissible_actions()
                assert actions
                assert await maybe_await(remote.admissible_actions()) == actions
                action = Action(text=random.choice(actions))
                n_rounds, (_, _, done) = n_rounds + 1, local.step(action)
                await remote.step(action)
    finally:
        await remote.cleanup()


@pytest.mark.parametrize("name", ["SQLGym", "TextCraft", "WebShop"])
async def test_actions_are_read_from_observations_without_a_list(name: str, urls: dict[Mode, dict[str, str]]) -> None:
    """AgentGym's servers have no list of actions; the client reads them from observations."""
    local = embedded(name, "strict")
    remote = HttpEnvironment(env=name, address=ServerAddress(urls["strict"][name]))
    try:
        assert await maybe_await(remote.admissible_actions()) is None
        for _ in range(2):
            local.reset(task_index=7)
            await remote.reset(task_index=7)
            parsed, expected = await maybe_await(remote.admissible_actions()), local.admissible_actions()
            assert parsed
            assert expected
            assert {*expected} <= {*parsed}
            assert (name == "TextCraft") == (parsed != expected)
            assert not any(isinstance(remote.parse(text), InvalidAction) for text in parsed)
            await remote.step(Action(text=parsed[-1]))
    finally:
        await remote.cleanup()


def test_the_gold_query_is_never_sent(urls: dict[Mode, dict[str, str]]) -> None:
    for mode, servers in urls.items():
        environment = embedded("SQLGym", mode)
        environment.reset(task_index=0)
        assert isinstance(environment, SupportsOracle)
        gold = environment.oracle(0).next_action()
        with httpx.Client(base_url=servers["SQLGym"], timeout=60) as http:
            created = http.post("/create").json()
            replies = [
                http.post("/reset", json={"env_idx": created, "item_id": 0}),
                http.post("/step", json={"env_idx": created, "action": "SELECT 1"}),
                http.get("/observation", params={"env_idx": created}),
                http.get("/list_envs"),
                http.get("/health"),
            ]
            assert replies[1].json()["info"] == {}
            for reply in replies:
                assert gold not in reply.text
                assert "ground_truth" not in reply.text
