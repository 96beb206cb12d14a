"""OpenAI's chat format with TensorZero's additions: request bodies, replies, tool calls, ``<think>`` blocks."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from runner.inference.errors import EndpointFailure
from runner.inference.providers import Target
from runner.inference.token_capture import GATEWAY_FIELDS, REQUEST_FIELDS, TokenCapture
from runner.inference.tool_calls import calls_size, parse_tool_calls
from runner.types import Chat, Message, Tokens, ToolSchema
from runner.util.json_accessors import (
    as_count,
    as_dict,
    as_list,
    as_seconds,
    as_text,
    content_text,
    decode_json,
    encode_json,
)

MAX_TEXT = 2 << 20
"""Maximum total characters of a reply's content, reasoning and tool calls."""

_SENT_FIELDS = frozenset({"role", "content", "tool_calls", "tool_call_id"})
_OPEN, _CLOSE = re.compile(r"<think(?:ing)?>", re.IGNORECASE), re.compile(r"</think(?:ing)?>", re.IGNORECASE)


class InferenceQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A question to a model, in a form that does not depend on the endpoint."""

    messages: Chat
    tools: list[ToolSchema] = []
    temperature: float | None = None
    max_tokens: int | None = None
    stream: bool = False


class ModelReply(msgspec.Struct, kw_only=True):
    """A model's reply; its texts are valid UTF-8 of limited length, its tool calls have the OpenAI shape."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[dict[str, Any]] = []
    finish_reason: str | None = None
    tokens: Tokens | None = None
    model: str | None = None
    episode_id: str | None = None
    ttft_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None

    def message(self) -> Message:
        """Return the reply as a chat message."""
        message: Message = {"role": "assistant", "content": self.content or (None if self.tool_calls else "")}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = self.tool_calls
        return message


def tokens_per_s(reply: ModelReply, seconds: float) -> float | None:
    """Return the completion tokens per second of a reply that took ``seconds`` in all, or None if unknown.

    The time before the first token is excluded if it is known.
    """
    seconds -= reply.ttft_s or 0.0
    return reply.tokens.completion / seconds if reply.tokens and reply.tokens.completion and seconds > 0 else None


def request_body(
    question: InferenceQuestion,
    target: Target,
    *,
    use_tools: bool,
    episode_id: str | None = None,
    with_token_ids: bool = False,
) -> bytes:
    """Return the JSON request body for a target; if ``use_tools`` is False, it has earlier tool calls as plain text."""
    chat = question.messages if use_tools or not question.tools else flatten_tool_calls(question.messages)
    body: dict[str, Any] = {
        "model": target.model,
        "messages": [{key: value for key, value in message.items() if key in _SENT_FIELDS} for message in chat],
    }
    if use_tools:
        body["tools"] = question.tools
    if question.temperature is not None:
        body["temperature"] = question.temperature
    if question.max_tokens is not None:
        body["max_tokens"] = question.max_tokens
    if question.stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if with_token_ids:
        body |= GATEWAY_FIELDS if target.kind == "tensorzero" else REQUEST_FIELDS
    if episode_id is not None:
        body["tensorzero::episode_id"] = episode_id
    return encode_json(body)


def flatten_tool_calls(chat: Chat) -> Chat:
    """Return the chat with tool calls and their results as plain text, for endpoints that do not accept tools."""
    return [_flatten_message(message) for message in chat]


def parse_reply(body: bytes, capture: TokenCapture | None = None) -> ModelReply:
    """Return the reply in a response body; ``capture`` receives its token ids.

    Raises:
        EndpointFailure: if the body contains no usable answer.
    """
    value = decode_json(body)
    if not isinstance(value, dict):
        raise EndpointFailure("reply", "the reply is not a JSON object")
    raise_on_error(value)
    if capture is not None:
        capture.add(value)
    choice = as_dict(next(iter(as_list(value.get("choices"))), None))
    raise_on_failed_choice(choice)
    message = as_dict(choice.get("message"))
    reply = ModelReply(
        content=content_text(message.get("content")),
        reasoning=reasoning_of(message),
        tool_calls=parse_tool_calls(message.get("tool_calls")),
        finish_reason=as_text(choice.get("finish_reason"))[:40] or None,
    )
    read_metadata(reply, value)
    return validate_reply(reply)


def raise_on_error(value: dict[str, Any]) -> None:
    """Check a decoded response body or stream chunk for an error, which may come with HTTP status 200.

    Raises:
        EndpointFailure: if there is an error; the message quotes the server, so the caller must mask it.
    """
    if error := value.get("error"):
        message = as_text(error) or as_text(as_dict(error).get("message"))
        raise EndpointFailure("server", f"an error instead of an answer: {message[:2000]}")


