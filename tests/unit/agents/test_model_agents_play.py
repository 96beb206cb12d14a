"""End-to-end episodes of both model agents: runner, manager, HTTP, and the oracle in place of a model."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec
import pytest
from msgspec import UNSET, UnsetType

from runner import plugins
from runner.agents.model import ReactAgent
from runner.config.profile import EndpointConfig
from runner.episode.factory import EpisodeFactory
from runner.inference.manager import InferenceManager
from runner.types import Action, EpisodeInfo, Limits, Outcome
from tests.support.fakes import user
from tests.support.inference import TOOLS, agent_settings, episode_header, inference_manager
from tests.support.model_server import ModelServer
from tests.support.rude_model import PendingRequest, RudeModel, completion_response, http_response

Format: TypeAlias = Literal["auto", "react"]


@pytest.fixture(scope="module")
def model_server() -> Iterator[ModelServer]:
    with ModelServer() as model_server:
        yield model_server


def make_runner(
    env: str, agent: str, format: Format, model_server: ModelServer, context_tokens: int = 16_384
) -> EpisodeFactory:
    endpoint = EndpointConfig(url=model_server.url, name="test")
    settings = agent_settings(endpoint, model="test-oracle", format=format, context_tokens=context_tokens)
    runner = EpisodeFactory(
        env_cfg=plugins.find(plugins.ENVS, env).config(),
        agent_cfg=plugins.find(plugins.AGENTS, agent).config(settings=settings),
        inference_mngr=InferenceManager(settings, {}),
        limits=Limits(max_rounds=60, max_duration_s=60),
    )
    unpickled: EpisodeFactory = pickle.loads(pickle.dumps(runner))
    return unpickled


@pytest.mark.parametrize(
    ("env", "agent", "format"),
    [
        ("BabyAI", "react", "react"),
        ("SQLGym", "react", "auto"),
        ("TextCraft", "tools", "react"),
        ("WebShop", "react", "auto"),
        ("Wordle", "react", "react"),
    ],
)
async def test_each_agent_solves_tasks(  # of ALFWorld and Maze in the tests of a small context
    env: str, agent: str, format: Format, model_server: ModelServer
) -> None:
    runner = make_runner(env, agent, format, model_server)
    before = len(model_server.received)
    trajectories = await asyncio.gather(
        *(runner.play_episode({"task_index": task}) for task in range(1 + (env == "Wordle")))
    )
    requests = [json.loads(received.body) for received in model_server.received[before:]]
    for episode in trajectories:
        assert episode.error_info is None
        assert (episode.outcome, episode.success) == (Outcome.SUCCESS, True)
        assert all(step.valid and step.endpoint == "test" and step.tokens for step in episode.timesteps)
    assert len(requests) == sum(len(episode.timesteps) for episode in trajectories)
    assert {"tools" in request for request in requests} == {(agent, format) != ("react", "react")}


def maze_runner(endpoint: EndpointConfig, agent: str, format: Format) -> EpisodeFactory:
    settings = agent_settings(endpoint, format=format)
    return EpisodeFactory(
        env_cfg=plugins.find(plugins.ENVS, "Maze").config(),
        agent_cfg=plugins.find(plugins.AGENTS, agent).config(settings=settings),
        inference_mngr=InferenceManager(settings, {}),
        limits=Limits(max_rounds=2, max_duration_s=60),
    )


@pytest.mark.parametrize(
    ("agent", "format", "refused", "shape"),
    [
        ("react", "auto", "m does not support tools", "tools as text"),
        ("tools", "auto", "m does not support tools", "tools as text"),
        ("react", "auto", "System role not supported", "folded system"),
        ("tools", "auto", "", UNSET),
        ("react", "react", "", UNSET),
    ],
)
async def test_each_step_names_the_shape_in_which_it_was_played(
    agent: str, format: Format, refused: str, shape: str | UnsetType
) -> None:
    refusal = http_response(400, json.dumps({"error": refused}).encode())
    with RudeModel(*([refusal] if refused else []), completion_response("up")) as server:
        endpoint = EndpointConfig(url=server.url, name="test", kind="openai")
        trajectory = await maze_runner(endpoint, agent, format).play_episode({"task_index": 0})
    assert [step.shape for step in trajectory.timesteps] == [shape] * 2
    assert ("shape" in msgspec.to_builtins(trajectory.timesteps[0])) == bool(refused)


@pytest.mark.parametrize("agent", ["react", "tools"])
async def test_turns_are_omitted_to_fit_a_small_context(agent: str, model_server: ModelServer) -> None:
    before = len(model_server.received)
    trajectory = await make_runner("Maze", agent, "react", model_server, context_tokens=1000).play_episode(
        {"task_index": 0}
    )
    assert trajectory.outcome is Outcome.SUCCESS
    openings = [json.loads(received.body)["messages"][1]["content"] for received in model_server.received[before:]]
    assert openings[0] == trajectory.reset_observation[0]["content"]
    assert openings[-1].endswith(" left out]")


@pytest.mark.parametrize("agent", ["react", "tools"])
async def test_the_test_oracle_solves_tasks_with_omitted_turns(agent: str, model_server: ModelServer) -> None:
    for task in (0, 2):  # returns to an earlier position, so that the remaining turns could also start the episode
        runner = make_runner("ALFWorld", agent, "react", model_server, context_tokens=3000)
        trajectory = await runner.play_episode({"task_index": task})
        assert trajectory.outcome is Outcome.SUCCESS and len(trajectory.timesteps) < 15


@pytest.mark.parametrize("refusal", ["This model's maximum context length is 600 tokens.", "the prompt is too long"])
async def test_a_chat_far_below_the_profiles_limit_is_shortened_for_a_smaller_context(refusal: str) -> None:
    def refuse_long_chats(pending: PendingRequest) -> None:
        n_chars = sum(len(message["content"]) for message in pending.request.json()["messages"])
        error = json.dumps({"error": {"message": refusal}}).encode()
        short = completion_response('Action: up({"by": 1})')
        pending.send(http_response(400, error) if n_chars > 2400 else short)

    with RudeModel(refuse_long_chats) as server:
        manager = inference_manager(server.url, format="react", context_tokens=16_384)
        agent = ReactAgent(inference_mngr=manager, settings=agent_settings(format="react", context_tokens=16_384))
        agent.enter(EpisodeInfo(episode_header(), lambda: 60.0, lambda delta: None, max_rounds=9))
        for _ in range(3):
            _, action = await agent.act([user("a corridor " * 150)], TOOLS)
            assert isinstance(action, Action)
    assert len(server.requests) > 3
