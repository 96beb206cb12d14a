"""The bottleneck of real steps: a model agent plays over HTTP against an endpoint with metrics, one part slowed."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.agents.model import ReactAgent
from runner.config.profile import EndpointConfig
from runner.episode.factory import EpisodeContext, EpisodeFactory
from runner.events.control import StartArgs
from runner.inference.manager import InferenceManager
from runner.inference.metrics_text import SERVER_NAMES
from runner.results.bottleneck import Bottleneck, ServerState, find_bottleneck
from runner.store.episode_file import decode_episode
from runner.types import Action, Chat, Limits, StepResult, TimeStep, ToolSchema
from runner.types.time_shares import Cause
from tests.support.episodes import new_id
from tests.support.fakes import Counter
from tests.support.inference import agent_settings, episode_header
from tests.support.node_process import NodeProcess
from tests.support.rude_model import PendingRequest, RudeModel, chat_completion, http_response
from tests.tui.sessions.test_control_client import node_control, wait_for_batch

SLOW_S, FAST_S = 0.2, 0.02
"""Seconds of the slow part and of each other one."""
CAUSES: tuple[Cause, ...] = ("queue", "prefill", "decode", "environment", "endpoint", "own")
MAX_PLAYS, STALL_S = 10, 0.1
"""How often a step is played at most whose time exceeds that of its parts by so many seconds, on a busy machine."""
UP = "Thought: on.\nAction: up"


class SlowModel:
    """An endpoint that waits in one phase, and whose ``/metrics`` say so as vLLM's do."""

    def __init__(self, slow: Cause, *, reports: bool) -> None:
        self.seconds = {part: SLOW_S if part == slow else FAST_S for part in ("queue", "prefill", "decode")}
        self.reports = reports
        self.is_queued = slow == "queue"
        self.n_answers = 0

    def answer(self, pending: PendingRequest) -> None:
        time.sleep(sum(self.seconds.values()))
        self.n_answers += 1
        timings = {"prompt_ms": self.seconds["prefill"] * 1e3, "predicted_ms": self.seconds["decode"] * 1e3}
        fields: dict[str, Any] = {"timings": timings} if self.reports else {}
        body = json.dumps(chat_completion({"role": "assistant", "content": UP}, **fields)).encode()
        pending.send(http_response(200, body, Connection="close"))

    def metrics(self, pending: PendingRequest) -> None:
        waiting = 12 if self.is_queued else 0
        lines = [f"vllm:num_requests_waiting {waiting}", f"vllm:kv_cache_usage_perc {0.97 if waiting else 0.2}"]
        for part, seconds in self.seconds.items():
            lines += [f"vllm:request_{part}_time_seconds_sum {seconds * self.n_answers}"]
            lines += [f"vllm:request_{part}_time_seconds_count {self.n_answers}"]
        pending.send(http_response(200, "\n".join(lines).encode(), "text/plain", Connection="close"))


class SlowCounter(Counter):
    """Takes long for each step."""

    def step(self, action: Action) -> StepResult:
        time.sleep(SLOW_S)
        return super().step(action)


class SlowAgent(ReactAgent):
    """Takes long before each answer."""

    async def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> Any:  # noqa: ANN401
        await asyncio.sleep(SLOW_S)
        return await super().act(observation, tool_schemas)