def raise_on_failed_choice(choice: dict[str, Any]) -> None:
    """Check a choice of a response body or stream chunk for an error: its text is not an answer, or only a part of one.

    Raises:
        EndpointFailure: as ``raise_on_error``.
    """
    raise_on_error(choice)
    if choice.get("finish_reason") == "error":
        cause = as_text(choice.get("native_finish_reason"))[:80] or "no cause given"
        raise EndpointFailure("server", f"the server ended its answer with an error: {cause}")


def validate_reply(reply: ModelReply) -> ModelReply:
    """Return the reply unchanged after checking its length.

    Raises:
        EndpointFailure: if the reply is empty or longer than ``MAX_TEXT``.
    """
    if len(reply.content) + len(reply.reasoning) + calls_size(reply.tool_calls) > MAX_TEXT:
        raise reply_too_long()
    if not (reply.content or reply.reasoning or reply.tool_calls):
        raise EndpointFailure("reply", "the reply is empty")
    return reply


def reply_too_long() -> EndpointFailure:
    """Return the exception for a reply that is longer than ``MAX_TEXT``."""
    return EndpointFailure("reply", f"the reply is longer than {MAX_TEXT >> 20} MiB of text")


def reasoning_of(message: dict[str, Any]) -> str:
    """Return the reasoning in a message; servers use different fields for it."""
    text = as_text(message.get("reasoning_content")) or as_text(message.get("reasoning"))
    if text:
        return text
    thoughts = map(as_dict, as_list(message.get("tensorzero_extra_content")))
    return "".join(as_text(thought.get("text")) for thought in thoughts if thought.get("type") == "thought")


def read_metadata(reply: ModelReply, value: dict[str, Any]) -> None:
    """Copy names, token counts and the server's own timing from a body or chunk; keep a name or id already set."""
    read_server_times(reply, value)
    reply.model = reply.model or as_text(value.get("model"))[:200] or None
    reply.episode_id = reply.episode_id or as_text(value.get("episode_id"))[:64] or None
    usage = value.get("usage")
    if isinstance(usage, dict) and usage:
        reply.tokens = Tokens(
            prompt=as_count(usage.get("prompt_tokens")),
            completion=as_count(usage.get("completion_tokens")),
            reasoning=as_count(as_dict(usage.get("completion_tokens_details")).get("reasoning_tokens")),
            cached=as_count(as_dict(usage.get("prompt_tokens_details")).get("cached_tokens")),
        )


def read_server_times(reply: ModelReply, value: dict[str, Any]) -> None:
    """Copy the seconds of prefill and decode that llama.cpp (``timings``) and Ollama (durations) report."""
    if isinstance(timings := value.get("timings"), dict):
        times = as_seconds(timings.get("prompt_ms"), 1e-3), as_seconds(timings.get("predicted_ms"), 1e-3)
    else:
        times = as_seconds(value.get("prompt_eval_duration"), 1e-9), as_seconds(value.get("eval_duration"), 1e-9)
    if None not in times:
        reply.prefill_s, reply.decode_s = times


def _flatten_message(message: Message) -> Message:
    calls = [as_dict(as_dict(call).get("function")) for call in as_list(message.get("tool_calls"))]
    if calls:
        texts = [f"{as_text(call.get('name'))}({as_text(call.get('arguments'))})" for call in calls]
        return {"role": "assistant", "content": "\n".join([*filter(None, [message.get("content")]), *texts])}
    if message["role"] == "tool":
        return {"role": "user", "content": message.get("content") or ""}
    return message


def split_thinking(text: str) -> tuple[str, str]:
    """Split a text into the contents of all ``<think>`` blocks and the remaining text, each stripped.

    A block without an end tag extends to the end of the text. A block without a start tag extends from the beginning,
    because some prompts already contain the start tag.
    """
    thoughts, answers, position = [], [], 0
    first_open, first_close = _OPEN.search(text), _CLOSE.search(text)
    if first_close and (first_open is None or first_close.start() < first_open.start()):
        thoughts.append(text[: first_close.start()])
        position = first_close.end()
    while opened := _OPEN.search(text, position):
        answers.append(text[position : opened.start()])
        closed = _CLOSE.search(text, opened.end())
        thoughts.append(text[opened.end() : closed.start() if closed else len(text)])
        position = closed.end() if closed else len(text)
    answers.append(text[position:])
    return "\n".join(filter(None, map(str.strip, thoughts))), "".join(answers).strip()
