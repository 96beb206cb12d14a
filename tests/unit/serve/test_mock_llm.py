from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from runner.errors import ConfigError
from runner.serve.mock_llm.app import EchoResponder, ScriptResponder
from runner.serve.mock_llm.completion import TEST_MODEL_NAME
from runner.serve.mock_llm.script import Behavior, Fault, ScriptedCall, ScriptedReply, read_script
from tests.support.model_server import ModelServer

CHAT = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "move", "description": "", "parameters": {"type": "object"}}}
REPLY = ScriptedReply(
    content="go left, then up",
    reasoning_content="left is free",
    tool_calls=(ScriptedCall("move", {"direction": "left"}), ScriptedCall("move", '{"direction": ', id="second")),
)


@pytest.fixture(scope="module")
def scripted() -> Iterator[httpx.Client]:
    with (
        ModelServer(ScriptResponder([REPLY]), models=["qwen3:8b"]) as server,
        httpx.Client(base_url=server.url, timeout=30) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def echo() -> Iterator[httpx.Client]:
    with ModelServer(EchoResponder()) as server, httpx.Client(base_url=server.url) as client:
        yield client


def chat_request(text: str = "hello, you", **more: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"model": TEST_MODEL_NAME, "messages": [{"role": "user", "content": text}], **more}


def streamed(client: httpx.Client, request: dict[str, Any]) -> list[dict[str, Any]]:
    reply = client.post(CHAT, json={**request, "stream": True})
    assert reply.headers["content-type"] == "text/event-stream"
    *events, done, rest = reply.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def test_a_reply_has_openais_format(scripted: httpx.Client) -> None:
    reply = scripted.post(CHAT, json=chat_request())
    completion = reply.json()
    assert reply.status_code == 200
    assert completion["object"] == "chat.completion"
    assert isinstance(completion["created"], int)
    (choice,) = completion["choices"]
    assert (choice["index"], choice["finish_reason"], choice["message"]["role"]) == (0, "tool_calls", "assistant")
    assert choice["message"]["content"] == REPLY.content
    assert choice["message"]["reasoning_content"] == REPLY.reasoning_content
    first, second = choice["message"]["tool_calls"]
    assert first["function"] == {"name": "move", "arguments": '{"direction":"left"}'}
    assert second == {"id": "second", "type": "function", "function": {"name": "move", "arguments": '{"direction": '}}


def test_a_streamed_reply_equals_the_complete_one(scripted: httpx.Client) -> None:
    complete = scripted.post(CHAT, json=chat_request()).json()["choices"][0]
    chunks = streamed(scripted, chat_request())
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0]["role"] == "assistant"
    for field in ("content", "reasoning_content"):
        assert "".join(delta.get(field, "") for delta in deltas) == complete["message"][field]
    calls: dict[int, dict[str, Any]] = {}
    for part in (call for delta in deltas for call in delta.get("tool_calls", [])):
        call = calls.setdefault(part["index"], {"arguments": "", **part["function"]})
        call["arguments"] += part["function"]["arguments"]
    assert list(calls.values()) == [call["function"] for call in complete["message"]["tool_calls"]]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-2:] == [None, "tool_calls"]


def test_tokens_are_a_quarter_of_the_characters_streamed_or_not(echo: httpx.Client) -> None:
    usage = echo.post(CHAT, json=chat_request("123456789")).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (3, 3, 6)
    *chunks, last = streamed(echo, chat_request("123456789", stream_options={"include_usage": True}))
    assert (last["choices"], last["usage"]) == ([], usage)
    assert [chunk["usage"] for chunk in chunks] == [None] * len(chunks)
    with_tools = echo.post(CHAT, json=chat_request("123456789", tools=[TOOL])).json()["usage"]
    assert with_tools["prompt_tokens"] > usage["prompt_tokens"]


def test_every_response_is_marked(scripted: httpx.Client) -> None:
    completion = scripted.post(CHAT, json=chat_request(model="qwen3:8b")).json()
    assert completion["model"] == f"{TEST_MODEL_NAME}:script"
    assert completion["system_fingerprint"] == TEST_MODEL_NAME
    assert streamed(scripted, chat_request())[0]["model"] == f"{TEST_MODEL_NAME}:script"
    for path in ("/v1/models", "/api/tags", "/health", "/nowhere"):
        assert scripted.get(path).headers["x-agentgym-test-model"] == "not a language model"
    assert scripted.get("/health").json()["server"] == TEST_MODEL_NAME


def test_models_are_listed_for_openai_and_ollama_clients(scripted: httpx.Client) -> None:
    listed = scripted.get("/v1/models").json()["data"]
    assert [model["id"] for model in listed] == ["test-oracle", "test-echo", "test-script", TEST_MODEL_NAME, "qwen3:8b"]
    assert {model["owned_by"] for model in listed} == {TEST_MODEL_NAME}
    tags = scripted.get("/api/tags").json()["models"]
    assert [tag["name"] for tag in tags] == [model["id"] for model in listed]
    assert {tag["details"]["family"] for tag in tags} == {TEST_MODEL_NAME}