async def play(slow: Cause, *, reports: bool) -> Bottleneck:
    """Play three steps, read the metrics between them, and return the bottleneck of the last one."""
    model, broken = SlowModel(slow, reports=reports), slow == "endpoint"

    def fail(pending: PendingRequest) -> None:
        time.sleep(SLOW_S)
        pending.send(http_response(503, b"{}", Connection="close"))

    with RudeModel(model.answer, routes={"/metrics": model.metrics}) as server, RudeModel(fail) as gateway:
        endpoints = [EndpointConfig(url=server.url, name="lab", kind="openai")]
        if broken:
            endpoints.insert(0, EndpointConfig(url=gateway.url, name="gateway", kind="openai"))
        manager = InferenceManager(agent_settings(*endpoints, model="small", format="react"), {})
        await _play_once(manager, slow)
        await manager.read_servers()
        await _play_once(manager, slow)
        loads = await manager.read_servers()
        planned_s = sum(model.seconds.values()) + (SLOW_S if slow in ("environment", "endpoint", "own") else 0.0)
        for _ in range(MAX_PLAYS):
            if broken:
                manager._context.gate.report("gateway", None, "")  # else its breaker saves the second episode
            steps = await _play_once(manager, slow)
            if sum(map(_wall_s, steps)) - planned_s < STALL_S:  # else this machine was the slow part
                break
    states = [
        ServerState(
            endpoint=load.endpoint,
            server=SERVER_NAMES[load.server],
            waiting=load.waiting,
            kv_cache=load.kv_cache,
            tokens_per_s=load.tokens_per_s,
            **msgspec.structs.asdict(load.times),
        )
        for load in loads
    ]
    return find_bottleneck(steps, states)


def _wall_s(step: TimeStep) -> float:
    return 0.0 if step.phases is None else step.phases.model + step.phases.env + step.phases.own


async def _play_once(manager: InferenceManager, slow: Cause) -> list[TimeStep]:
    agent, environment = SlowAgent if slow == "own" else ReactAgent, SlowCounter if slow == "environment" else Counter
    runner = EpisodeFactory(
        env_cfg={"_target_": f"{environment.__module__}.{environment.__name__}"},
        agent_cfg={"_target_": f"{agent.__module__}.{agent.__name__}", "settings": manager._context.settings},
        inference_mngr=manager,
        limits=Limits(max_rounds=1, max_duration_s=60),
    )
    return (await runner.play_episode(context=EpisodeContext(header=episode_header()))).timesteps


def check(bottleneck: Bottleneck, cause: Cause) -> None:
    """Check that the cause is named, and the sentences of a queue and of a failure as a whole."""
    assert bottleneck.cause == cause, bottleneck.sentence
    if cause == "queue":
        assert bottleneck.sentence == "waiting for the model: 12 requests queued at vLLM, KV cache 97%"
    if cause == "endpoint":
        assert bottleneck.sentence.startswith("an endpoint fails: gateway (")
        assert bottleneck.sentence.endswith("; lab answers instead")


@pytest.mark.parametrize("cause", CAUSES)
async def test_the_slow_part_is_named(cause: Cause) -> None:
    check(await play(cause, reports=cause == "decode"), cause)


PROFILE = """
id: slow
environments: {{lightweight: [{{name: Maze}}]}}
agent:
  mode: local
  model: small
  local_fallback: null
  stream: false
  endpoints: [{{url: "{url}", name: lab, kind: openai}}]
"""


@pytest.mark.long
async def test_the_workers_of_a_node_split_answers_by_the_metrics_of_the_server(tmp_path: Path) -> None:
    model, batch_id = SlowModel("queue", reports=False), new_id()

    def answer(pending: PendingRequest) -> None:
        if pending.request.json().get("messages"):
            model.answer(pending)
        else:  # a health check
            pending.send(http_response(400, b'{"error": "no messages"}', Connection="close"))

    with RudeModel(answer, routes={"/metrics": model.metrics}) as server:
        (tmp_path / "slow.yaml").write_text(PROFILE.format(url=server.url), encoding="utf-8")
        with NodeProcess(tmp_path / "data", "--config", str(tmp_path / "slow.yaml")) as node:
            async with node_control(node) as control, asyncio.timeout(120):
                args = StartArgs(batch_id=batch_id, envs=["Maze"], agent="react", model="small")
                args.repeat, args.workers, args.concurrency, args.max_rounds = 2, 1, 1, 12
                await control.start(args)
                await wait_for_batch(control, batch_id)
    files = sorted((tmp_path / "data" / "runs").rglob("*.json"))
    steps = [step for file in files for step in decode_episode(file.read_bytes(), file).timesteps]
    assert len(steps) == 24
    phases = steps[-1].phases
    assert phases is not None
    assert phases.about
    assert [phases.queue, phases.prefill, phases.decode] == pytest.approx([*model.seconds.values()], rel=0.5, abs=0.02)
    assert find_bottleneck(steps[-12:]).cause == "queue"
