from __future__ import annotations

import json
import threading
from typing import Literal

import pytest

from runner.config.profile import AgentSettings, EndpointConfig
from runner.inference import EndpointHealth, InferenceManager
from tests.support.inference import agent_settings, infer, inference_manager
from tests.support.rude_model import PendingRequest, RudeModel, completion_response, hang, http_response
from tests.unit.inference.test_manager import TENSORZERO

KEY = "sk-0123456789abcdef"


def tags(*names: str) -> bytes:
    return http_response(200, json.dumps({"models": [{"name": name} for name in names]}).encode())


def refused(said: str, status: int = 400) -> bytes:
    return http_response(status, json.dumps({"error": {"message": said}}).encode())


async def health(settings: AgentSettings, environ: dict[str, str] | None = None) -> EndpointHealth:
    (only,) = await InferenceManager(settings, environ or {}).check()
    return only


async def gateway_health(completions: bytes) -> EndpointHealth:
    routes = {"/health": TENSORZERO, "/openai/v1/chat/completions": completions}
    with RudeModel(completion_response("up"), routes=routes) as gateway:
        return await health(agent_settings(mode="api", api_endpoint=gateway.url))


async def test_a_gateway_that_knows_the_model_says_what_is_asked_there() -> None:
    found = await gateway_health(refused("Tool not found: agentgym_preflight"))
    assert (found.name, found.kind, found.status, found.cause, found.hint) == (
        "gateway",
        "tensorzero",
        "up",
        None,
        None,
    )
    assert found.note is not None
    assert found.url.endswith("/openai/v1/chat/completions")
    assert found.note == f"uses {found.url} with model tensorzero::model_name::qwen35_9b"
    assert found.latency_s is not None


async def test_a_gateway_that_does_not_know_the_model() -> None:
    found = await gateway_health(refused("Invalid inference target: Invalid model name: 'qwen35_9b'"))
    assert (found.status, found.hint) == (
        "misconfigured",
        "add [models.qwen35_9b] to the gateway's configuration, or change agent.model in the profile",
    )


async def test_a_gateway_that_wants_a_key() -> None:
    found = await gateway_health(refused("no key", 401))
    assert (found.status, found.hint) == ("misconfigured", "set the variable TENSORZERO_API_KEY to a valid key")


async def test_a_gateway_that_is_not_there() -> None:
    found = await health(agent_settings(mode="api", api_endpoint="http://127.0.0.1:9/v1/chat/completions"))
    assert (found.status, found.latency_s, found.model) == ("down", None, "qwen35_9b")
    assert found.cause is not None
    assert found.cause.startswith("no connection")
    assert found.hint == "start TensorZero's gateway, or set TENSORZERO_URL to its URL"


@pytest.mark.parametrize(
    ("pulled", "status", "hint"),
    [
        (tags("qwen3:8b", "llama3:latest"), "up", None),
        (tags("llama3:latest"), "misconfigured", "pull it with: ollama pull qwen3:8b"),
        (tags(), "misconfigured", "pull it with: ollama pull qwen3:8b"),
        (http_response(500, b""), "down", "start it with: ollama serve"),
    ],
)
async def test_ollama(pulled: bytes, status: str, hint: str | None) -> None:
    with RudeModel(completion_response("up"), routes={"/api/tags": pulled}) as ollama:
        found = await health(AgentSettings(mode="local"), {"OLLAMA_HOST": ollama.origin})
    assert (found.name, found.status, found.hint) == ("ollama", status, hint)


async def test_a_model_without_a_tag_is_the_latest() -> None:
    with RudeModel(completion_response("up"), routes={"/api/tags": tags("qwen3:latest")}) as ollama:
        settings = AgentSettings(mode="local", local_fallback="qwen3")
        assert (await health(settings, {"OLLAMA_HOST": ollama.origin})).status == "up"


@pytest.mark.parametrize(
    ("listed", "status"),
    [
        (http_response(200, b'{"data": [{"id": "qwen35_9b"}]}'), "up"),
        (http_response(200, b'{"data": [{"id": "other"}]}'), "misconfigured"),
        (http_response(200, b"<html>"), "up"),
        (http_response(404, b""), "up"),
        (http_response(401, b""), "misconfigured"),
        (http_response(503, b""), "down"),
    ],
)
async def test_an_openai_compatible_server(listed: bytes, status: str) -> None:
    with RudeModel(completion_response("up"), routes={"/v1/models": listed}) as server:
        settings = agent_settings(EndpointConfig(url=server.url, kind="openai", api_key_env="MINE"))
        assert (await health(settings, {"MINE": KEY})).status == status
        assert server.requests[-1].headers["authorization"] == f"Bearer {KEY}"
        missing = await health(settings)
    assert (missing.status, missing.hint) == ("misconfigured", "set the variable MINE to a valid key")


