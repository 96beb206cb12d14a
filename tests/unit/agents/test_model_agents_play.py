"""End-to-end episodes of both model agents: runner, manager, HTTP, and the oracle in place of a model."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Iterator
from typing import Literal, TypeAlias

import pytest

from runner import plugins
from runner.config.profile import EndpointConfig
from runner.episode.runner import Runner
from runner.inference import InferenceManager
from runner.serve.mock_llm import ModelServer
from runner.types import Limits, Outcome
from tests.support.inference import agent_settings

Format: TypeAlias = Literal["auto", "react"]
ENVIRONMENTS = ["ALFWorld", "BabyAI", "Maze", "SQLGym", "TextCraft", "WebShop", "Wordle"]


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


def runner_of(env: str, agent: str, format: Format, server: ModelServer, context_tokens: int = 16_384) -> Runner:
    endpoint = EndpointConfig(url=server.url, name="test")
    settings = agent_settings(endpoint, model="test-oracle", format=format, context_tokens=context_tokens)
    runner = Runner(
        env_cfg=plugins.build_target(plugins.ENVS, env),
        agent_cfg=plugins.build_target(plugins.AGENTS, agent, settings=settings),
        inference_mngr=InferenceManager.from_profile(settings, {}),
        limits=Limits(max_rounds=60, max_duration_s=60),
    )
    travelled: Runner = pickle.loads(pickle.dumps(runner))
    return travelled


@pytest.mark.parametrize(("agent", "format"), [("react", "react"), ("react", "auto"), ("tools", "react")])
@pytest.mark.parametrize("env", ENVIRONMENTS)
async def test_tasks_are_solved(env: str, agent: str, format: Format, server: ModelServer) -> None:
    runner = runner_of(env, agent, format, server)
    before = len(server.received)
    played = await asyncio.gather(*(runner.play_episode({"task_index": task}) for task in range(3)))
    requests = [json.loads(received.body) for received in server.received[before:]]
    for episode in played:
        assert episode.error_info is None
        assert (episode.outcome, episode.success) == (Outcome.SUCCESS, True)
        assert all(step.valid and step.endpoint == "test" and step.tokens for step in episode.timesteps)
    assert len(requests) == sum(len(episode.timesteps) for episode in played)
    assert {"tools" in request for request in requests} == {(agent, format) != ("react", "react")}


@pytest.mark.parametrize("agent", ["react", "tools"])
async def test_turns_are_omitted_to_fit_a_small_context(agent: str, server: ModelServer) -> None:
    before = len(server.received)
    played = await runner_of("Maze", agent, "react", server, context_tokens=1000).play_episode({"task_index": 0})
    assert played.outcome is Outcome.SUCCESS
    openings = [json.loads(received.body)["messages"][1]["content"] for received in server.received[before:]]
    assert openings[0] == played.reset_observation[0]["content"]
    assert openings[-1].endswith(" left out]")


@pytest.mark.parametrize("agent", ["react", "tools"])
async def test_turns_that_were_left_out_are_known_to_the_test_oracle(agent: str, server: ModelServer) -> None:
    for task in (0, 2):  # returns to an earlier position, so that the remaining turns could also start the episode
        runner = runner_of("ALFWorld", agent, "react", server, context_tokens=3000)
        played = await runner.play_episode({"task_index": task})
        assert played.outcome is Outcome.SUCCESS and len(played.timesteps) < 15