def test_the_model_name_selects_the_responder(scripted: httpx.Client) -> None:
    reply = scripted.post(CHAT, json=chat_request("say this", model="test-echo")).json()
    assert (reply["model"], reply["choices"][0]["message"]["content"]) == (f"{TEST_MODEL_NAME}:echo", "say this")


@pytest.mark.parametrize("model", ["gpt-4", "oracle:Maze", "oracle:Nowhere:1", "oracle:Maze:²", "oracle:Maze:-1", ""])
def test_an_unknown_model_is_a_404_in_openais_form(scripted: httpx.Client, model: str) -> None:
    reply = scripted.post(CHAT, json=chat_request(model=model))
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"model": "agentgym-test-model"}',
        b'{"model": "agentgym-test-model", "messages": []}',
        b'{"model": "agentgym-test-model", "messages": [{"role": "user", "content": 5}]}',
        b'{"model": "\xff", "messages": [{"role": "user"}]}',
        b"[" * 100_000,
        b'{"model": "agentgym-test-model", "messages": [{"role": "user"}], "agentgym_test_fault": "flood"}',
    ],
)
def test_a_malformed_request_is_a_400_in_openais_form(scripted: httpx.Client, body: bytes) -> None:
    reply = scripted.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert reply.status_code == 400
    assert reply.json()["error"]["type"] == "invalid_request_error"


def test_a_configured_token_is_required() -> None:
    token = "a-token-of-sixteen"
    with ModelServer(EchoResponder(), token=token) as server:
        assert httpx.post(server.url + CHAT, json=chat_request()).status_code == 401
        sent = {"authorization": f"Bearer {token}"}
        assert httpx.post(server.url + CHAT, json=chat_request(), headers=sent).status_code == 200
        assert server.received[0].headers["authorization"] == f"Bearer {token}"
        assert json.loads(server.received[0].body) == chat_request()


def test_a_script_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "script"
    path.write_text(
        'Action: move left\n\n{"status": 429, "headers": {"Retry-After": "2"}}\n {"content": "x", "delay_s": 1}\n'
    )
    assert read_script(path) == [
        ScriptedReply(content="Action: move left"),
        ScriptedReply(status=429, headers={"Retry-After": "2"}),
        ScriptedReply(content="x", delay_s=1),
    ]


@pytest.mark.parametrize(
    "line",
    [
        '{"status": 99}',
        '{"fault": "flood"}',
        '{"headers": {"a b": "c"}}',
        '{"headers": {"a": "b\\nc"}}',
        "{",
        '{"tool_calls": ' + "[" * 100_000,
    ],
)
def test_an_invalid_line_of_a_script_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "script"
    path.write_text(f"fine\n{line}\n")
    with pytest.raises(ConfigError, match="script:2 is not a valid reply"):
        read_script(path)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff"])
def test_a_script_without_replies_is_rejected(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "script"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="The script"):
        read_script(path)


def test_a_script_repeats_and_sends_bodies_and_statuses_verbatim() -> None:
    replies: list[ScriptedReply | str] = [
        ScriptedReply(status=503, content="busy", headers={"Retry-After": "7"}),
        ScriptedReply(body="<p>", headers={"Content-Type": "text/html"}, status=203),
        "last",
    ]
    with ModelServer(ScriptResponder(replies)) as server, httpx.Client(base_url=server.url) as client:
        rejected, raw, last, again = (client.post(CHAT, json=chat_request()) for _ in range(4))
    assert (rejected.status_code, rejected.headers["retry-after"], rejected.json()["error"]["message"]) == (
        503,
        "7",
        "busy",
    )
    assert (raw.status_code, raw.headers["content-type"], raw.text) == (203, "text/html", "<p>")
    assert last.json()["choices"][0]["message"]["content"] == "last"
    assert again.status_code == 503


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ("hang", Fault("hang")),
        ("429:0.1", Fault("429", 0.1)),
        ("500x2", Fault("500", 1.0, 2)),
        ("wrong-type:.5x3", Fault("wrong-type", 0.5, 3)),
    ],
)
def test_a_fault_is_parsed(spec: str, fault: Fault) -> None:
    assert Fault.parse(spec) == fault


@pytest.mark.parametrize("spec", ["", "flood", "200", "429:2", "429:", "hangx0", "429:0.1:1", "x", "429:nan"])
def test_an_invalid_fault_is_rejected(spec: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a (valid|kind of) fault"):
        Fault.parse(spec)


def test_the_seed_determines_the_affected_requests() -> None:
    def statuses(seed: int) -> list[int]:
        behavior = Behavior(faults=(Fault("429", 0.3), Fault("500", 0.3, 2)), seed=seed)
        with ModelServer(EchoResponder(), behavior=behavior) as server, httpx.Client(base_url=server.url) as client:
            return [client.post(CHAT, json=chat_request()).status_code for _ in range(40)]

    first = statuses(1)
    assert first == statuses(1) != statuses(2)
    assert 5 < first.count(429) < 20
    assert first.count(500) == 2
