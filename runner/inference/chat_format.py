"""OpenAI's chat format with TensorZero's additions: request bodies, replies, tool calls, ``<think>`` blocks.

What a model wrote goes back to the endpoint that sent it, and to no other: reasoning under the name that the server
uses, signatures, and fields that we do not know. Servers of thinking models refuse a chat in which they are missing.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Final, NamedTuple, cast

import msgspec

from runner.config.profile import Capabilities
from runner.inference.endpoints import Target
from runner.inference.errors import EndpointFailure, Field, response_failure
from runner.inference.token_capture import GATEWAY_FIELDS, REQUEST_FIELDS, TokenCapture
from runner.inference.tool_calls import calls_size, other_fields, parse_tool_calls, plain_call, portable_id
from runner.types import Chat, Message, Tokens, ToolSchema
from runner.util.display_text import one_line
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

_REASONING_FIELDS = ("reasoning_content", "reasoning")
_PART_TEXTS = frozenset({"text", "thinking", "summary", "data"})
_PLAIN = 2
"""Number of fields of a message that has only a role and a content."""
_NOTES = frozenset({"origin", "reasoning_field"})
_SHARED_FIELDS = frozenset({"role", "content", "tool_calls", "tool_call_id"})
"""Fields that every endpoint gets."""
_KNOWN_FIELDS = _SHARED_FIELDS | _NOTES | {*_REASONING_FIELDS, "refusal", "function_call"}
LENGTH_REASONS = ("length", "max_tokens")
WITHHELD = "withheld by the endpoint's content filter"


class InferenceQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A question to a model, in a form that does not depend on the endpoint."""

    messages: Chat
    tools: list[ToolSchema] = []
    temperature: float | None = None
    max_tokens: int | None = None
    stream: bool = False

    def fields(self, capabilities: Capabilities, *, token_ids: bool = False) -> frozenset[Field]:
        """Return what a request of this shape has and an endpoint may refuse."""
        has: dict[Field, bool] = {
            "token_ids": token_ids,
            "stream_options": self.stream and capabilities.stream,
            "max_tokens": self.max_tokens is not None,
            "temperature": self.temperature is not None,
            "reasoning": any(message.get("reasoning_content") for message in self.messages),
            "system": capabilities.system == "own" and any(each["role"] == "system" for each in self.messages),
            "stream": self.stream and capabilities.stream,
            "tools": bool(self.tools) and capabilities.tools == "native",
        }
        return frozenset(name for name, is_sent in has.items() if is_sent and name not in capabilities.omit)


class ModelReply(msgspec.Struct, kw_only=True):
    """A model's reply; its texts are valid UTF-8 of limited length, its tool calls have the OpenAI shape.

    Attributes:
        refusal: text with which the model refuses to answer.
        extra: fields of the message that we do not know, such as signatures of its reasoning; they go back as they are.
        reasoning_field: field that the reasoning goes back in; "" where ``extra`` has it.
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: list[dict[str, Any]] = []
    refusal: str = ""
    extra: dict[str, Any] = {}
    reasoning_field: str = "reasoning_content"
    finish_reason: str | None = None
    tokens: Tokens | None = None
    model: str | None = None
    episode_id: str | None = None
    ttft_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None

    def message(self, origin: str = "") -> Message:
        """The ``origin`` names the endpoint and model that the message may go back to."""
        message: Message = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
            if self.reasoning_field != "reasoning_content":
                message["reasoning_field"] = self.reasoning_field
        if self.tool_calls:
            message["tool_calls"] = self.tool_calls
        if self.refusal:
            message["refusal"] = self.refusal
        if origin:
            message["origin"] = origin
        return cast("Message", {**self.extra, **message})

    @property
    def is_silent(self) -> bool:
        return not (self.content.strip() or self.tool_calls or self.cause_of_silence)

    @property
    def cause_of_silence(self) -> str:
        """Why a reply has neither a text nor a tool call, as far as the endpoint shows; else ""."""
        if self.content.strip() or self.tool_calls:
            return ""
        if self.refusal or self.finish_reason == "refusal":
            return f"the model refused: {one_line(self.refusal, 200)}" if self.refusal else "the model refused"
        if self.finish_reason == "content_filter":
            return WITHHELD
        if self.finish_reason in LENGTH_REASONS:
            return describe_cut(self.tokens)
        return ""


def describe_cut(tokens: Tokens | None) -> str:
    if tokens is None or not tokens.completion:
        return "cut at its length limit"
    rest = ", all reasoning" if tokens.reasoning >= tokens.completion else ""
    return f"cut at its length limit: {tokens.completion:,} tokens{rest}"


def tokens_per_s(reply: ModelReply, seconds: float) -> float | None:
    """``seconds`` are those of the whole reply; the time before the first token is excluded if it is known."""
    seconds -= reply.ttft_s or 0.0
    return reply.tokens.completion / seconds if reply.tokens and reply.tokens.completion and seconds > 0 else None


def request_body(
    question: InferenceQuestion,
    target: Target,
    capabilities: Capabilities,
    chat: Chat,
    *,
    episode_id: str | None = None,
    with_token_ids: bool = False,
) -> bytes:
    """``chat`` is what ``sent_chat`` returns for these capabilities, ``episode_id`` TensorZero's id of the episode."""
    fields = question.fields(capabilities, token_ids=with_token_ids)
    body: dict[str, Any] = {"model": target.model, "messages": _wire_chat(chat)}
    if "tools" in fields:
        body["tools"] = question.tools
    for name in ("temperature", "max_tokens"):
        if name in fields:
            body[capabilities.rename.get(name, name)] = getattr(question, name)
    if "stream" in fields:
        body["stream"] = True
    if "stream_options" in fields:
        body["stream_options"] = {"include_usage": True}
    if "token_ids" in fields:
        body |= GATEWAY_FIELDS if target.kind == "tensorzero" else REQUEST_FIELDS
    if episode_id is not None:
        body["tensorzero::episode_id"] = episode_id
    return encode_json(body)


