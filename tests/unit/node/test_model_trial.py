"""Trials of model endpoints: what they find at servers that refuse parts of requests, and how they fail."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import msgspec
import pytest

from runner.config.profile import EndpointConfig, Price
from runner.inference.profile_models import Models, run_in_thread
from runner.node.preflight import ModelTrial, can_run, trial_checks, try_endpoints
from tests.support.inference import agent_settings
from tests.support.rude_model import (
    FINISH_CHUNK,
    USAGE,
    Behavior,
    PendingRequest,
    RudeModel,
    chat_completion,
    delta_chunk,
    hang,
    http_response,
    sse_event,
    stream_response,
)

Rule: TypeAlias = Callable[[dict[str, Any]], str | None]
"""Returns why a server refuses the body of a request; None if it does not."""


def call_of(number: int) -> dict[str, Any]:
    function = {"name": "move", "arguments": '{"direction": "left"}'}
    return {"id": f"abcdefgh{number}", "index": 0, "type": "function", "function": function}


def message_for(body: dict[str, Any]) -> dict[str, Any]:
    """Return a model's message: a tool call with its reasoning if it got tools, else an action as text."""
    if not body.get("tools"):
        return {"role": "assistant", "content": 'Action: move({"direction": "left"})'}
    calls = [call_of(len(body["messages"]))]
    return {"role": "assistant", "content": None, "reasoning_content": "left", "tool_calls": calls}


def answer_to(body: dict[str, Any], message: dict[str, Any]) -> bytes:
    if not body.get("stream"):
        return http_response(200, json.dumps(chat_completion(message, usage=USAGE)).encode())
    events = [delta_chunk(**message), FINISH_CHUNK, {"choices": [], "usage": USAGE}]
    return stream_response(b"".join(map(sse_event, [*events, b"[DONE]"])))


def server_with(
    *rules: Rule,
    status: int = 400,
    answer: Callable[[dict[str, Any]], dict[str, Any]] = message_for,
    models: list[dict[str, Any]] | None = None,
) -> RudeModel:
    """Return a server that refuses what one of its rules refuses."""

    def respond(body: dict[str, Any]) -> bytes:
        if "messages" not in body:  # the free check
            return http_response(400, b'{"error": {"message": "messages is missing"}}')
        for refusal in filter(None, (rule(body) for rule in rules)):
            return http_response(status, json.dumps({"error": {"message": refusal}}).encode())
        return answer_to(body, answer(body))

    def behave(pending: PendingRequest) -> None:
        pending.send(respond(pending.request.json()))

    routes: dict[str, Behavior] = {}
    if models is not None:
        routes["/v1/models"] = http_response(200, json.dumps({"data": models}).encode())
    return RudeModel(behave, routes=routes)


def try_servers(*servers: RudeModel, limit_s: float = 60.0, **agent: Any) -> list[ModelTrial]:  # noqa: ANN401
    endpoints = [
        EndpointConfig(url=server.url, name=f"server {number}", kind="openai") for number, server in enumerate(servers)
    ]
    settings = agent_settings(*endpoints, **{"model": "small", "stream": True, **agent})
    return run_in_thread(lambda: try_endpoints("small", Models(settings, {}), limit_s, lambda endpoint: None))


def no_tools(body: dict[str, Any]) -> str | None:
    return '"auto" tool choice requires --enable-auto-tool-choice' if body.get("tools") else None


def no_stream_with_tools(body: dict[str, Any]) -> str | None:
    return "stream is not supported with tools" if body.get("tools") and body.get("stream") else None


def no_stream(body: dict[str, Any]) -> str | None:
    return "streaming is not supported" if body.get("stream") else None


def no_system(body: dict[str, Any]) -> str | None:
    has_system = any(message["role"] == "system" for message in body["messages"])
    return "System role not supported" if has_system else None


def reasoning_of_calls(body: dict[str, Any]) -> str | None:
    calls = [message for message in body["messages"] if message.get("tool_calls")]
    if all(message.get("reasoning_content") for message in calls):
        return None
    return "The `reasoning_content` in the thinking mode must be passed back to the API."


def temperature_unsupported(body: dict[str, Any]) -> str | None:
    return "Bad Request" if "temperature" in body else None


@pytest.mark.parametrize(
    ("rules", "found"),
    [
        ([], "standard requests; called its tool; "),
        ([reasoning_of_calls], "standard requests; called its tool; "),
        ([no_tools], "tools as text; wrote its action as text; "),
        ([no_stream_with_tools], "no streaming with tools; called its tool; "),
        ([no_stream], "no streaming with tools; called its tool; "),
        ([no_tools, no_stream], "tools as text, no streaming; wrote its action as text; "),
        ([no_system], "folded system; called its tool; "),
        ([temperature_unsupported], "no temperature; called its tool; "),
    ],
)
def test_a_trial_finds_what_a_server_takes(rules: list[Rule], found: str) -> None:
    with server_with(*rules) as server:
        (trial,) = try_servers(server, temperature=0.5)
    assert trial.failure is None
    assert trial.describe("USD").startswith(f"{found}2 of 2 answers, 2,400 tokens, ")
    assert bool(trial.warnings) == (found.split(";")[0] != "standard requests")


