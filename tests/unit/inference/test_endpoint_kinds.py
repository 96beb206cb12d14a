"""Detected kinds of endpoints, and the episode ids and feedback of a gateway."""

from __future__ import annotations

import logging

import pytest

from runner.config.profile import EndpointConfig, FeedbackMetrics
from runner.inference.manager import InferenceManager
from tests.support.inference import VirtualTime, agent_settings, episode_header, infer
from tests.support.rude_gateway import CHAT_PATH, GATEWAY_HEALTH, GATEWAY_ID, rude_gateway
from tests.support.rude_model import Behavior, PendingRequest, RudeModel, completion_response, http_response

KEY = "sk-0123456789abcdef"


async def test_a_gateway_is_detected_once_and_keeps_its_episode_id() -> None:
    with rude_gateway(completion_response("up", episode_id=GATEWAY_ID)) as server:
        manager = InferenceManager(agent_settings(mode="api", api_endpoint=server.url), {"TENSORZERO_API_KEY": KEY})
        first, second = manager.session(episode_header()), manager.session(episode_header("episode-2"))
        for session in (first, first, second):
            assert (await infer(session)).usage.model == "qwen35_9b"
        chat_requests = [r for r in server.requests if r.path.startswith("/openai") and r.body]
        assert [r.path for r in server.requests].count("/health") == 1
    assert [r.json().get("tensorzero::episode_id") for r in chat_requests] == [None, GATEWAY_ID, None]
    assert {r.json()["model"] for r in chat_requests} == {"tensorzero::model_name::qwen35_9b"}
    assert {r.headers["authorization"] for r in chat_requests} == {f"Bearer {KEY}"}
    assert manager.endpoints[0].kind == "tensorzero"


async def test_each_kind_of_server_is_detected(model_server: RudeModel) -> None:
    def reject(pending: PendingRequest) -> None:
        refusal = http_response(400, b'{"error": {"message": "missing field `messages`"}}')
        pending.send(http_response(405, b"") if pending.request.method == "GET" else refusal)

    rejecting = RudeModel(completion_response(""), routes={CHAT_PATH: reject})
    ollama = RudeModel(completion_response("up"), routes={"/api/tags": http_response(200, b'{"models": []}')})
    both = http_response(200, b'{"models": [{"name": "a"}], "data": [{"id": "a"}]}')
    llama_cpp = RudeModel(completion_response("up"), routes={"/api/tags": both})
    with rejecting, ollama, llama_cpp:
        kinds = {rejecting: "tensorzero", ollama: "ollama", llama_cpp: "openai", model_server: "openai"}
        for server, kind in kinds.items():
            manager = InferenceManager(agent_settings(EndpointConfig(url=server.url)), {})
            if kind == "tensorzero":
                await manager.check()
            else:
                await infer(manager)
            assert manager.endpoints[0].kind == kind
    assert "authorization" not in rejecting.requests[0].headers


@pytest.mark.parametrize("status", [429, 503])
async def test_the_kind_of_a_starting_server_is_detected_later(status: int, model_server: RudeModel) -> None:
    virtual_time = VirtualTime()
    response = http_response(status, b"starting", Retry_After="7")
    routes: dict[str, bytes] = {"/health": response, CHAT_PATH: response, "/api/tags": response}
    with RudeModel(completion_response("wrong"), routes=routes) as starting_server:
        endpoints = (
            EndpointConfig(url=starting_server.url, name="late"),
            EndpointConfig(url=model_server.url, name="other", kind="openai"),
        )
        manager = InferenceManager(agent_settings(*endpoints), {}, virtual_time.timing())
        first = await infer(manager)
        assert (first.usage.endpoint, manager.endpoints[0].kind) == ("other", "auto")
        assert first.usage.warnings == (f"late: HTTP {status}: starting; the server asks to wait 7 s",)
        routes |= {"/health": GATEWAY_HEALTH, CHAT_PATH: completion_response("up")}
        virtual_time.elapsed_s += 7
        assert (await infer(manager)).usage.endpoint == "late"
    assert manager.endpoints[0].kind == "tensorzero"


@pytest.mark.parametrize("status", [404, 405, None])
async def test_another_kind_of_server_at_a_known_url_is_detected(status: int | None, model_server: RudeModel) -> None:
    virtual_time = VirtualTime()
    routes: dict[str, Behavior] = {"/health": GATEWAY_HEALTH, CHAT_PATH: completion_response("gateway")}
    with RudeModel(completion_response("plain"), routes=routes) as server:
        endpoints = (
            EndpointConfig(url=server.url, name="a"),
            EndpointConfig(url=model_server.url, name="b", kind="openai"),
        )
        manager = InferenceManager(agent_settings(*endpoints), {}, virtual_time.timing())
        assert (await infer(manager)).message["content"] == "gateway"
        routes |= {"/health": http_response(404, b""), CHAT_PATH: http_response(status, b"") if status else b""}
        assert (await infer(manager)).usage.endpoint == "b"
        routes[CHAT_PATH] = http_response(404, b"")
        virtual_time.elapsed_s += 60
        assert (await infer(manager)).message["content"] == "plain"
    assert manager.endpoints[0].kind == "openai"


@pytest.mark.parametrize("id", ["", "../../etc", "x" * 36, 5])
async def test_an_invalid_episode_id_is_not_sent_back(id: object) -> None:
    with rude_gateway(completion_response("up", episode_id=id)) as server:
        session = InferenceManager(agent_settings(mode="api", api_endpoint=server.url), {}).session(episode_header())
        await infer(session)
        await infer(session)
        assert "tensorzero::episode_id" not in server.requests[-1].json()


async def test_feedback_is_sent_once_per_episode() -> None:
    with rude_gateway(completion_response("up", episode_id=GATEWAY_ID), feedback=http_response(200, b"{}")) as server:
        settings = agent_settings(
            mode="api", api_endpoint=server.url, feedback=FeedbackMetrics(reward="r", success="s")
        )
        manager = InferenceManager(settings, {"TENSORZERO_API_KEY": KEY})
        await infer(manager.session(episode_header()))
        for episode_id in ("episode-1", "episode-1", "never played"):
            manager.feedback(episode_id, 0.5, True)
        manager.close()
        sent = [request for request in server.requests if request.path == "/feedback"]
    assert [r.json() for r in sent] == [
        {"metric_name": "r", "value": 0.5, "episode_id": GATEWAY_ID},
        {"metric_name": "s", "value": True, "episode_id": GATEWAY_ID},
    ]
    assert sent[0].headers["authorization"] == f"Bearer {KEY}"


async def test_rejected_feedback_is_logged_as_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    rejection = http_response(400, f'{{"error": "no database for {KEY}"}}'.encode())
    with (
        rude_gateway(completion_response("up", episode_id=GATEWAY_ID), feedback=rejection) as server,
        caplog.at_level(logging.WARNING),
    ):
        settings = agent_settings(
            mode="api", api_endpoint=server.url, feedback=FeedbackMetrics(reward="r", success="s")
        )
        manager = InferenceManager(settings, {"TENSORZERO_API_KEY": KEY})
        await infer(manager.session(episode_header()))
        manager.feedback("episode-1", 0.5, True)
        manager.close()
    assert [record.levelname for record in caplog.records if record.name.startswith("runner")] == ["WARNING"]
    assert "no database for ***" in caplog.text