def sent_chat(question: InferenceQuestion, capabilities: Capabilities, origin: str) -> Chat:
    """Neighbours of one role become one message, and a missing content "", as the strictest servers demand."""
    has_calls = capabilities.tools == "native" or not question.tools
    merged: Chat = []
    ids: dict[str, str] = {}
    for message in question.messages if has_calls else flatten_tool_calls(question.messages):
        if message["role"] == "assistant":
            calls = message.get("tool_calls", ()) if message.get("origin") not in (None, origin) else ()
            ids = {call["id"]: portable_id(call["id"]) for call in calls}
        sent = _for_endpoint(message, capabilities, origin, ids)
        if capabilities.system == "folded" and sent["role"] == "system":
            sent["role"] = "user"
        last = merged[-1] if merged else None
        if last is not None and last["role"] == sent["role"] and len(last) == len(sent) == _PLAIN:
            last["content"] = "\n\n".join(filter(None, (last["content"], sent["content"])))
        else:
            merged.append(sent)
    return merged


def _for_endpoint(message: Message, capabilities: Capabilities, origin: str, ids: dict[str, str]) -> Message:
    if len(message) == _PLAIN:
        return {"role": message["role"], "content": message["content"] or ""}
    shared = cast("Message", {name: value for name, value in message.items() if name in _SHARED_FIELDS})
    shared["content"] = shared.get("content") or ""
    if message["role"] != "assistant":
        if (answered := message.get("tool_call_id")) in ids:
            shared["tool_call_id"] = ids[answered]
        return shared
    if not origin or message.get("origin") != origin:
        if calls := message.get("tool_calls"):
            shared["tool_calls"] = [{**plain_call(call), "id": ids.get(call["id"], call["id"])} for call in calls]
        return shared
    sent = cast("Message", {**message, **shared})
    wanted = capabilities.reasoning == "all" or (capabilities.reasoning == "calls" and "tool_calls" in message)
    if not wanted or message.get("reasoning_field") == "":
        sent.pop("reasoning_content", None)
        sent.pop("reasoning_field", None)
    return sent


def stored_chat(chat: Chat) -> Chat:
    """Return a chat without our own notes, as episode files have it."""
    return [cast("Message", {name: value for name, value in each.items() if name not in _NOTES}) for each in chat]


def _wire_chat(chat: Chat) -> list[dict[str, Any]]:
    wire = []
    for message in chat:
        sent: dict[str, Any] = {**message}
        if sent.pop("origin", None):
            name = sent.pop("reasoning_field", "reasoning_content")
            reasoning = sent.pop("reasoning_content", None)
            if reasoning and name:
                sent[name] = reasoning
            sent["content"] = sent.pop("content_parts", sent["content"])
        wire.append(sent)
    return wire