async def test_endpoints_that_hang_are_looked_at_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.inference.health.CHECK_TIMEOUT_S", 0.2)
    silent = dict.fromkeys(("/health", "/openai/v1/chat/completions", "/api/tags", "/v1/models"), hang)
    with RudeModel(hang, routes=silent) as server:
        endpoints = (EndpointConfig(url=server.url), EndpointConfig(url=server.url, kind="openai", name="b"))
        found = await InferenceManager(agent_settings(*endpoints), {}).check()
    assert [(health.status, health.cause) for health in found] == [("down", "no answer within 0.2 s")] * 2


@pytest.mark.parametrize("kind", ["openai", "ollama", "auto"])
@pytest.mark.parametrize("missing", [http_response(404, b'{"error": "not found"}'), http_response(405, b""), http_response(200, b"<html>")])
async def test_a_wrong_path_is_a_mistake_whose_path_is_named(
    missing: bytes, kind: Literal["openai", "ollama", "auto"]
) -> None:
    routes = {"/v2/chat/completions": missing, "/api/tags": tags("qwen35_9b")}
    with RudeModel(completion_response("wrong path"), routes=routes) as server:
        found = await health(agent_settings(EndpointConfig(url=f"{server.origin}/v2", kind=kind)))
    assert found.kind == ("ollama" if kind == "auto" else kind)
    assert (found.status, found.hint) == (
        "misconfigured",
        "no chat completions at /v2/chat/completions: correct the endpoint's URL in the profile",
    )


@pytest.mark.parametrize(
    ("said", "status", "hint"),
    [
        (refused("messages is too short"), "up", None),
        (refused("messages is missing", 422), "up", None),
        (refused("list index out of range", 500), "up", None),
        (refused("loading", 503), "down", "start the server at "),
        (refused("model not found", 404), "misconfigured", "check the endpoint's URL and model"),
        (refused("no key", 401), "misconfigured", "set api_key_env to the variable of its key"),
    ],
)
async def test_no_model_runs_for_a_look_at_its_path(said: bytes, status: str, hint: str | None) -> None:
    with RudeModel(said) as server:
        found = await health(agent_settings(EndpointConfig(url=server.url, kind="openai")))
        assert server.chat_requests[0].json() == {"model": "qwen35_9b", "messages": []}
    assert found.status == status
    assert (found.hint is None) if hint is None else (found.hint or "").startswith(hint)


async def test_an_endpoint_that_failed_when_an_agent_asked_says_how_long_it_rests() -> None:
    busy = http_response(429, b"{}", Retry_After="30")
    routes = {"/v1/models": http_response(404, b""), "/v1/chat/completions": busy}
    with RudeModel(busy, routes=routes) as failing, RudeModel(completion_response("up")) as whole:
        manager = inference_manager(failing.url, whole.url)
        assert [found.rest_s for found in await manager.check()] == [None, None]
        assert (await infer(manager)).usage.endpoint == "b"
        rests, answers = await manager.check()
    assert rests.rest_s is not None and 0 < rests.rest_s <= 30
    assert answers.rest_s is None


async def test_the_kind_is_asked_for_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.inference.health.CHECK_TIMEOUT_S", 20.0)
    together = threading.Barrier(3, timeout=10)

    def meet(exchange: PendingRequest) -> None:
        together.wait()
        exchange.send(http_response(404, b"{}", Connection="close"))

    routes = dict.fromkeys(("/health", "/openai/v1/chat/completions", "/api/tags"), meet)
    with RudeModel(refused("no messages"), routes=routes) as server:
        found = await health(agent_settings(EndpointConfig(url=server.url)))
    assert (found.kind, found.status) == ("openai", "up")


async def test_a_server_that_answers_only_something_in_time_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.inference.health.CHECK_TIMEOUT_S", 1.0)
    with RudeModel(hang, routes={"/v1/models": hang}) as server:
        manager = InferenceManager(agent_settings(EndpointConfig(url=server.url)), {})
        (found,) = await manager.check()
        assert (found.status, found.cause) == ("slow", "it answers, but not to all requests within 1 s")
        monkeypatch.setattr("runner.inference.health.CHECK_TIMEOUT_S", 0.2)
        (later,) = await manager.check()  # what it is was known, and it said nothing more
    assert (later.kind, later.status) == ("openai", "down")
