"""Episodes over an endpoint that stops working: the played steps are kept."""

from __future__ import annotations

import pytest

from runner import plugins
from runner.config.profile import EndpointConfig
from runner.episode.factory import EpisodeFactory
from runner.inference.manager import InferenceManager
from runner.serve.mock_llm.app import ScriptResponder
from runner.serve.mock_llm.script import ScriptedReply
from runner.types import Limits, Outcome, Trajectory
from tests.support.inference import agent_settings
from tests.support.model_server import ModelServer

pytestmark = pytest.mark.long


async def play_maze(
    third_reply: ScriptedReply, *, timeout_sec: float = 20.0, max_duration_s: float = 60.0
) -> Trajectory:
    """Play Maze with a model that moves up twice and then answers ``third_reply``; there is no fallback."""
    up = ScriptedReply(content="Action: move up")
    with ModelServer(ScriptResponder([up, up, *[third_reply] * 9])) as server:
        endpoint = EndpointConfig(url=server.url, name="main")
        settings = agent_settings(endpoint, model="agentgym-test-model", stream=True, timeout_sec=timeout_sec)
        runner = EpisodeFactory(
            env_cfg=plugins.find(plugins.ENVS, "Maze").config(),
            agent_cfg=plugins.find(plugins.AGENTS, "react").config(settings=settings),
            inference_mngr=InferenceManager(settings, {}),
            limits=Limits(max_rounds=4, max_duration_s=max_duration_s),
        )
        return await runner.play_episode({"task_index": 0})


@pytest.mark.parametrize(
    ("third_reply", "message"),
    [
        (
            ScriptedReply(status=400, content="context of 9 tokens"),
            "model agentgym-test-model): HTTP 400: context of 9 tokens. Check agent.model",
        ),
        (ScriptedReply(status=401, content="expired"), "no model answered; main (http://127.0.0.1:"),
        (ScriptedReply(fault="hang"), "no complete answer within 0.5 s (agent.timeout_sec)"),
    ],
)
async def test_an_episode_without_a_working_model_keeps_its_steps(third_reply: ScriptedReply, message: str) -> None:
    episode = await play_maze(third_reply, timeout_sec=0.5)
    assert (episode.outcome, len(episode.timesteps)) == (Outcome.ERROR, 2)
    assert episode.error_info is not None
    assert episode.error_info.type == "inference_fault"
    assert message in episode.error_info.message
    assert all(step.endpoint == "main" and step.tokens for step in episode.timesteps)


async def test_an_episode_whose_time_ends_during_an_inference_times_out() -> None:
    episode = await play_maze(ScriptedReply(fault="hang"), max_duration_s=1.0)
    assert (episode.outcome, episode.error_info, len(episode.timesteps)) == (Outcome.TIMEOUT, None, 2)
