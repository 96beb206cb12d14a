"""Workers that share the circuit breakers and rate limits of their driver, over real HTTP servers."""

from __future__ import annotations

import asyncio
import json

import pytest

from runner.config import AgentSettings
from runner.config.profile import EndpointConfig, FeedbackMetrics, LessonKey, RateLimit
from runner.errors import InferenceFault
from runner.inference.endpoints import resolve_endpoints
from runner.inference.gate import LocalGate
from runner.inference.manager import InferenceManager
from runner.worker.frames import EndpointLesson, Release, decode_worker_frame
from runner.worker.remote_gate import RemoteGate, remote_manager
from tests.support.driver_link import DriverGateLink
from tests.support.inference import TOOLS, agent_settings, episode_header, infer
from tests.support.manual_clock import ManualClock
from tests.support.rude_model import (
    PendingRequest,
    RudeModel,
    chat_completion,
    completion_response,
    http_response,
)

KEY = "sk-0123456789abcdef"


class Workers:
    """Workers of one driver."""

    def __init__(self, settings: AgentSettings, n: int = 2) -> None:
        self.clock = ManualClock()
        self.gate = LocalGate(resolve_endpoints(settings, {}), self.clock)
        self.links = [DriverGateLink(self.gate, f"worker-{number}") for number in range(n)]
        pairs = [remote_manager(settings, {"MINE": KEY}, link, self.clock) for link in self.links]
        self.managers = [manager for manager, _ in pairs]
        self.gates: list[RemoteGate] = [gate for _, gate in pairs]
        for link, gate in zip(self.links, self.gates, strict=True):
            link.watch(gate)


def settings_of(*servers: RudeModel, **agent: object) -> AgentSettings:
    endpoints = [
        EndpointConfig(url=server.url, name=name, kind="openai") for server, name in zip(servers, "ab", strict=False)
    ]
    return agent_settings(*endpoints, **agent)


async def test_without_failures_and_limits_a_worker_sends_no_frame() -> None:
    with RudeModel(completion_response("up")) as server:
        workers = Workers(settings_of(server))
        await asyncio.gather(*(infer(workers.managers[0]) for _ in range(8)))
    assert (workers.links[0].sent, workers.links[0].requests) == ([], [])


async def test_an_endpoint_that_fails_for_a_worker_rests_there_and_the_driver_knows() -> None:
    with RudeModel(completion_response("up")) as gone:
        pass
    with RudeModel(completion_response("up")) as fallback:
        workers = Workers(settings_of(gone, fallback))
        for _ in range(2):
            assert (await infer(workers.managers[0])).usage.endpoint == "b"
        assert [gate.wait_s("a") for gate in (*workers.gates, workers.gate)] == [1, 0, 1]
        (health, _) = await workers.managers[0].check()
        assert health.rest_s == 1
        assert (await infer(workers.managers[1])).usage.warnings[0].startswith("a: no connection")


async def test_an_endpoint_with_limits_that_fails_for_one_worker_is_closed_to_all() -> None:
    with RudeModel(completion_response("up")) as gone:
        pass
    with RudeModel(completion_response("up")) as fallback:
        workers = Workers(settings_of(gone, fallback, rate_limits={"a": RateLimit(concurrent_requests=4)}))
        assert [(await infer(manager)).usage.endpoint for manager in workers.managers] == ["b", "b"]
        assert workers.links[1].requests  # the driver refused it
        assert workers.gates[1].wait_s("a") == 0


async def test_the_driver_learns_of_the_first_success_after_a_failure() -> None:
    busy = http_response(429, b"", Retry_After="7")
    with RudeModel(busy, completion_response("up")) as server, RudeModel(completion_response("b")) as fallback:
        workers = Workers(settings_of(server, fallback))
        assert (await infer(workers.managers[0])).usage.endpoint == "b"
        assert workers.gate.wait_s("a") == 7
        workers.clock.now += 7
        assert (await infer(workers.managers[0])).usage.endpoint == "a"
        assert workers.gate.wait_s("a") == 0
        n_frames = len(workers.links[0].sent)
        assert (await infer(workers.managers[0])).usage.endpoint == "a"
        assert len(workers.links[0].sent) == n_frames


async def test_the_limit_of_requests_in_flight_holds_over_workers_and_cancellation_frees_places() -> None:
    n, most = 0, 0

    def count(pending: PendingRequest) -> None:
        nonlocal n, most
        n += 1
        most = max(most, n)
        pending.stopping.wait(0.001)
        n -= 1
        pending.send(completion_response("up"))

    limits = {"a": RateLimit(concurrent_requests=1)}
    with RudeModel(count) as server:
        workers = Workers(settings_of(server, rate_limits=limits))
        tasks = [asyncio.create_task(infer(workers.managers[number % 2])) for number in range(16)]
        hanging = [asyncio.create_task(workers.gates[0].enter("a", f"hanging {number}", 60)) for number in range(3)]
        await asyncio.sleep(0)
        for task in hanging:
            task.cancel()
        await asyncio.gather(*tasks)
        assert most == 1
        assert await workers.gates[0].enter("a", "last", 60)
        with pytest.raises(InferenceFault, match="no time left"):
            await infer(workers.managers[1], time_left_s=0.01)
        workers.gate.release_all("worker-0")
        assert (await infer(workers.managers[1])).message["content"] == "up"


