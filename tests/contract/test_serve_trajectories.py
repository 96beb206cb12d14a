"""The oracle plays the same on a server of ours as it does in this process, step by step, in all seven environments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

import httpx
import pytest

from runner import plugins
from runner.envs.base import EmbeddedEnvironment
from runner.envs.http import HttpEnvironment, ServerAddress
from runner.serve.env_api import DIALECTS
from runner.types import Action, InvalidAction, Mode, SupportsOracle, TimeStep, Trajectory
from runner.types.maybe_async import maybe_await
from tests.support.serving import serving

N_TASKS = 20
MAX_ROUNDS = 100
AT_LEAST = {"Maze": 20, "Wordle": 18, "TextCraft": 20, "BabyAI": 17, "WebShop": 20, "SQLGym": 20, "ALFWorld": 20}


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[Mode, dict[str, str]]]:
    with serving(list(DIALECTS)) as strict, serving(list(DIALECTS), mode="compat") as compat:
        yield {"strict": strict, "compat": compat}


def embedded(name: str, mode: Mode) -> EmbeddedEnvironment:
    environment = plugins.load(plugins.ENVS, name)(mode=mode)
    assert isinstance(environment, EmbeddedEnvironment)
    return environment


async def played(local: EmbeddedEnvironment, remote: HttpEnvironment, task_index: int) -> bool:
    """Play a task here and there with the same actions; whether it was solved, which both have to agree on."""
    assert local.reset(task_index=task_index) == await remote.reset(task_index=task_index)
    assert isinstance(local, SupportsOracle)
    planner, steps = local.oracle(task_index), Trajectory(episode_id="here", timesteps=[])
    done = False
    while not done and len(steps.timesteps) < MAX_ROUNDS:
        action = Action(text=planner.next_action())
        here, there = local.step(action), await remote.step(action)
        assert here == there
        assert local.truncated == remote.truncated
        chat, reward, done = here
        steps.timesteps.append(
            TimeStep(
                index=len(steps.timesteps),
                chats=[],
                action=action,
                observation=chat,
                reward=reward,
                done=done,
                available_tool_schemas=[],
            )
        )
    solved = local.success(steps)
    assert remote.success(steps) == solved
    return solved


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(AT_LEAST))
async def test_the_oracle_plays_the_same_here_and_there(name: str, urls: dict[Mode, dict[str, str]]) -> None:
    local = embedded(name, "strict")
    remote = HttpEnvironment(env=name, address=ServerAddress(urls["strict"][name]))
    try:
        solved = [await played(local, remote, task_index) for task_index in range(N_TASKS)]
    finally:
        await remote.cleanup()
    assert sum(solved) >= AT_LEAST[name]


@pytest.mark.parametrize("name", sorted(AT_LEAST))
async def test_what_can_be_done_is_the_same_here_and_there(name: str, urls: dict[Mode, dict[str, str]]) -> None:
    """So that an agent that picks from the list plays the same, and plays at all."""
    local = embedded(name, "strict")
    remote = HttpEnvironment(env=name, address=ServerAddress(urls["strict"][name], lists_actions=True))
    picks = Random(0)
    try:
        for task_index in range(2):
            local.reset(task_index=task_index)
            await remote.reset(task_index=task_index)
            done, n_rounds = False, 0
            while not done and n_rounds < 10:
                actions = local.admissible_actions()
                assert actions
                assert await maybe_await(remote.admissible_actions()) == actions
                action = Action(text=picks.choice(actions))
                n_rounds, (_, _, done) = n_rounds + 1, local.step(action)
                await remote.step(action)
    finally:
        await remote.cleanup()


@pytest.mark.parametrize("name", ["SQLGym", "TextCraft", "WebShop"])
async def test_a_server_that_lists_nothing_is_read(name: str, urls: dict[Mode, dict[str, str]]) -> None:
    """As AgentGym's do not."""
    local = embedded(name, "strict")
    remote = HttpEnvironment(env=name, address=ServerAddress(urls["strict"][name]))
    try:
        assert await maybe_await(remote.admissible_actions()) is None
        for _ in range(2):
            local.reset(task_index=7)
            await remote.reset(task_index=7)
            found, known = await maybe_await(remote.admissible_actions()), local.admissible_actions()
            assert found
            assert known
            assert {*known} <= {*found}
            assert (name == "TextCraft") == (found != known)
            assert not any(isinstance(remote.parse(text), InvalidAction) for text in found)
            await remote.step(Action(text=found[-1]))
    finally:
        await remote.cleanup()


