"""Request bodies, parsed replies and error responses of chat completions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runner.config.profile import Capabilities
from runner.inference.chat_format import MAX_TEXT, InferenceQuestion, parse_reply, request_body, sent_chat
from runner.inference.endpoints import Target
from runner.inference.errors import EndpointFailure, Reason, response_failure
from runner.inference.sse import StreamAccumulator
from runner.types import Chat, Tokens, ToolSchema
from runner.util.json_accessors import encode_json
from tests.support.rude_model import USAGE, chat_completion

TARGET = Target(kind="openai", url="http://x/v1/chat/completions", model="m")
TOOLS: list[ToolSchema] = [{"type": "function", "function": {"name": "up", "parameters": {"type": "object"}}}]
CALL: dict[str, Any] = {"id": "c1", "type": "function", "function": {"name": "up", "arguments": "{}"}}
CHAT: Chat = [
    {"role": "user", "content": "task"},
    {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [CALL]},
    {"role": "tool", "content": "at 1", "tool_call_id": "c1"},
]


def sent_body(question: InferenceQuestion, episode_id: str | None = None, **capabilities: Any) -> dict[str, Any]:  # noqa: ANN401
    shape = Capabilities(**capabilities)
    body = request_body(question, TARGET, shape, sent_chat(question, shape, ""), episode_id=episode_id)
    sent: dict[str, Any] = json.loads(body)
    return sent


def test_a_request_body_contains_all_settings() -> None:
    question = InferenceQuestion(messages=CHAT, tools=TOOLS, temperature=0.5, max_tokens=9, stream=True)
    assert sent_body(question, episode_id="e") == {
        "model": "m",
        "messages": [CHAT[0], {"role": "assistant", "content": "", "tool_calls": [CALL]}, CHAT[2]],
        "tools": TOOLS,
        "temperature": 0.5,
        "max_tokens": 9,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tensorzero::episode_id": "e",
    }


def test_unset_settings_are_not_sent() -> None:
    assert set(sent_body(InferenceQuestion(messages=CHAT[:1]))) == {"model", "messages"}


def test_without_tools_tool_calls_are_sent_as_text() -> None:
    sent = sent_body(InferenceQuestion(messages=CHAT, tools=TOOLS), tools="text")
    assert "tools" not in sent
    assert sent["messages"][1:] == [{"role": "assistant", "content": "up({})"}, {"role": "user", "content": "at 1"}]


def test_lone_surrogates_can_be_sent() -> None:
    assert (
        sent_body(InferenceQuestion(messages=[{"role": "user", "content": "a\ud800b"}]))["messages"][0]["content"]
        == "a?b"
    )


def parse(message: dict[str, Any], **fields: Any) -> Any:  # noqa: ANN401
    return parse_reply(json.dumps(chat_completion(message, **fields)).encode())


def test_a_reply_has_text_reasoning_tokens_and_episode_id() -> None:
    usage = USAGE | {
        "completion_tokens_details": {"reasoning_tokens": 50},
        "prompt_tokens_details": {"cached_tokens": 7},
    }
    reply = parse({"content": "up", "reasoning": "why"}, usage=usage, episode_id="e")
    assert reply.message() == {
        "role": "assistant",
        "content": "up",
        "reasoning_content": "why",
        "reasoning_field": "reasoning",
    }
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
def test_text_and_reasoning_are_read_from_all_known_fields(
    message: dict[str, Any], content: str, reasoning: str
) -> None:
    reply = parse(message)
    assert (reply.content, reply.reasoning) == (content, reasoning)


def test_malformed_tool_calls_are_repaired_or_dropped() -> None:
    calls = [
        {"function": {"name": "up", "arguments": {"n": 1}}},
        {"id": 5, "function": {"name": "up", "arguments": "not json"}},
        {"id": "c", "function": {"name": "up"}},
        {"function": {"arguments": "{}"}},
        "nonsense",
    ]
    assert [(c["id"], c["function"]["arguments"]) for c in parse({"tool_calls": calls}).tool_calls] == [
        ("call00000", '{"n":1}'),
        ("call00001", "not json"),
        ("c", "{}"),
    ]


@pytest.mark.parametrize(
    ("field", "kept"),
    [
        ({"a\ud800": ["b\ud800", 1e999, 2**70, None]}, {"a\\ud800": ["b\\ud800", None, 2**70, None]}),
        (json.loads("[" * 64 + "]" * 64), json.loads("[" * 64 + "]" * 64)),
        (json.loads("[" * 65 + "]" * 65), None),
    ],
)
def test_other_fields_of_a_call_can_be_encoded_again(field: object, kept: object) -> None:
    (call,) = parse({"tool_calls": [{**CALL, "extra_content": field}]}).tool_calls
    assert call == (CALL if kept is None else {**CALL, "extra_content": kept})
    encode_json(call).decode()


def test_other_fields_of_calls_count_as_text() -> None:
    call = {**CALL, "function": {**CALL["function"], "signature": "x" * MAX_TEXT}}
    for message in ({"tool_calls": [call]}, {"tool_calls": [{**CALL, "signature": "x" * MAX_TEXT}]}):
        with pytest.raises(EndpointFailure, match="longer than 2 MiB"):
            parse(message)
        accumulator = StreamAccumulator(lambda: 0.0)
        with pytest.raises(EndpointFailure, match="longer than 2 MiB"):
            accumulator.add(json.dumps({"choices": [{"delta": message}]}).encode())


@pytest.mark.parametrize(
    ("choice", "cause"),
    [
        ({"finish_reason": "error"}, "ended its answer with an error: no cause given"),
        ({"finish_reason": "error", "native_finish_reason": "MALFORMED_CALL"}, "with an error: MALFORMED_CALL"),
        ({"finish_reason": "error", "error": {"message": "overloaded"}}, "instead of an answer: overloaded"),
        ({"finish_reason": "stop", "error": {"message": "overloaded"}}, "instead of an answer: overloaded"),
    ],
)
def test_an_answer_that_ends_with_an_error_is_none(choice: dict[str, Any], cause: str) -> None:
    with pytest.raises(EndpointFailure, match=cause):
        parse_reply(json.dumps({"choices": [{"message": {"content": "Action: u"}, **choice}]}).encode())
    accumulator = StreamAccumulator(lambda: 0.0)
    accumulator.add(json.dumps({"choices": [{"delta": {"content": "Action: u"}}]}).encode())
    with pytest.raises(EndpointFailure, match=cause):
        accumulator.add(json.dumps({"choices": [{"delta": {}, **choice}]}).encode())


@pytest.mark.parametrize("usage", [None, [], "many", {}, {"prompt_tokens": -1, "completion_tokens": True}])
def test_an_invalid_usage_is_ignored(usage: object) -> None:
    tokens = parse({"content": "up"}, usage=usage).tokens
    assert tokens is None or tokens == Tokens()


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"null", b"[]", b"{}", b"<html>", b'{"choices": []}', b'{"choices": 5}', b"[" * 100_000, b"\xff\xfe"),
        *(b'{"error": "busy"}', b'{"code": 429, "message": "no quota"}', b"1" * 5000),
    ],
)
def test_bodies_without_an_answer_are_failures(data: bytes) -> None:
    with pytest.raises(EndpointFailure):
        parse_reply(data)


@pytest.mark.parametrize(
    ("status", "body_text", "reason"),
    [
        (429, b"", "busy"),
        *((status, b"oops", "server") for status in (408, 500, 503)),
        (400, b'{"error": {"message": "context is too long"}}', "request"),
        *((status, b"", "request") for status in (413, 422)),
        (400, b'{"error": {"message": "Invalid model name: Model name \'x\' not found"}}', "configuration"),
        *((status, b"", "configuration") for status in (302, 401, 404)),
        (204, b"", "reply"),
    ],
)
def test_each_status_has_a_failure_reason(status: int, body_text: bytes, reason: Reason) -> None:
    assert response_failure(status, body_text, str).reason == reason


def test_quoted_text_in_errors_is_masked_and_on_one_line() -> None:
    failure = response_failure(500, b'{"detail": "bad\\nkey sk-1\\u001b[2J"}', lambda text: text.replace("sk-1", "***"))
    assert str(failure) == "HTTP 500: bad␊key ***␛[2J"


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        (["a", "a", "a"], ["a", "call00001", "call00002"]),
        (["", "call00000", "b"], ["call00001", "call00000", "b"]),
        (["call00002", "", "call00002"], ["call00002", "call00001", "call00003"]),
        (["x" * 60_000, "x" * 70_000], ["x" * 60_000, "call00001"]),
    ],
)
def test_tool_calls_keep_their_ids_and_others_get_unique_ones_of_nine_letters_and_digits(
    given: list[str], ids: list[str]
) -> None:
    calls = [{"index": n, "id": id, "function": {"name": "up"}} for n, id in enumerate(given)]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    accumulator = StreamAccumulator(lambda: 0.0)
    accumulator.add(json.dumps({"choices": [{"delta": message, "finish_reason": "tool_calls"}]}).encode())
    for reply in (parse_reply(json.dumps(chat_completion(message)).encode()), accumulator.result()):
        assert [call["id"] for call in reply.tool_calls] == ids
