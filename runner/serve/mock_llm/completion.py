"""Requests and replies of the test endpoint in OpenAI's format.

The test endpoint has no tokenizer: four characters count as one token, whose id is their checksum.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from runner.serve.mock_llm.script import ScriptedReply

TEST_MODEL_NAME = "agentgym-test-model"
"""Model name of the test endpoint in replies and model lists."""
CHARS_PER_TOKEN = 4
MAX_STREAM_CHUNKS = 20_000
"""Maximum number of chunks for one streamed text; a longer text has larger chunks."""
VOCABULARY = 50_000
"""Number of different token ids."""


class ContentPart(msgspec.Struct):
    """A part of a message's content; ``text`` is empty for images and other media."""

    text: str = ""


class Function(msgspec.Struct, omit_defaults=True):
    name: str
    arguments: str = "{}"
    description: str | None = None
    parameters: Any = None


class Tool(msgspec.Struct):
    """A tool that is offered, or a call of one, which has ``arguments``."""

    function: Function


class ChatMessage(msgspec.Struct):
    role: str
    content: str | list[ContentPart] | None = None
    tool_calls: list[Tool] | None = None

    @property
    def text(self) -> str:
        return "\n".join(part.text for part in self.content) if isinstance(self.content, list) else self.content or ""


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = False


class ChatRequest(msgspec.Struct, kw_only=True):
    """``agentgym_test_fault`` selects a fault; ``return_token_ids`` and ``logprobs`` add fields as in vLLM."""

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
    def includes_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def callable_tools(self) -> frozenset[str]:
        return frozenset() if self.tool_choice == "none" else frozenset(tool.function.name for tool in self.tools or ())

    @property
    def prompt(self) -> str:
        parts = [message.text for message in self.messages]
        called = [call.function for message in self.messages for call in message.tool_calls or ()]
        parts += [function.name + function.arguments for function in called]
        return "".join(parts) + (msgspec.json.encode(self.tools).decode() if self.tools else "")


request_decoder = msgspec.json.Decoder(ChatRequest)


class Completion(msgspec.Struct, frozen=True):
    """A chat completion, as one document or as stream chunks; ``created`` is in seconds since 1970."""

    id: str
    created: int
    model: str
    request: ChatRequest
    reply: ScriptedReply

    def document(self) -> dict[str, Any]:
        reply = self.reply
        message: dict[str, Any] = {"role": "assistant", "content": reply.content}
        if reply.reasoning_content is not None:
            message["reasoning_content"] = reply.reasoning_content
        if reply.tool_calls:
            message["tool_calls"] = self._tool_calls()
        tokens = [token for _, tokens in self._parts() for token in tokens]
        choice = self._choice({"message": message}, reply.finish, tokens)
        return {**self._fields("chat.completion"), **self._prompt_ids(), "choices": [choice], "usage": self._usage()}

    def chunks(self) -> Iterator[dict[str, Any]]:
        """Each chunk has about one token."""
        yield self._chunk({"role": "assistant", "content": ""}) | self._prompt_ids()
        for delta, tokens in self._parts():
            yield self._chunk(delta, tokens=tokens)
        yield self._chunk({}, self.reply.finish)
        if self.request.includes_usage:
            yield {**self._fields("chat.completion.chunk"), "choices": [], "usage": self._usage()}

    def _parts(self) -> Iterator[tuple[dict[str, Any], list[str]]]:
        for field in ("reasoning_content", "content"):
            for text in _split_tokens(getattr(self.reply, field)):
                yield {field: text}, [text]
        for index, call in enumerate(self._tool_calls()):
            function = call["function"]
            first = {**call, "index": index, "function": {**function, "arguments": ""}}
            yield {"tool_calls": [first]}, _split_tokens(function["name"])
            for text in _split_tokens(function["arguments"]):
                yield {"tool_calls": [{"index": index, "function": {"arguments": text}}]}, [text]

    def _tool_calls(self) -> list[dict[str, Any]]:
        return [
            {
                "id": f"call_{self.id}_{index}" if call.id is None else call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments_text},
            }
            for index, call in enumerate(self.reply.tool_calls)
        ]

    def _fields(self, kind: str) -> dict[str, Any]:
        marks = {"model": self.model, "system_fingerprint": TEST_MODEL_NAME}
        return {"id": self.id, "object": kind, "created": self.created, **marks}

    def _chunk(self, delta: dict[str, Any], finish: str | None = None, tokens: Sequence[str] = ()) -> dict[str, Any]:
        choice = self._choice({"delta": delta}, finish, tokens)
        chunk = {**self._fields("chat.completion.chunk"), "choices": [choice]}
        return {**chunk, "usage": None} if self.request.includes_usage else chunk

    def _choice(self, content: dict[str, Any], finish: str | None, tokens: Sequence[str]) -> dict[str, Any]:
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish}
        if tokens and self.request.return_token_ids:
            choice["token_ids"] = list(map(token_id, tokens))
        if tokens and self.request.logprobs:
            listed = [{"token": token, "logprob": token_logprob(token), "top_logprobs": []} for token in tokens]
            choice["logprobs"] = {"content": listed}
        return choice

    def _prompt_ids(self) -> dict[str, list[int]]:
        tokens = _split_tokens(self.request.prompt) if self.request.return_token_ids else []
        return {"prompt_token_ids": list(map(token_id, tokens))} if tokens else {}

    def _usage(self) -> dict[str, Any]:
        prompt, completion = estimate_tokens(self.request.prompt), estimate_tokens(self.reply.text)
        if self.request.return_token_ids:
            completion = sum(len(tokens) for _, tokens in self._parts())
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": estimate_tokens(self.reply.reasoning_content or "")},
        }


def estimate_tokens(text: str) -> int:
    return -(-len(text) // CHARS_PER_TOKEN)


def token_id(token: str) -> int:
    """The id of four characters is the same in each process."""
    return zlib.crc32(token.encode("utf-8", "replace")) % VOCABULARY


def token_logprob(token: str) -> float:
    return -(token_id(token) % 1000 + 1) / 1000


def _split_tokens(text: str | None) -> list[str]:
    text = text or ""
    size = max(CHARS_PER_TOKEN, -(-len(text) // MAX_STREAM_CHUNKS))
    return [text[start : start + size] for start in range(0, len(text), size)]