PREFIXES = {"Maze": "/maze", "Wordle": "/wordle"}
TASKS = {
    "BabyAI": "data_idx",
    "TextCraft": "data_idx",
    "Maze": "game",
    "Wordle": "seed",
    "ALFWorld": "game",
    "SQLGym": "item_id",
    "WebShop": "session_id",
}
LOOKS = {
    "Maze": ["/observation", "/detail", "/available_actions"],
    "Wordle": ["/observation", "/detail"],
    "BabyAI": ["/observation"],
    "TextCraft": ["/observation", "/detail"],
    "ALFWorld": ["/observation", "/detail", "/available_actions"],
    "SQLGym": ["/observation"],
    "WebShop": ["/observation", "/available_actions", "/instruction_text"],
}


class ServerClient:
    """Speaks as AgentGym's own clients do, which take observations from the replies to resets and steps."""

    def __init__(self, name: str, http: httpx.Client) -> None:
        self._name = name
        self._http = http
        self._prefix = PREFIXES.get(name, "")
        body = {"commands": None, "goal": None, "minecraft_dir": "agentenv_textcraft/"} if name == "TextCraft" else None
        created = self._ask("POST", "/create", json=body) if body else self._ask("POST", "/create")
        self.key = {"env_idx": created} if isinstance(created, int) else {"id": created["id"]}

    def reset(self, task_index: int) -> str:
        more = {"world_type": "Text"} if self._name == "ALFWorld" else {}
        told = self._ask("POST", "/reset", json={**self.key, TASKS[self._name]: task_index, **more})
        return self._observation(told) if isinstance(told, dict) else str(told[0])

    def step(self, action: str) -> tuple[str, float, bool]:
        told = self._ask("POST", "/step", json={**self.key, "action": action})
        return self._observation(told), told["reward"], told["done"]

    def look(self, path: str) -> Any:  # noqa: ANN401
        return self._ask("GET", path, params=self.key)

    def close(self) -> bool:
        return bool(self._ask("POST", "/close", json=self.key))

    def _observation(self, told: dict[str, Any]) -> str:
        seen = str(told["state"] if "state" in told else told["observation"])
        actions = told.get("available_actions")
        return seen if actions is None else f"{seen}\nAvailable actions: {json.dumps(actions)}"

    def _ask(self, method: str, path: str, **what: Any) -> Any:  # noqa: ANN401
        reply = self._http.request(method, self._prefix + path, **what)
        assert reply.status_code == 200, reply.text
        told = reply.json()
        assert not (isinstance(told, dict) and "error" in told), told
        return told


@pytest.mark.parametrize("mode", ["strict", "compat"])
@pytest.mark.parametrize("name", sorted(AT_LEAST))
def test_a_client_of_agentgyms_plays_an_episode(name: str, mode: Mode, urls: dict[Mode, dict[str, str]]) -> None:
    local = embedded(name, mode)
    with httpx.Client(base_url=urls[mode][name], timeout=60) as http:
        client = ServerClient(name, http)
        for task_index in (2, 3):
            assert client.reset(task_index) == local.reset(task_index=task_index)[0]["content"]
            assert isinstance(local, SupportsOracle)
            assert all(client.look(path) for path in LOOKS[name])
            planner, done = local.oracle(0), False
            while not done:
                action = planner.next_action()
                chat, reward, done = local.step(Action(text=action))
                assert client.step(action) == (chat[0]["content"], reward, done)
        assert client.close() is True
        assert client.close() is False


def test_the_query_that_was_asked_for_is_sent_to_nobody(urls: dict[Mode, dict[str, str]]) -> None:
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