def flatten_tool_calls(chat: Chat) -> Chat:
    """Return the chat with tool calls and their results as plain text, for endpoints that do not accept tools."""
    flat: Chat = []
    for message in chat:
        calls = [as_dict(as_dict(call).get("function")) for call in as_list(message.get("tool_calls"))]
        texts = [f"{as_text(call.get('name'))}({as_text(call.get('arguments'))})" for call in calls]
        if calls:
            content = "\n".join([*filter(None, [message.get("content")]), *texts])
            flat.append({"role": "assistant", "content": content})
        elif message["role"] == "tool":
            flat.append({"role": "user", "content": message.get("content") or ""})
        else:
            flat.append(message)
    return flat


def parse_reply(body: bytes, capture: TokenCapture | None = None) -> ModelReply:
    value = decode_json(body)
    if not isinstance(value, dict):
        raise EndpointFailure("reply", "the reply is not a JSON object")
    raise_on_error(value)
    if not (choices := as_list(value.get("choices"))):
        raise EndpointFailure("reply", "the reply is empty: it has no choices")
    if capture is not None:
        capture.add(value)
    choice = as_dict(choices[0])
    raise_on_failed_choice(choice)
    message = as_dict(choice.get("message"))
    reply = ModelReply(
        content=content_text(message.get("content")),
        reasoning=reasoning_of(message),
        tool_calls=parse_tool_calls(message.get("tool_calls")),
        refusal=as_text(message.get("refusal")),
        extra=unknown_fields(message),
        reasoning_field=reasoning_field(message),
        finish_reason=as_text(choice.get("finish_reason"))[:40] or None,
    )
    read_metadata(reply, value)
    if reply.is_silent and reply.finish_reason is None and not (reply.extra or reply.reasoning):
        raise EndpointFailure("reply", "the reply is empty")
    return validate_reply(reply)


def raise_on_error(value: dict[str, Any]) -> None:
    """Raise an error in a body or chunk, which may come with status 200; its text quotes the server, so mask it."""
    error = value.get("error")
    if not error and ("choices" in value or "delta" in value):
        return
    details = as_dict(error) if error else value
    message = as_text(error) or as_text(details.get("message")) or as_text(details.get("detail"))
    if not error and not message:
        return
    code = details.get("code") or details.get("status")
    status = int(code) if type(code) is int or (isinstance(code, str) and code.isdecimal()) else 0
    text = f"an error instead of an answer: {message[:2000] or encode_json(error)[:2000].decode('utf-8', 'replace')}"
    if 400 <= status < 600:  # the status that the response should have had
        failure = response_failure(status, encode_json(value), str)
        raise EndpointFailure(failure.reason, text, refusal=failure.refusal, context_tokens=failure.context_tokens)
    raise EndpointFailure("server", text)


def raise_on_failed_choice(choice: dict[str, Any]) -> None:
    """Its text is not an answer, or only a part of one; raises as ``raise_on_error``."""
    raise_on_error(choice)
    if choice.get("finish_reason") == "error":
        cause = as_text(choice.get("native_finish_reason"))[:80] or "no cause given"
        raise EndpointFailure("server", f"the server ended its answer with an error: {cause}")


def validate_reply(reply: ModelReply) -> ModelReply:
    """Raises ``EndpointFailure`` if the reply is longer than ``MAX_TEXT``."""
    extra = len(encode_json(reply.extra)) if reply.extra else 0
    size = len(reply.content) + len(reply.reasoning) + len(reply.refusal) + calls_size(reply.tool_calls) + extra
    if size > MAX_TEXT:
        raise reply_too_long()
    return reply


def reply_too_long() -> EndpointFailure:
    return EndpointFailure("reply", f"the reply is longer than {MAX_TEXT >> 20} MiB of text")


def reasoning_of(message: dict[str, Any]) -> str:
    if text := next(filter(None, (as_text(message.get(name)) for name in _REASONING_FIELDS)), ""):
        return text
    parts = map(as_dict, as_list(message.get("tensorzero_extra_content")) or as_list(message.get("content")))
    kinds = ("thought", "thinking", "reasoning")
    texts = (part.get("text") or part.get("thinking") for part in parts if part.get("type") in kinds)
    return "".join(content_text(text) for text in texts)


def reasoning_field(message: dict[str, Any]) -> str:
    """Return the field that reasoning goes back in; "" if it is also in one that goes back as it is."""
    kept = "reasoning_details" in message or "tensorzero_extra_content" in message
    if kept or isinstance(message.get("content"), list):
        return ""
    return next((name for name in _REASONING_FIELDS if as_text(message.get(name))), "reasoning_content")


