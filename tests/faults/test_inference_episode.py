"""Episodes over an endpoint that misbehaves: what was played stays, and the next endpoint goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from runner import plugins
from runner.config.profile import EndpointConfig
from runner.episode.runner import Runner
from runner.inference import InferenceManager
from runner.serve.mock_llm import Behavior, EchoResponder, Fault, ModelServer, ScriptedReply, ScriptResponder
from runner.types import Limits, Outcome, Trajectory
from tests.support.inference import agent_settings, episode_header, infer

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
"""What ``serve-model`` can do wrong, and the warning that follows."""

CASES = [(kind, stream) for kind in FAULT_KINDS for stream in (False, True) if not (kind == "huge" and stream)]
"""A huge stream is in ``test_inference.py``: this server goes on with it for long after the client has left."""


@pytest.fixture(scope="module")
def main() -> Iterator[ModelServer]:
    with ModelServer(
        ScriptResponder([ScriptedReply(content="Action: move up")]), behavior=Behavior(drip_s=0.05)
    ) as server:
        yield server


@pytest.fixture(scope="module")
def fallback() -> Iterator[ModelServer]:
    with ModelServer(EchoResponder()) as server:
        yield server


def manager_of(*servers: ModelServer, stream: bool, timeout_sec: float = 20.0) -> InferenceManager:
    endpoints = [
        EndpointConfig(url=server.url, name=name) for server, name in zip(servers, ("main", "fallback"), strict=False)
    ]
    settings = agent_settings(*endpoints, model="agentgym-test-model", stream=stream, timeout_sec=timeout_sec)
    return InferenceManager.from_profile(settings, {})


@pytest.mark.parametrize(("kind", "stream"), CASES)
async def test_the_fallback_goes_on_with_the_episode(
    kind: str, stream: bool, main: ModelServer, fallback: ModelServer
) -> None:
    main.inject()
    manager = manager_of(main, fallback, stream=stream, timeout_sec=1.0 if kind in ("hang", "drip") else 20.0)
    session = manager.session(episode_header())
    assert (await infer(session)).usage.endpoint == "main"
    main.inject(Fault(kind, times=1))
    usage = (await infer(session)).usage
    assert (usage.endpoint, len(usage.warnings)) == ("fallback", 1)
    assert usage.warnings[0].startswith("main: ")
    assert FAULT_KINDS[kind] in usage.warnings[0]


async def played(third: ScriptedReply, *, timeout_sec: float = 20.0, max_duration_s: float = 60.0) -> Trajectory:
    """Maze with a model that goes up, whose third answer is this one; there is no fallback."""
    up = ScriptedReply(content="Action: move up")
    with ModelServer(ScriptResponder([up, up, third, third, third])) as server:
        manager = manager_of(server, stream=True, timeout_sec=timeout_sec)
        runner = Runner(
            env_cfg=plugins.build_target(plugins.ENVS, "Maze"),
            agent_cfg=plugins.build_target(plugins.AGENTS, "react", settings=manager._context.settings),
            inference_mngr=manager,
            limits=Limits(max_rounds=4, max_duration_s=max_duration_s),
        )
        return await runner.play_episode({"task_index": 0})


@pytest.mark.parametrize(
    ("third", "said"),
    [
        (
            ScriptedReply(status=400, content="context of 9 tokens"),
            "rejected the request: HTTP 400: context of 9 tokens",
        ),
        (ScriptedReply(status=401, content="expired"), "no model answered; main (http://127.0.0.1:"),
        (ScriptedReply(fault="hang"), "no complete answer within 0.5 s"),
    ],
)
async def test_an_episode_that_no_model_can_go_on_with_keeps_its_steps(third: ScriptedReply, said: str) -> None:
    episode = await played(third, timeout_sec=0.5)
    assert (episode.outcome, len(episode.timesteps)) == (Outcome.ERROR, 2)
    assert episode.error_info is not None
    assert episode.error_info.type == "inference_fault"
    assert said in episode.error_info.message
    assert all(step.endpoint == "main" and step.tokens for step in episode.timesteps)


async def test_an_episode_whose_time_is_up_while_the_model_thinks_has_timed_out() -> None:
    episode = await played(ScriptedReply(fault="hang"), max_duration_s=1.0)
    assert (episode.outcome, episode.error_info, len(episode.timesteps)) == (Outcome.TIMEOUT, None, 2)
