"""Health checks of each kind of endpoint."""

from __future__ import annotations

import json
import threading
from typing import Literal

import pytest

from runner.config import AgentSettings
from runner.config.profile import EndpointConfig
from runner.inference.health import EndpointHealth
from runner.inference.manager import InferenceManager
from tests.support.inference import agent_settings, infer, inference_manager
from tests.support.rude_gateway import rude_gateway
from tests.support.rude_model import PendingRequest, RudeModel, completion_response, hang, http_response

KEY = "sk-0123456789abcdef"


def tags(*names: str) -> bytes:
    return http_response(200, json.dumps({"models": [{"name": name} for name in names]}).encode())


def error_response(response: str, status: int = 400) -> bytes:
    return http_response(status, json.dumps({"error": {"message": response}}).encode())


async def check_health(settings: AgentSettings, environ: dict[str, str] | None = None) -> EndpointHealth:
    (only,) = await InferenceManager(settings, environ or {}).check()
    return only


async def gateway_health(completions: bytes) -> EndpointHealth:
    with rude_gateway(completions) as gateway:
        return await check_health(agent_settings(mode="api", api_endpoint=gateway.url))


async def test_a_gateway_with_the_model_is_up_and_its_request_is_noted() -> None:
    health = await gateway_health(error_response("Tool not found: agentgym_preflight"))
    assert (health.name, health.kind, health.status) == ("gateway", "tensorzero", "up")
    assert (health.cause, health.hint) == (None, None)
    assert health.note is not None
    assert health.url.endswith("/openai/v1/chat/completions")
    assert health.note == f"uses {health.url} with model tensorzero::model_name::qwen35_9b"
    assert health.latency_s is not None


@pytest.mark.parametrize(
    ("completions", "hint"),
    [
        (
            error_response("Invalid inference target: Invalid model name: 'qwen35_9b'"),
            "add [models.qwen35_9b] to the gateway's configuration, or change agent.model in the profile",
        ),
        (error_response("no key", 401), "set the variable TENSORZERO_API_KEY to a valid key"),
    ],
)
async def test_a_gateway_without_the_model_or_with_a_key_is_misconfigured(completions: bytes, hint: str) -> None:
    health = await gateway_health(completions)
    assert (health.status, health.hint) == ("misconfigured", hint)


async def test_an_unreachable_gateway_is_down() -> None:
    health = await check_health(agent_settings(mode="api", api_endpoint="http://127.0.0.1:9/v1/chat/completions"))
    assert (health.status, health.latency_s, health.model) == ("down", None, "qwen35_9b")
    assert health.cause is not None
    assert health.cause.startswith("no connection")
    assert health.hint == "start TensorZero's gateway, or set TENSORZERO_URL to its URL"


@pytest.mark.parametrize(
    ("tags_response", "status", "hint"),
    [
        (tags("qwen3:8b", "llama3:latest"), "up", None),
        (tags("llama3:latest"), "misconfigured", "pull it with: ollama pull qwen3:8b"),
        (tags(), "misconfigured", "pull it with: ollama pull qwen3:8b"),
        (http_response(500, b""), "down", "start it with: ollama serve"),
    ],
)
async def test_the_status_of_ollama_depends_on_its_pulled_models(
    tags_response: bytes, status: str, hint: str | None
) -> None:
    with RudeModel(completion_response("up"), routes={"/api/tags": tags_response}) as ollama:
        health = await check_health(AgentSettings(mode="local"), {"OLLAMA_HOST": ollama.origin})
    assert (health.name, health.status, health.hint) == ("ollama", status, hint)


async def test_an_ollama_model_without_a_tag_is_the_latest() -> None:
    with RudeModel(completion_response("up"), routes={"/api/tags": tags("qwen3:latest")}) as ollama:
        settings = AgentSettings(mode="local", local_fallback="qwen3")
        assert (await check_health(settings, {"OLLAMA_HOST": ollama.origin})).status == "up"


