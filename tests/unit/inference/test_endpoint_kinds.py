from __future__ import annotations

import asyncio
import json
import logging
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from runner.config.profile import EndpointConfig, FeedbackMetrics, Price
from runner.errors import InferenceFault
from runner.inference import InferenceManager
from runner.tracing import SpanList, Tracer
from runner.types import Span, StreamDelta, Tokens
from tests.support.inference import (
    TOOLS,
    VirtualTime,
    agent_settings,
    describe_delta,
    episode_header,
    infer,
    inference_manager,
)
from tests.support.rude_model import (
    Behavior,
    PendingRequest,
    RudeModel,
    completion_response,
    delta_chunk,
    http_response,
    sse_event,
    stream_response,
    streamed_answer,
)

KEY = "sk-0123456789abcdef"
GATEWAY_ID = "01a1febd-adab-7631-81fc-0d45a7fed731"
TENSORZERO = http_response(200, b'{"gateway": "ok", "clickhouse": "ok"}')


async def test_a_gateway_is_recognised_once_and_keeps_the_episode() -> None:
    with gateway(completion_response("up", episode_id=GATEWAY_ID)) as running:
        manager = InferenceManager(agent_settings(mode="api", api_endpoint=running.url), {"TENSORZERO_API_KEY": KEY})
        first, second = manager.session(episode_header()), manager.session(episode_header("episode-2"))
        for session in (first, first, second):
            assert (await infer(session)).usage.model == "qwen35_9b"
        asked = [r for r in running.requests if r.path.startswith("/openai") and r.json()["model"]]
        assert [r.path for r in running.requests].count("/health") == 1
    assert [r.json().get("tensorzero::episode_id") for r in asked] == [None, GATEWAY_ID, None]
    assert {r.json()["model"] for r in asked} == {"tensorzero::model_name::qwen35_9b"}
    assert {r.headers["authorization"] for r in asked} == {f"Bearer {KEY}"}
    assert manager.endpoints[0].kind == "tensorzero"


async def test_other_kinds_are_recognised_too(model: RudeModel) -> None:
    refusing = RudeModel(
        completion_response(""), routes={"/openai/v1/chat/completions": http_response(400, b'{"error": "say tensorzero::"}')}
    )
    ollama = RudeModel(completion_response("up"), routes={"/api/tags": http_response(200, b'{"models": []}')})
    with refusing, ollama:
        for server, kind in ((refusing, "tensorzero"), (ollama, "ollama"), (model, "openai")):
            manager = InferenceManager(agent_settings(EndpointConfig(url=server.url)), {})
            if kind == "tensorzero":
                await manager.check()
            else:
                await infer(manager)
            assert manager.endpoints[0].kind == kind
    assert "authorization" not in refusing.requests[0].headers


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_server_that_is_not_ready_to_say_what_it_is_is_asked_again(status: int, model: RudeModel) -> None:
    virtual_time = VirtualTime()
    starting = http_response(status, b"starting", Retry_After="7")
    routes: dict[str, bytes] = {"/health": starting, "/openai/v1/chat/completions": starting, "/api/tags": starting}
    with RudeModel(completion_response("wrong"), routes=routes) as late:
        endpoints = (
            EndpointConfig(url=late.url, name="late"),
            EndpointConfig(url=model.url, name="other", kind="openai"),
        )
        manager = InferenceManager(agent_settings(*endpoints), {}, virtual_time.timing())
        first = await infer(manager)
        assert (first.usage.endpoint, manager.endpoints[0].kind) == ("other", "auto")
        assert first.usage.warnings == (f"late: HTTP {status}: starting; the server asks to wait 7 s",)
        routes |= {"/health": TENSORZERO, "/openai/v1/chat/completions": completion_response("up")}
        virtual_time.elapsed_s += 7
        assert (await infer(manager)).usage.endpoint == "late"
    assert manager.endpoints[0].kind == "tensorzero"


@pytest.mark.parametrize("gone", [404, 405, None])
async def test_another_server_in_the_place_of_one_that_was_known(gone: int | None, model: RudeModel) -> None:
    virtual_time = VirtualTime()
    routes: dict[str, Behavior] = {"/health": TENSORZERO, "/openai/v1/chat/completions": completion_response("gateway")}
    with RudeModel(completion_response("plain"), routes=routes) as server:
        endpoints = (EndpointConfig(url=server.url, name="a"), EndpointConfig(url=model.url, name="b", kind="openai"))
        manager = InferenceManager(agent_settings(*endpoints), {}, virtual_time.timing())
        assert (await infer(manager)).message["content"] == "gateway"
        routes |= {"/health": http_response(404, b""), "/openai/v1/chat/completions": http_response(gone, b"") if gone else b""}
        assert (await infer(manager)).usage.endpoint == "b"
        routes["/openai/v1/chat/completions"] = http_response(404, b"")
        virtual_time.elapsed_s += 60
        assert (await infer(manager)).message["content"] == "plain"
    assert manager.endpoints[0].kind == "openai"


@pytest.mark.parametrize("id", ["", "../../etc", "x" * 36, 5])
async def test_an_episode_id_that_is_none_is_not_sent_back(id: object) -> None:
    with gateway(completion_response("up", episode_id=id)) as running:
        session = InferenceManager(agent_settings(mode="api", api_endpoint=running.url), {}).session(episode_header())
        await infer(session)
        await infer(session)
        assert "tensorzero::episode_id" not in running.requests[-1].json()


async def test_feedback_is_sent_once_the_episode_is_over() -> None:
    with gateway(completion_response("up", episode_id=GATEWAY_ID), feedback=http_response(200, b"{}")) as running:
        settings = agent_settings(mode="api", api_endpoint=running.url, feedback=FeedbackMetrics(reward="r", success="s"))
        manager = InferenceManager(settings, {"TENSORZERO_API_KEY": KEY})
        await infer(manager.session(episode_header()))
        for episode_id in ("episode-1", "episode-1", "never played"):
            manager.feedback(episode_id, 0.5, True)
        manager.close()
        told = [request for request in running.requests if request.path == "/feedback"]
    assert [r.json() for r in told] == [
        {"metric_name": "r", "value": 0.5, "episode_id": GATEWAY_ID},
        {"metric_name": "s", "value": True, "episode_id": GATEWAY_ID},
    ]
    assert told[0].headers["authorization"] == f"Bearer {KEY}"


async def test_feedback_that_is_refused_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    refused = http_response(400, f'{{"error": "no database for {KEY}"}}'.encode())
    with gateway(completion_response("up", episode_id=GATEWAY_ID), feedback=refused) as running, caplog.at_level(logging.WARNING):
        settings = agent_settings(mode="api", api_endpoint=running.url, feedback=FeedbackMetrics(reward="r", success="s"))
        manager = InferenceManager(settings, {"TENSORZERO_API_KEY": KEY})
        await infer(manager.session(episode_header()))
        manager.feedback("episode-1", 0.5, True)
        manager.close()
    assert [record.levelname for record in caplog.records if record.name.startswith("runner")] == ["WARNING"]
    assert "no database for ***" in caplog.text


