"""Episodes over a misbehaving endpoint: played steps are kept, and the next endpoint answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from runner import plugins
from runner.config.profile import EndpointConfig
from runner.episode.factory import EpisodeFactory
from runner.inference.manager import InferenceManager
from runner.serve.mock_llm.app import EchoResponder, ScriptResponder
from runner.serve.mock_llm.script import Behavior, Fault, ScriptedReply
from runner.types import Limits, Outcome, Trajectory
from tests.support.inference import agent_settings, episode_header, infer
from tests.support.model_server import ModelServer

pytestmark = pytest.mark.long

FAULT_KINDS = {
    "429": "HTTP 429",
    "500": "HTTP 500",
    "401": "HTTP 401",
    "404": "HTTP 404",
    "drop": "connection broke",
    "drip": "no complete answer within",
    "empty-choices": "empty",
    "hang": "no complete answer within",
    "huge": "larger than",
    "invalid-json": "not a JSON object",
    "truncated": "connection broke",
    "wrong-type": "media type text/html",
}
"""Faults of ``serve-model``, with a part of the resulting warning."""

CASES = [(kind, stream) for kind in FAULT_KINDS for stream in (False, True) if not (kind == "huge" and stream)]
"""A huge stream is in ``test_inference.py``, because this server keeps sending it after the client disconnects."""


@pytest.fixture(scope="module")
def main_server() -> Iterator[ModelServer]:
    with ModelServer(
        ScriptResponder([ScriptedReply(content="Action: move up")]), behavior=Behavior(drip_s=0.05)
    ) as server:
        yield server


@pytest.fixture(scope="module")
def fallback_server() -> Iterator[ModelServer]:
    with ModelServer(EchoResponder()) as server:
        yield server


def manager_of(*servers: ModelServer, stream: bool, timeout_sec: float = 20.0) -> InferenceManager:
    endpoints = [
        EndpointConfig(url=server.url, name=name) for server, name in zip(servers, ("main", "fallback"), strict=False)
    ]
    settings = agent_settings(*endpoints, model="agentgym-test-model", stream=stream, timeout_sec=timeout_sec)
    return InferenceManager(settings, {})


@pytest.mark.parametrize(("kind", "stream"), CASES)
async def test_the_fallback_answers_in_place_of_a_faulty_endpoint(
    kind: str, stream: bool, main_server: ModelServer, fallback_server: ModelServer
) -> None:
    main_server.inject()
    manager = manager_of(
        main_server, fallback_server, stream=stream, timeout_sec=1.0 if kind in ("hang", "drip") else 20.0
    )
    session = manager.session(episode_header())
    assert (await infer(session)).usage.endpoint == "main"
    main_server.inject(Fault(kind))
    usage = (await infer(session)).usage
    assert (usage.endpoint, len(usage.warnings)) == ("fallback", 1)
    assert usage.warnings[0].startswith("main: ")
    assert FAULT_KINDS[kind] in usage.warnings[0]


async def play_maze(
    third_reply: ScriptedReply, *, timeout_sec: float = 20.0, max_duration_s: float = 60.0
) -> Trajectory:
    """Play Maze with a model that moves up twice and then answers ``third_reply``; there is no fallback."""
    up = ScriptedReply(content="Action: move up")
    with ModelServer(ScriptResponder([up, up, *[third_reply] * 9])) as server:
        manager = manager_of(server, stream=True, timeout_sec=timeout_sec)
        runner = EpisodeFactory(
            env_cfg=plugins.find(plugins.ENVS, "Maze").config(),
            agent_cfg=plugins.find(plugins.AGENTS, "react").config(settings=manager._context.settings),
            inference_mngr=manager,
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