@pytest.mark.parametrize(
    ("models_response", "status"),
    [
        (http_response(200, b'{"data": [{"id": "qwen35_9b"}]}'), "up"),
        (http_response(200, b'{"data": [{"id": "other"}]}'), "misconfigured"),
        (http_response(200, b"<html>"), "up"),
        (http_response(404, b""), "up"),
        (http_response(401, b""), "misconfigured"),
        (http_response(503, b""), "down"),
    ],
)
async def test_the_status_of_an_openai_compatible_server_depends_on_its_model_list(
    models_response: bytes, status: str
) -> None:
    with RudeModel(completion_response("up"), routes={"/v1/models": models_response}) as server:
        settings = agent_settings(EndpointConfig(url=server.url, kind="openai", api_key_env="MINE"))
        assert (await check_health(settings, {"MINE": KEY})).status == status
        assert server.requests[-1].headers["authorization"] == f"Bearer {KEY}"
        missing = await check_health(settings)
    assert (missing.status, missing.hint) == ("misconfigured", "set the variable MINE to a valid key")


async def test_hanging_endpoints_are_checked_concurrently() -> None:
    silent = dict.fromkeys(("/health", "/openai/v1/chat/completions", "/api/tags", "/v1/models"), hang)
    with RudeModel(hang, routes=silent) as server:
        endpoints = (EndpointConfig(url=server.url), EndpointConfig(url=server.url, kind="openai", name="b"))
        checked = await InferenceManager(agent_settings(*endpoints), {}).check(timeout_s=0.2)
    assert [(health.status, health.cause) for health in checked] == [("down", "no answer within 0.2 s")] * 2


@pytest.mark.parametrize(
    ("kind", "missing"),
    [
        ("openai", http_response(404, b'{"error": "not found"}')),
        ("ollama", http_response(405, b"")),
        ("auto", http_response(200, b"<html>")),
    ],
)
async def test_the_hint_for_a_wrong_url_names_its_path(
    missing: bytes, kind: Literal["openai", "ollama", "auto"]
) -> None:
    routes = {"/v2/chat/completions": missing, "/api/tags": tags("qwen35_9b")}
    with RudeModel(completion_response("wrong path"), routes=routes) as server:
        health = await check_health(agent_settings(EndpointConfig(url=f"{server.origin}/v2", kind=kind)))
    assert health.kind == ("ollama" if kind == "auto" else kind)
    assert (health.status, health.hint) == (
        "misconfigured",
        "no chat completions at /v2/chat/completions: correct the endpoint's URL",
    )


@pytest.mark.parametrize(
    ("response", "status", "hint"),
    [
        (error_response("messages is too short"), "up", None),
        (error_response("messages is missing", 422), "up", None),
        (error_response("list index out of range", 500), "up", None),
        (error_response("loading", 503), "down", "start the server at "),
        (error_response("model not found", 404), "misconfigured", "check the endpoint's URL and model"),
        (error_response("no key", 401), "misconfigured", "name the variable that holds its key, with api_key_env"),
        (error_response("API key not valid. Please pass"), "misconfigured", "name the variable that holds its key"),
        (error_response("Not found the model or Permission denied"), "misconfigured", "check the endpoint's URL and"),
    ],
)
async def test_the_path_is_checked_without_running_a_model(response: bytes, status: str, hint: str | None) -> None:
    with RudeModel(response) as server:
        health = await check_health(agent_settings(EndpointConfig(url=server.url, kind="openai")))
        assert server.chat_requests[0].json() == {"model": "qwen35_9b"}
    assert health.status == status
    assert (health.hint is None) if hint is None else (health.hint or "").startswith(hint)