def unknown_fields(message: dict[str, Any]) -> dict[str, Any]:
    """Return what a message has besides its text, reasoning and calls; its parts if some are no plain text."""
    unknown = other_fields(message, _KNOWN_FIELDS)
    content = message.get("content")
    if isinstance(content, list) and any(as_dict(part).get("type") != "text" for part in content):
        unknown |= other_fields({"content_parts": content}, frozenset())
    return unknown


def merge_parts(parts: list[Any], more: list[Any]) -> None:
    """Add the parts of a streamed list; one with the kind and index of the last one extends its texts."""
    for part in more:
        last = parts[-1] if parts else None
        if not (isinstance(last, dict) and isinstance(part, dict) and _is_continued(last, part)):
            parts.append(part)
            continue
        for name, value in part.items():
            known = last.get(name)
            if name in _PART_TEXTS and isinstance(known, str) and isinstance(value, str):
                last[name] = known + value
            elif isinstance(known, list) and isinstance(value, list):
                merge_parts(known, value)
            elif value is not None:
                last[name] = value


def _is_continued(last: dict[str, Any], part: dict[str, Any]) -> bool:
    return last.get("type") == part.get("type") is not None and last.get("index") == part.get("index")


def read_metadata(reply: ModelReply, value: dict[str, Any]) -> None:
    """Copy names, token counts and times from a body or chunk; keep a name or id already set.

    llama.cpp (``timings``) and Ollama (durations) report the seconds of prefill and decode.
    """
    if isinstance(timings := value.get("timings"), dict):
        times = as_seconds(timings.get("prompt_ms"), 1e-3), as_seconds(timings.get("predicted_ms"), 1e-3)
    else:
        times = as_seconds(value.get("prompt_eval_duration"), 1e-9), as_seconds(value.get("eval_duration"), 1e-9)
    if None not in times:
        reply.prefill_s, reply.decode_s = times
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


class ThinkingMark(NamedTuple):
    """The marks around reasoning, as patterns without groups.

    Attributes:
        hint: what both marks contain; other texts are not searched for them.
        alone: whether the end mark without a start mark ends reasoning that began with the text, because some prompts
            already contain the start mark.
    """

    families: str
    hint: str
    start: str
    end: str
    alone: bool = True


THINK_TAG: Final = ThinkingMark("Qwen, DeepSeek, GLM and others", "", "<(?i:think(?:ing)?>)", "</(?i:think(?:ing)?>)")


def split_thinking(text: str, marks: tuple[ThinkingMark, ...] = (THINK_TAG,)) -> tuple[str, str]:
    """Split a text into all its reasoning and the rest, each stripped; a block without an end mark ends with it."""
    starts, lonely_ends, ends = _compile_marks(tuple(mark for mark in marks if mark.hint in text))
    thoughts, answers, position = [], [], 0
    first_open, first_close = starts.search(text), lonely_ends.search(text)
    if first_close and (first_open is None or first_close.start() < first_open.start()):
        thoughts.append(text[: first_close.start()])
        position = first_close.end()
    while opened := starts.search(text, position):
        answers.append(text[position : opened.start()])
        closed = ends[(opened.lastindex or 1) - 1].search(text, opened.end())
        thoughts.append(text[opened.end() : closed.start() if closed else len(text)])
        position = closed.end() if closed else len(text)
    answers.append(text[position:])
    return "\n".join(filter(None, map(str.strip, thoughts))), "".join(answers).strip()


def split_thought(text: str) -> tuple[str, str]:
    """Split a text into thought and action by the marks of reasoning or ``Thought: … Action: …``; else no thought."""
    thought, rest = split_thinking(text)
    if rest != text.strip():
        return thought, rest
    head, mark, rest = text.rpartition("\nAction:")
    if mark and head.lstrip().startswith("Thought:"):
        return head.strip().removeprefix("Thought:").strip(), rest.strip()
    return "", text


@functools.cache
def _compile_marks(marks: tuple[ThinkingMark, ...]) -> tuple[re.Pattern[str], re.Pattern[str], list[re.Pattern[str]]]:
    starts = "|".join(f"({mark.start})" for mark in marks)
    alone = "|".join(mark.end for mark in marks if mark.alone)
    return re.compile(starts, re.DOTALL), re.compile(alone), [re.compile(mark.end) for mark in marks]
