"""OpenAI's format of chat completions: the request fields that the test endpoint reads, and its replies.

The test endpoint has no tokenizer: four characters count as one token, whose id is their checksum.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from runner.serve.mock_llm.scripted_reply import TEST_MODEL_NAME, ScriptedReply

CHARS_PER_TOKEN = 4
"""Estimated characters per token."""
MAX_STREAM_CHUNKS = 20_000
"""Maximum number of chunks for one streamed text; a longer text has larger chunks."""
VOCABULARY = 50_000
"""Number of different token ids."""


class ContentPart(msgspec.Struct):
    """A part of a message's content; ``text`` is empty for images and other media."""

    text: str = ""


class CalledFunction(msgspec.Struct):
    name: str
    arguments: str = "{}"


class ToolCallPart(msgspec.Struct):
    function: CalledFunction
    id: str = ""


class ChatMessage(msgspec.Struct):
    role: str
    content: str | list[ContentPart] | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallPart] | None = None

    @property
    def text(self) -> str:
        return "\n".join(part.text for part in self.content) if isinstance(self.content, list) else self.content or ""


class ToolFunction(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: Any = None


class Tool(msgspec.Struct):
    function: ToolFunction


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = False


class ChatRequest(msgspec.Struct, kw_only=True):
    """A chat completion request; ``agentgym_test_fault`` selects a fault for its reply.

    ``return_token_ids`` and ``logprobs`` add token ids and log-probabilities in the form of vLLM.
    """

    model: str
    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    tools: list[Tool] | None = None
    tool_choice: Any = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = False
    logprobs: bool | None = False
    agentgym_test_fault: str | None = None

    @property
    def callable_tools(self) -> frozenset[str]:
        return frozenset() if self.tool_choice == "none" else frozenset(tool.function.name for tool in self.tools or ())

    @property
    def includes_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class Completion(msgspec.Struct, frozen=True):
    """A chat completion, as one document or as stream chunks; ``created`` is in seconds since 1970."""

    id: str
    created: int
    model: str
    request: ChatRequest
    reply: ScriptedReply

    def document(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self.reply.content, **self._reasoning_field()}
        if self.reply.tool_calls:
            message["tool_calls"] = self._tool_calls()
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self._finish_reason()}
        choice |= self._token_fields(self._generated_tokens())
        common = self._common_fields("chat.completion") | self._prompt_fields()
        return {**common, "choices": [choice], "usage": self._usage()}

    def chunks(self) -> Iterator[dict[str, Any]]:
        """Each chunk has about one token."""
        yield self._chunk({"role": "assistant", "content": ""}) | self._prompt_fields()
        for text in _split_tokens(self.reply.reasoning_content):
            yield self._chunk({"reasoning_content": text}, tokens=[text])
        for text in _split_tokens(self.reply.content):
            yield self._chunk({"content": text}, tokens=[text])
        for index, call in enumerate(self._tool_calls()):
            function = call["function"]
            first = {**call, "index": index, "function": {**function, "arguments": ""}}
            yield self._chunk({"tool_calls": [first]}, tokens=_split_tokens(function["name"]))
            for text in _split_tokens(function["arguments"]):
                yield self._chunk({"tool_calls": [{"index": index, "function": {"arguments": text}}]}, tokens=[text])
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

    def _chunk(
        self, delta: dict[str, Any], finish_reason: str | None = None, tokens: Sequence[str] = ()
    ) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        if tokens:
            choice |= self._token_fields(tokens)
        chunk = {**self._common_fields("chat.completion.chunk"), "choices": [choice]}
        return {**chunk, "usage": None} if self.request.includes_usage else chunk

    def _generated_tokens(self) -> list[str]:
        functions = [call["function"] for call in self._tool_calls()]
        texts = [self.reply.reasoning_content, self.reply.content]
        texts += [text for function in functions for text in (function["name"], function["arguments"])]
        return [token for text in texts for token in _split_tokens(text)]

    def _prompt_fields(self) -> dict[str, list[int]]:
        tokens = _split_tokens(_prompt_text(self.request)) if self.request.return_token_ids else []
        return {"prompt_token_ids": list(map(token_id, tokens))} if tokens else {}

    def _token_fields(self, tokens: Sequence[str]) -> dict[str, Any]:
        fields: dict[str, Any] = {"token_ids": list(map(token_id, tokens))} if self.request.return_token_ids else {}
        if self.request.logprobs:
            content = [{"token": token, "logprob": token_logprob(token), "top_logprobs": []} for token in tokens]
            fields["logprobs"] = {"content": content}
        return fields

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
        if self.request.return_token_ids:
            completion = len(self._generated_tokens())
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": estimate_tokens(self.reply.reasoning_content or "")},
        }


def estimate_tokens(text: str) -> int:
    """A quarter of the number of characters, rounded up."""
    return -(-len(text) // CHARS_PER_TOKEN)


def token_id(token: str) -> int:
    """The id of four characters is the same in each process."""
    return zlib.crc32(token.encode("utf-8", "replace")) % VOCABULARY


def token_logprob(token: str) -> float:
    """Follows from the id of the token."""
    return -(token_id(token) % 1000 + 1) / 1000


def error_document(message: str, *, kind: str, code: str | None) -> dict[str, Any]:
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