async def test_the_health_of_a_failed_endpoint_contains_its_rest_time() -> None:
    busy = http_response(429, b"{}", Retry_After="30")
    routes = {"/v1/models": http_response(404, b""), "/v1/chat/completions": busy}
    with RudeModel(busy, routes=routes) as failing, RudeModel(completion_response("up")) as working:
        manager = inference_manager(failing.url, working.url)
        assert [health.rest_s for health in await manager.check()] == [None, None]
        assert (await infer(manager)).usage.endpoint == "b"
        rests, answers = await manager.check()
    assert rests.rest_s is not None and 0 < rests.rest_s <= 30
    assert answers.rest_s is None


async def test_the_requests_that_detect_the_kind_are_concurrent() -> None:
    barrier = threading.Barrier(3, timeout=10)

    def wait_for_all(exchange: PendingRequest) -> None:
        barrier.wait()
        exchange.send(http_response(404, b"{}", Connection="close"))

    routes = dict.fromkeys(("/health", "/openai/v1/chat/completions", "/api/tags"), wait_for_all)
    with RudeModel(error_response("no messages"), routes=routes) as server:
        (health,) = await InferenceManager(agent_settings(EndpointConfig(url=server.url)), {}).check(timeout_s=20.0)
    assert (health.kind, health.status) == ("openai", "up")


async def test_a_server_that_answers_only_some_requests_in_time_is_slow() -> None:
    with RudeModel(hang, routes={"/v1/models": hang}) as server:
        manager = InferenceManager(agent_settings(EndpointConfig(url=server.url)), {})
        (health,) = await manager.check(timeout_s=1.0)
        assert (health.status, health.cause) == ("slow", "it answers, but not to all requests within 1 s")
        (later,) = await manager.check(timeout_s=0.2)  # its kind is known by now, and no request is answered
    assert (later.kind, later.status) == ("openai", "down")


async def test_a_list_of_models_makes_a_request_without_messages_needless() -> None:
    listed = http_response(200, b'{"data": [{"id": "qwen35_9b"}]}')
    with RudeModel(completion_response("prompted"), routes={"/v1/models": listed}) as server:
        assert (await check_health(agent_settings(EndpointConfig(url=server.url)))).status == "up"
        assert [request for request in server.requests if request.method != "GET"] == []


@pytest.mark.parametrize(
    ("refusal", "status"), [(error_response("Invalid API Key", 401), "misconfigured"), (http_response(404, b""), "up")]
)
async def test_a_key_is_checked_where_models_are_listed_without_it(refusal: bytes, status: str) -> None:
    """llama.cpp lists its models without a key."""
    routes = {"/v1/models": http_response(200, b'{"data": [{"id": "qwen35_9b"}]}'), "/v1/chat/completions": refusal}
    with RudeModel(b"", routes=routes) as server:
        settings = agent_settings(EndpointConfig(url=server.url, kind="openai", api_key_env="MINE"))
        health = await check_health(settings, {"MINE": KEY})
    assert health.status == status
    if status != "up":
        assert health.cause == (
            "a model server answers, but the API key is missing or not valid: HTTP 401: Invalid API Key"
        )
        assert health.hint == "set the variable MINE to a valid key"


async def test_a_simple_server_that_needs_messages_and_knows_no_lists_is_up() -> None:
    routes = dict.fromkeys(
        ("/health", "/openai/v1/chat/completions", "/api/tags", "/v1/models"), http_response(501, b"no GET")
    )
    with RudeModel(b"", routes=routes) as server:  # it ends the connection of a request without messages
        health = await check_health(agent_settings(EndpointConfig(url=server.url)))
    assert (health.kind, health.status) == ("openai", "up")


async def test_a_server_at_the_address_of_the_gateway_needs_an_endpoint_for_its_key() -> None:
    with RudeModel(error_response("no key", 401)) as server:
        health = await check_health(agent_settings(mode="api", api_endpoint=server.url))
    assert (
        health.hint == "TENSORZERO_API_KEY is only for TensorZero; list this server in agent.endpoints with api_key_env"
    )
