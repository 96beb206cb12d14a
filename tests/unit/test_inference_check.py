from __future__ import annotations

import json

import pytest

from runner.config.profile import AgentSettings, Endpoint
from runner.inference import EndpointHealth, InferenceManager
from tests.inferring import settings_of
from tests.rude_model import RudeModel, answer, hang, reply
from tests.unit.test_inference_manager import TENSORZERO

KEY = "sk-0123456789abcdef"


def tags(*names: str) -> bytes:
    return reply(200, json.dumps({"models": [{"name": name} for name in names]}).encode())


def refused(said: str, status: int = 400) -> bytes:
    return reply(status, json.dumps({"error": {"message": said}}).encode())


async def health(settings: AgentSettings, environ: dict[str, str] | None = None) -> EndpointHealth:
    (only,) = await InferenceManager(settings, environ or {}).check()
    return only


async def gateway_health(completions: bytes) -> EndpointHealth:
    routes = {"/health": TENSORZERO, "/openai/v1/chat/completions": completions}
    with RudeModel(answer("up"), routes=routes) as gateway:
        return await health(settings_of(mode="api", api_endpoint=gateway.url))


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
    assert found.note == f"asked at {found.url} for tensorzero::model_name::qwen35_9b"
    assert found.latency_s is not None


async def test_a_gateway_that_does_not_know_the_model() -> None:
    found = await gateway_health(refused("Invalid inference target: Invalid model name: 'qwen35_9b'"))
    assert (found.status, found.hint) == (
        "misconfigured",
        "add [models.qwen35_9b] to the gateway's configuration, or change agent.model in the profile",
    )


async def test_a_gateway_that_wants_a_key() -> None:
    found = await gateway_health(refused("no key", 401))
    assert (found.status, found.hint) == ("misconfigured", "put a valid key into the variable TENSORZERO_API_KEY")


async def test_a_gateway_that_is_not_there() -> None:
    found = await health(settings_of(mode="api", api_endpoint="http://127.0.0.1:9/v1/chat/completions"))
    assert (found.status, found.latency_s, found.model) == ("down", None, "qwen35_9b")
    assert found.cause is not None
    assert found.cause.startswith("no connection")
    assert found.hint == "start TensorZero's gateway, or set TENSORZERO_URL to where it runs"


@pytest.mark.parametrize(
    ("pulled", "status", "hint"),
    [
        (tags("qwen3:8b", "llama3:latest"), "up", None),
        (tags("llama3:latest"), "misconfigured", "pull it with: ollama pull qwen3:8b"),
        (tags(), "misconfigured", "pull it with: ollama pull qwen3:8b"),
        (reply(500, b""), "down", "start it with: ollama serve"),
    ],
)
async def test_ollama(pulled: bytes, status: str, hint: str | None) -> None:
    with RudeModel(answer("up"), routes={"/api/tags": pulled}) as ollama:
        found = await health(AgentSettings(mode="local"), {"OLLAMA_HOST": ollama.origin})
    assert (found.name, found.status, found.hint) == ("ollama", status, hint)


async def test_a_model_without_a_tag_is_the_latest() -> None:
    with RudeModel(answer("up"), routes={"/api/tags": tags("qwen3:latest")}) as ollama:
        settings = AgentSettings(mode="local", local_fallback="qwen3")
        assert (await health(settings, {"OLLAMA_HOST": ollama.origin})).status == "up"


@pytest.mark.parametrize(
    ("listed", "status"),
    [
        (reply(200, b'{"data": [{"id": "qwen35_9b"}]}'), "up"),
        (reply(200, b'{"data": [{"id": "other"}]}'), "misconfigured"),
        (reply(200, b"<html>"), "up"),
        (reply(404, b""), "up"),
        (reply(401, b""), "misconfigured"),
        (reply(503, b""), "down"),
    ],
)
async def test_an_openai_compatible_server(listed: bytes, status: str) -> None:
    with RudeModel(answer("up"), routes={"/v1/models": listed}) as server:
        settings = settings_of(Endpoint(url=server.url, kind="openai", api_key_env="MINE"))
        assert (await health(settings, {"MINE": KEY})).status == status
        assert server.requests[-1].headers["authorization"] == f"Bearer {KEY}"
        missing = await health(settings)
    assert (missing.status, missing.hint) == ("misconfigured", "put a valid key into the variable MINE")


async def test_endpoints_that_hang_are_looked_at_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.inference.check.CHECK_S", 0.2)
    with RudeModel(hang, routes={"/health": hang, "/v1/models": hang}) as server:
        endpoints = (Endpoint(url=server.url), Endpoint(url=server.url, kind="openai", name="b"))
        found = await InferenceManager(settings_of(*endpoints), {}).check()
    assert [(health.status, health.cause) for health in found] == [("down", "no answer within 0.2 s")] * 2
