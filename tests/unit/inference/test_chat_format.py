from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.inference.chat_format import InferenceQuestion, parse_reply, request_body
from runner.inference.errors import EndpointFailure, Reason, response_failure
from runner.inference.providers import Target
from runner.inference.sse import StreamAccumulator
from runner.types import Chat, Tokens, ToolSchema
from tests.support.rude_model import USAGE, chat_completion
from tests.unit.inference.test_sse import JSON

TARGET = Target(kind="openai", url="http://x/v1/chat/completions", model="m")
TOOLS: list[ToolSchema] = [{"type": "function", "function": {"name": "up", "parameters": {"type": "object"}}}]
CALL = {"id": "c1", "type": "function", "function": {"name": "up", "arguments": "{}"}}
CHAT: Chat = [
    {"role": "user", "content": "task"},
    {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [CALL]},
    {"role": "tool", "content": "at 1", "tool_call_id": "c1"},
]


def body(question: InferenceQuestion, *, use_tools: bool = False, episode_id: str | None = None) -> dict[str, Any]:
    sent: dict[str, Any] = json.loads(request_body(question, TARGET, use_tools=use_tools, episode_id=episode_id))
    return sent


def test_what_is_sent() -> None:
    question = InferenceQuestion(messages=CHAT, tools=TOOLS, temperature=0.5, max_tokens=9, stream=True)
    assert body(question, use_tools=True, episode_id="e") == {
        "model": "m",
        "messages": [CHAT[0], {"role": "assistant", "content": None, "tool_calls": [CALL]}, CHAT[2]],
        "tools": TOOLS,
        "temperature": 0.5,
        "max_tokens": 9,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tensorzero::episode_id": "e",
    }


def test_what_is_not_set_is_not_sent() -> None:
    assert set(body(InferenceQuestion(messages=CHAT[:1]))) == {"model", "messages"}


def test_without_tools_the_chat_is_plain_text() -> None:
    sent = body(InferenceQuestion(messages=CHAT, tools=TOOLS))
    assert "tools" not in sent
    assert sent["messages"][1:] == [
        {"role": "assistant", "content": "up({})"},
        {"role": "user", "content": "at 1"},
    ]


def test_lone_surrogates_can_be_sent() -> None:
    assert (
        body(InferenceQuestion(messages=[{"role": "user", "content": "a\ud800b"}]))["messages"][0]["content"] == "a?b"
    )


def parsed(message: dict[str, Any], **fields: Any) -> Any:  # noqa: ANN401
    return parse_reply(json.dumps(chat_completion(message, **fields)).encode())


def test_a_reply() -> None:
    usage = USAGE | {
        "completion_tokens_details": {"reasoning_tokens": 50},
        "prompt_tokens_details": {"cached_tokens": 7},
    }
    reply = parsed({"content": "up", "reasoning": "why"}, usage=usage, episode_id="e")
    assert reply.message() == {"role": "assistant", "content": "up", "reasoning_content": "why"}
    assert (reply.tokens, reply.episode_id) == (Tokens(1000, 200, 50, 7), "e")


@pytest.mark.parametrize(
    ("message", "content", "reasoning"),
    [
        ({"content": [{"type": "text", "text": "u"}, {"text": "p"}, 5]}, "up", ""),
        ({"content": None, "reasoning_content": "hm"}, "", "hm"),
        ({"content": "up", "tensorzero_extra_content": [{"type": "thought", "text": "hm"}, {"type": "x"}]}, "up", "hm"),
        ({"content": "a\ud800"}, "a\\ud800", ""),
    ],
)
def test_where_texts_are_found(message: dict[str, Any], content: str, reasoning: str) -> None:
    reply = parsed(message)
    assert (reply.content, reply.reasoning) == (content, reasoning)