def test_the_second_turn_sends_the_call_and_its_result_back() -> None:
    with server_with() as server:
        try_servers(server)
        last = server.chat_requests[-1].json()["messages"]
    system, first, call, result = last
    assert (system["role"], first["role"], call["role"], result["role"]) == ("system", "user", "assistant", "tool")
    assert call["tool_calls"][0]["id"] == result["tool_call_id"] == "abcdefgh2"
    assert call["reasoning_content"] == "left"


def test_the_context_is_that_of_the_servers_list_of_models() -> None:
    listed = [{"id": "other", "max_model_len": 100}, {"id": "small", "max_model_len": 4096}]
    with server_with(no_tools, no_stream_with_tools, models=listed) as server:
        (trial,) = try_servers(server)
    assert trial.describe("USD").startswith("tools as text, context 4,096; ")
    assert trial.context_tokens == 4096


def test_the_context_that_a_refusal_names_is_found() -> None:
    def short_context(body: dict[str, Any]) -> str | None:
        n_chars = sum(len(message["content"]) for message in body["messages"])
        return "This model's maximum context length is 64 tokens." if n_chars > 256 else None

    with server_with(short_context) as server:
        (trial,) = try_servers(server)
    assert trial.failure == "HTTP 400: This model's maximum context length is 64 tokens."
    assert trial.context_tokens == 64
    assert trial.hint is not None


def test_costs_and_tokens_of_the_answers_are_summed() -> None:
    with server_with() as server:
        (trial,) = try_servers(server, price={"small": Price(prompt_per_mtok=1.0, completion_per_mtok=2.0)})
    assert (trial.tokens.prompt, trial.tokens.completion) == (2000, 400)
    assert trial.cost == pytest.approx(0.0028)
    assert "2,400 tokens, 0.0028 EUR, " in trial.describe("EUR")


@pytest.mark.parametrize("status", [400, 401])
def test_a_wrong_key_is_tried_once_and_explained(status: int) -> None:
    def wrong_key(body: dict[str, Any]) -> str | None:
        return "API key not valid. Please pass a valid API key."

    with server_with(wrong_key, status=status) as server:
        (trial,) = try_servers(server)
        assert len([request for request in server.chat_requests if "messages" in request.json()]) == 1
    assert f"HTTP {status}: API key not valid. Please pass a valid API key." in (trial.failure or "")
    assert "api_key_env" in (trial.hint or "")
    assert trial.acts == ()


def test_a_hanging_server_ends_by_the_limit_of_its_first_token() -> None:
    with RudeModel(hang) as server:
        (trial,) = try_servers(server, first_token_timeout_sec=0.2)
    assert trial.failure == "no first token within 0.2 s (agent.first_token_timeout_sec)"
    assert trial.hint is not None


def test_a_server_that_hangs_without_a_limit_ends_by_that_of_the_trial() -> None:
    with RudeModel(hang) as server:
        (trial,) = try_servers(server, limit_s=0.3, stream=False)
    assert "no complete answer within" in (trial.failure or "")
    assert trial.acts == ()


def test_a_model_that_gives_no_action_answers_all_the_same() -> None:
    with server_with(answer=lambda body: {"role": "assistant", "content": "I do not know."}) as server:
        (trial,) = try_servers(server)
    assert (trial.failure, trial.acts) == (None, ("none", "none"))
    assert "gave no action" in trial.describe("USD")


def test_a_model_that_calls_its_tool_only_once_is_described() -> None:
    replies: Iterator[dict[str, Any]] = iter(
        [message_for({"tools": [1], "messages": []}), {"role": "assistant", "content": "Done."}]
    )
    with server_with(answer=lambda body: next(replies)) as server:
        (trial,) = try_servers(server)
    assert "; called its tool, then gave no action; " in trial.describe("USD")


def test_endpoints_are_tried_one_after_the_other_and_one_that_answers_suffices() -> None:
    with server_with(no_tools) as refusing, server_with(lambda body: "out of order", status=500) as failing:
        trials = try_servers(failing, refusing)
    rows = trial_checks(trials, "USD")
    assert [(row.what, row.name, row.state) for row in rows] == [
        ("trial", "server 0", "warn"),
        ("trial", "server 1", "ok"),
    ]
    assert rows[0].cause == "HTTP 500: out of order"
    assert rows[0].hint
    assert rows[1].cause == (
        'learned tools as text from HTTP 400: "auto" tool choice requires --enable-auto-tool-choice'
    )
    assert can_run(rows)
    assert not can_run(trial_checks(trials[:1], "USD"))


def test_what_one_endpoint_refuses_is_not_held_against_the_others_and_not_kept() -> None:
    with server_with(no_tools) as refusing, server_with() as other:
        first, second = try_servers(refusing, other)
    assert (first.with_tools.tools, second.with_tools.tools) == ("text", "native")


def test_a_trial_is_json_without_markup_of_the_server() -> None:
    with server_with(lambda body: "no \x1b[2J <b>tools</b>" if body.get("tools") else None) as server:
        (trial,) = try_servers(server)
    text = msgspec.json.encode(trial).decode()
    assert "\\u001b" not in text
    assert json.loads(text)["with_tools"] == {"tools": "text"}
