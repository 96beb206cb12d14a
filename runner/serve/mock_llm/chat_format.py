"""OpenAI's format of chat completions: the request fields that the test endpoint reads, and its replies.

The test endpoint has no tokenizer: four characters count as one token.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from runner.serve.mock_llm.scripted_reply import TEST_MODEL_NAME, ScriptedReply

CHARS_PER_TOKEN = 4
"""Estimated characters per token."""
MAX_STREAM_CHUNKS = 20_000
"""Maximum number of chunks for one streamed text; a longer text has larger chunks."""


class ContentPart(msgspec.Struct):
    """A part of a message's content; ``text`` is empty for images and other media."""

    text: str = ""


class CalledFunction(msgspec.Struct):
    """The name and the arguments of a tool call."""

    name: str
    arguments: str = "{}"


class ToolCallPart(msgspec.Struct):
    """A tool call in an assistant message of the conversation."""

    function: CalledFunction
    id: str = ""


class ChatMessage(msgspec.Struct):
    """One message of the conversation."""

    role: str
    content: str | list[ContentPart] | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallPart] | None = None

    @property
    def text(self) -> str:
        """The content of the message as a single text."""
        return "\n".join(part.text for part in self.content) if isinstance(self.content, list) else self.content or ""


class ToolFunction(msgspec.Struct):
    """Description of a function that a reply may call."""

    name: str
    description: str | None = None
    parameters: Any = None


class Tool(msgspec.Struct):
    """A tool that a reply may call."""

    function: ToolFunction


class StreamOptions(msgspec.Struct):
    """Request options for a streamed reply."""

    include_usage: bool | None = False


class ChatRequest(msgspec.Struct, kw_only=True):
    """A chat completion request; ``agentgym_test_fault`` selects a fault for its reply."""

    model: str
    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    tools: list[Tool] | None = None
    tool_choice: Any = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    agentgym_test_fault: str | None = None

    @property
    def callable_tools(self) -> frozenset[str]:
        """The names of the tools that a reply may call."""
        return frozenset() if self.tool_choice == "none" else frozenset(tool.function.name for tool in self.tools or ())

    @property
    def includes_usage(self) -> bool:
        """Whether a streamed reply ends with a chunk that contains the token counts."""
        return bool(self.stream_options and self.stream_options.include_usage)


class Completion(msgspec.Struct, frozen=True):
    """A chat completion, as one document or as stream chunks; ``created`` is in seconds since 1970."""

    id: str
    created: int
    model: str
    request: ChatRequest
    reply: ScriptedReply

    def document(self) -> dict[str, Any]:
        """Return the completion as one document."""
        message: dict[str, Any] = {"role": "assistant", "content": self.reply.content, **self._reasoning_field()}
        if self.reply.tool_calls:
            message["tool_calls"] = self._tool_calls()
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self._finish_reason()}
        return {**self._common_fields("chat.completion"), "choices": [choice], "usage": self._usage()}

    def chunks(self) -> Iterator[dict[str, Any]]:
        """Yield the completion as stream chunks, each with about one token."""
        yield self._chunk({"role": "assistant", "content": ""})
        yield from (self._chunk({"reasoning_content": text}) for text in _split_tokens(self.reply.reasoning_content))
        yield from (self._chunk({"content": text}) for text in _split_tokens(self.reply.content))
        for index, call in enumerate(self._tool_calls()):
            function = call["function"]
            first = {**call, "index": index, "function": {**function, "arguments": ""}}
            yield self._chunk({"tool_calls": [first]})
            for text in _split_tokens(function["arguments"]):
                yield self._chunk({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
        yield self._chunk({}, self._finish_reason())
        if self.request.includes_usage:
            yield {**self._common_fields("chat.completion.chunk"), "choices": [], "usage": self._usage()}

    def _common_fields(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": TEST_MODEL_NAME,
        }

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        chunk = {**self._common_fields("chat.completion.chunk"), "choices": [choice]}
        return {**chunk, "usage": None} if self.request.includes_usage else chunk

    def _reasoning_field(self) -> dict[str, str]:
        reasoning = self.reply.reasoning_content
        return {} if reasoning is None else {"reasoning_content": reasoning}

    def _tool_calls(self) -> list[dict[str, Any]]:
        return [
            {
                "id": f"call_{self.id}_{index}" if call.id is None else call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments_text},
            }
            for index, call in enumerate(self.reply.tool_calls)
        ]

    def _finish_reason(self) -> str:
        return self.reply.finish_reason or ("tool_calls" if self.reply.tool_calls else "stop")

    def _usage(self) -> dict[str, Any]:
        prompt, completion = estimate_tokens(_prompt_text(self.request)), estimate_tokens(self.reply.text)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": estimate_tokens(self.reply.reasoning_content or "")},
        }


def estimate_tokens(text: str) -> int:
    """Return the estimated number of tokens: a quarter of the number of characters, rounded up."""
    return -(-len(text) // CHARS_PER_TOKEN)


def error_document(message: str, *, kind: str, code: str | None) -> dict[str, Any]:
    """Return the JSON document of an error, in OpenAI's form."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _prompt_text(request: ChatRequest) -> str:
    parts = [message.text for message in request.messages]
    called = [call.function for message in request.messages for call in message.tool_calls or ()]
    parts += [function.name + function.arguments for function in called]
    return "".join(parts) + (msgspec.json.encode(request.tools).decode() if request.tools else "")


def _split_tokens(text: str | None) -> list[str]:
    text = text or ""
    size = max(CHARS_PER_TOKEN, -(-len(text) // MAX_STREAM_CHUNKS))
    return [text[start : start + size] for start in range(0, len(text), size)]