def test_tool_calls_of_odd_shapes() -> None:
    calls = [
        {"function": {"name": "up", "arguments": {"n": 1}}},
        {"id": 5, "function": {"name": "up", "arguments": "not json"}},
        {"id": "c", "function": {"name": "up"}},
        {"function": {"arguments": "{}"}},
        "nonsense",
    ]
    assert [(c["id"], c["function"]["arguments"]) for c in parsed({"tool_calls": calls}).tool_calls] == [
        ("call_0", '{"n":1}'),
        ("call_1", "not json"),
        ("c", "{}"),
    ]


@pytest.mark.parametrize("usage", [None, [], "many", {}, {"prompt_tokens": -1, "completion_tokens": True}])
def test_usage_that_is_none(usage: object) -> None:
    tokens = parsed({"content": "up"}, usage=usage).tokens
    assert tokens is None or tokens == Tokens()


NO_ANSWERS = [b"", b"null", b"[]", b"{}", b"<html>", b'{"choices": []}', b'{"choices": 5}', b"[" * 100_000, b"\xff\xfe"]


@pytest.mark.parametrize(
    "data",
    [*NO_ANSWERS, b'{"choices": [{"message": {"content": null}}]}', b'{"error": "busy"}', b"1" * 5000],
)
def test_bodies_that_are_no_answer(data: bytes) -> None:
    with pytest.raises(EndpointFailure):
        parse_reply(data)


@settings(max_examples=80, deadline=None)
@given(JSON.map(lambda value: json.dumps({"choices": [value]}).encode()) | st.binary(max_size=50))
def test_no_body_is_worse_than_a_failure(data: bytes) -> None:
    try:
        message = parse_reply(data).message()
    except EndpointFailure:
        return
    assert json.loads(json.dumps(message)) == message


@pytest.mark.parametrize(
    ("status", "said", "reason"),
    [
        (429, b"", "busy"),
        (500, b"oops", "server"),
        (503, b'{"error": {"message": "loading"}}', "server"),
        (408, b"", "server"),
        (400, b'{"error": {"message": "context is too long"}}', "request"),
        (422, b"", "request"),
        (413, b"", "request"),
        (
            400,
            b'{"error": {"message": "Invalid inference target: Invalid model name: Model name \'x\' not found"}}',
            "configuration",
        ),
        (404, b'{"error": "model \'qwen2.5\' not found"}', "configuration"),
        (404, b"", "configuration"),
        (401, b"", "configuration"),
        (302, b"", "configuration"),
        (204, b"", "reply"),
    ],
)
def test_what_a_status_means(status: int, said: bytes, reason: Reason) -> None:
    assert response_failure(status, said, str).reason == reason


@pytest.mark.parametrize(
    "said",
    [
        '{"error": {"message": "registry.ollama.ai/library/x does not support tools"}}',
        '{"message": "\\"auto\\" tool choice requires --enable-auto-tool-choice"}',
    ],
)
def test_refused_tools_are_told_apart(said: str) -> None:
    assert response_failure(400, said.encode(), str).no_tools
    assert not response_failure(400, b"too long", str).no_tools


def test_what_an_error_quotes_is_masked_and_on_one_line() -> None:
    failure = response_failure(500, b'{"detail": "bad\\nkey sk-1\\u001b[2J"}', lambda text: text.replace("sk-1", "***"))
    assert str(failure) == "HTTP 500: bad␊key ***␛[2J"


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        (["a", "a", "a"], ["a", "call_0", "call_1"]),
        (["", "call_0", "b"], ["call_0", "call_1", "b"]),
        (["call_1", "", "call_1"], ["call_1", "call_0", "call_2"]),
    ],
)
def test_calls_get_ids_of_their_own(given: list[str], ids: list[str]) -> None:
    calls = [{"index": n, "id": id, "function": {"name": "up"}} for n, id in enumerate(given)]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    assembly = StreamAccumulator(lambda: 0.0)
    assembly.add(json.dumps({"choices": [{"delta": message, "finish_reason": "tool_calls"}]}).encode())
    for reply in (parse_reply(json.dumps(chat_completion(message)).encode()), assembly.result()):
        assert [call["id"] for call in reply.tool_calls] == ids