NO_TOOLS = http_response(400, b'{"error": {"message": "m does not support tools"}}')
LESSON = LessonKey("a", "m", with_tools=True)


async def infer_with_tools(manager: InferenceManager) -> tuple[str, ...]:
    """Return the warnings of an answer."""
    return (await infer(manager, tools=TOOLS)).usage.warnings


async def test_one_worker_learns_what_an_endpoint_takes_and_the_others_wait_for_the_lesson() -> None:
    arrived, loop = asyncio.Event(), asyncio.get_running_loop()

    def answer_after_the_other_has_requested(pending: PendingRequest) -> None:
        loop.call_soon_threadsafe(arrived.set)
        workers.links[1].has_requested.wait(60)
        pending.send(completion_response("up"))

    script = (NO_TOOLS, answer_after_the_other_has_requested, NO_TOOLS, completion_response("up"))
    with RudeModel(*script) as server:
        workers = Workers(settings_of(server, model="m"))
        first = asyncio.create_task(infer_with_tools(workers.managers[0]))
        await asyncio.wait_for(arrived.wait(), 60)
        learned = await infer_with_tools(workers.managers[1]), await first
        assert [await infer_with_tools(manager) for manager in workers.managers] == [(), ()]
        with_tools = ["tools" in request.json() for request in server.chat_requests]
    assert learned == ((), ("a: learned tools as text from HTTP 400: m does not support tools",))
    assert with_tools == [True, False, True, False, False, False]
    assert [type(decode_worker_frame(frame)) for frame in workers.links[0].sent] == [EndpointLesson, Release]
    late = RemoteGate(workers.links[0], resolve_endpoints(settings_of(server), {}), workers.clock)
    assert late.lessons.get(LESSON).tools == "native"
    workers.links[0].watch(late)
    assert late.lessons.get(LESSON).tools == "text"


async def test_a_lost_worker_frees_the_place_of_the_learner() -> None:
    arrived, loop = asyncio.Event(), asyncio.get_running_loop()

    def hold(pending: PendingRequest) -> None:
        loop.call_soon_threadsafe(arrived.set)
        pending.stopping.wait(60)

    with RudeModel(NO_TOOLS, hold, NO_TOOLS, completion_response("up")) as server:
        workers = Workers(settings_of(server, model="m"))
        lost = asyncio.create_task(infer_with_tools(workers.managers[0]))
        await asyncio.wait_for(arrived.wait(), 60)
        other = asyncio.create_task(infer_with_tools(workers.managers[1]))
        await asyncio.to_thread(workers.links[1].has_requested.wait, 60)
        workers.gate.release_all("worker-0")
        assert await other == ("a: learned tools as text from HTTP 400: m does not support tools",)
        lost.cancel()
    assert workers.gate.lessons.get(LESSON).tools == "text"


async def test_feedback_is_sent_by_the_driver_with_its_own_key() -> None:
    gateway_id = "01234567-89ab-7def-8123-456789abcdef"
    reply = chat_completion({"role": "assistant", "content": "up"}, episode_id=gateway_id)
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def receive(pending: PendingRequest) -> None:
        pending.send(http_response(200, b"{}"))
        loop.call_soon_threadsafe(done.set)

    with RudeModel(completion_response("up"), routes={"/feedback": receive}) as server:
        server.routes = {**server.routes, "/openai/v1/chat/completions": http_response(200, json.dumps(reply).encode())}
        endpoint = EndpointConfig(url=server.url, name="gate", kind="tensorzero", api_key_env="MINE")
        settings = agent_settings(endpoint, feedback=FeedbackMetrics(reward="reward"))
        workers = Workers(settings)
        driver = InferenceManager(settings, {"MINE": KEY})
        await infer(workers.managers[0].session(episode_header("e1")))
        (link,) = workers.links[0].gateway_links
        assert (link.episode_id, link.endpoint, link.gateway_id) == ("e1", "gate", gateway_id)
        assert KEY.encode() not in b"".join(workers.links[0].sent)
        driver.remember_gateway_id(link.episode_id, link.endpoint, link.gateway_id)
        driver.remember_gateway_id("e1", "unknown", gateway_id)
        workers.managers[0].feedback("e1", 1.0, True)  # a worker keeps no ids
        driver.feedback("e1", 0.5, True)
        await asyncio.wait_for(done.wait(), 60)
        driver.close()
        (sent,) = [request for request in server.requests if request.path == "/feedback"]
    assert sent.json() == {"metric_name": "reward", "value": 0.5, "episode_id": gateway_id}
    assert sent.headers["authorization"] == f"Bearer {KEY}"
