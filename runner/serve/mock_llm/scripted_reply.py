"""Replies of the test endpoint in OpenAI's format: contents, script files, responders that choose them, and faults.

The test endpoint has no tokenizer: four characters count as one token, whose id is their checksum.
"""

from __future__ import annotations

import itertools
import random
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol, Self

import msgspec
from msgspec import Meta

from runner.errors import ConfigError
from runner.util.display_text import one_line

TEST_MODEL_NAME = "agentgym-test-model"
"""Model name of the test endpoint in replies and model lists."""
CHARS_PER_TOKEN = 4
"""Estimated characters per token."""
MAX_STREAM_CHUNKS = 20_000
"""Maximum number of chunks for one streamed text; a longer text has larger chunks."""
VOCABULARY = 50_000
"""Number of different token ids."""
MAX_SCRIPT_BYTES = 16 << 20
FAULT_KINDS = {
    "drop": "close the connection after the headers",
    "drip": "send the reply byte by byte",
    "empty-choices": "send a completion without choices",
    "hang": "send nothing until the client disconnects",
    "huge": "send 10 MB of text",
    "invalid-json": "send malformed JSON",
    "truncated": "close the connection after half of the reply",
    "wrong-type": "send a web page",
}
"""Kinds of faults and their meaning. A status from 400 to 599 is also a kind; 429 and 503 have ``Retry-After``."""

_STATUS = re.compile(r"[45][0-9]{2}")
_SPEC = re.compile(r"(?P<kind>[a-z0-9-]+?)(?::(?P<share>[0-9]*\.?[0-9]+))?(?:x(?P<times>[1-9][0-9]{0,6}))?")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,998}[\x21-\x7e])?")
_FRAMING_HEADERS = frozenset({"connection", "content-length", "transfer-encoding", "upgrade"})


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
        message: dict[str, Any] = {"role": "assistant", "content": self.reply.content}
        if self.reply.reasoning_content is not None:
            message["reasoning_content"] = self.reply.reasoning_content
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


class Fault(msgspec.Struct, frozen=True):
    """A kind of fault, the share of requests that it affects (0 to 1), and the maximum number of them (None: all)."""

    kind: str
    share: float = 1.0
    times: int | None = None

    @classmethod
    def parse(cls, spec: str) -> Self:
        """Parse a fault of the command line: ``KIND``, ``KIND:SHARE``, ``KINDxTIMES`` or ``KIND:SHARExTIMES``."""
        match = _SPEC.fullmatch(spec)
        share = float(match["share"] or 1) if match else 2.0
        if match is None or share > 1:
            raise ConfigError(
                f"{one_line(spec)!r} is not a valid fault; examples: 429:0.1 (a share), 500x2 (the first two), hang"
            )
        check_fault_kind(match["kind"])
        return cls(match["kind"], share, int(match["times"]) if match["times"] else None)


class Behavior(msgspec.Struct, frozen=True, kw_only=True):
    """Delays and faults of the test endpoint.

    Attributes:
        token_latency_s: seconds between the tokens of a streamed reply.
        seed: random seed for the choice of the affected requests.
        retry_after_s: seconds in the ``Retry-After`` header of errors with status 429 or 503.
        drip_s: seconds between two bytes of a reply with the fault ``drip``.
    """

    latency_s: float = 0.0
    token_latency_s: float = 0.0
    faults: tuple[Fault, ...] = ()
    seed: int = 0
    retry_after_s: float = 1.0
    drip_s: float = 1.0


class FaultInjector:
    """Chooses at random which requests get which fault; with the same seed and faults, the choices are the same."""

    def __init__(self, faults: Iterable[Fault], seed: int) -> None:
        self._remaining = [(fault, fault.times) for fault in faults]
        self._random = random.Random(seed)

    def next_fault(self) -> str | None:
        for index, (fault, remaining) in enumerate(self._remaining):
            if remaining != 0 and self._random.random() < fault.share:
                self._remaining[index] = (fault, None if remaining is None else remaining - 1)
                return fault.kind
        return None


def fault_status(kind: str) -> int | None:
    """Return None unless the kind of fault is a status, such as ``503``."""
    return int(kind) if _STATUS.fullmatch(kind) else None


def check_fault_kind(kind: str) -> None:
    """The message of the ``ConfigError`` lists the known kinds."""
    if kind not in FAULT_KINDS and fault_status(kind) is None:
        raise ConfigError(
            f"{one_line(kind)!r} is not a kind of fault; valid: a status from 400 to 599, {', '.join(FAULT_KINDS)}"
        )


class ScriptedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call of a reply; ``arguments`` are sent verbatim if they are a text, which may be malformed JSON."""

    name: str
    arguments: str | dict[str, Any] = {}
    id: str | None = None

    @property
    def arguments_text(self) -> str:
        return self.arguments if isinstance(self.arguments, str) else msgspec.json.encode(self.arguments).decode()


class ScriptedReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One reply: a chat completion (streamed if requested), or an error or a body if ``status`` or ``body`` is set.

    Attributes:
        finish_reason: None: ``tool_calls`` if there are tool calls, else ``stop``.
        delay_s: seconds before the reply, in addition to the endpoint's ``latency_s``.
        status: HTTP status; from 400 and without a ``body``, the reply is an error in OpenAI's form with the message
            ``content``.
        headers: additional response headers; they must include the content type of a ``body``.
        body: text to send verbatim instead of a completion.
    """

    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[ScriptedCall, ...] = ()
    finish_reason: str | None = None
    delay_s: Annotated[float, Meta(ge=0, le=3600)] = 0.0
    status: Annotated[int, Meta(ge=200, le=599)] = 200
    headers: dict[str, str] = {}
    body: str | None = None
    fault: str | None = None

    def check(self) -> None:
        """Raises ``ConfigError`` if a header or the fault is invalid."""
        for name, value in self.headers.items():
            if (
                not (_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value))
                or name.lower() in _FRAMING_HEADERS
            ):
                raise ConfigError(f"the header {one_line(name)!r} cannot be set")
        if self.fault is not None:
            check_fault_kind(self.fault)

    @property
    def text(self) -> str:
        """Reasoning, content and tool calls."""
        calls = "".join(call.name + call.arguments_text for call in self.tool_calls)
        return (self.reasoning_content or "") + (self.content or "") + calls


def read_script(path: Path) -> list[ScriptedReply]:
    """Read the replies in a script file, one per line; ``ConfigError`` names an invalid line by its number.

    A line that starts with ``{`` is a ``ScriptedReply`` as JSON; any other line is the content of a reply.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_SCRIPT_BYTES + 1)
        lines = content.decode().splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(
            f"The script {path} cannot be read ({exc}); give a UTF-8 file with one reply per line"
        ) from exc
    if len(content) > MAX_SCRIPT_BYTES:
        raise ConfigError(f"The script {path} is larger than {MAX_SCRIPT_BYTES >> 20} MiB")
    replies = [_read(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not replies:
        raise ConfigError(f"The script {path} has no replies")
    return replies


def _read(line: str, location: str) -> ScriptedReply:
    if not line.lstrip().startswith("{"):
        return ScriptedReply(content=line.strip())
    try:
        reply = msgspec.json.decode(line, type=ScriptedReply)
        reply.check()
    except (msgspec.MsgspecError, RecursionError, ConfigError) as exc:
        raise ConfigError(f"{location} is not a valid reply: {one_line(str(exc))}") from exc
    return reply


class Responder(Protocol):
    @property
    def name(self) -> str:
        """One word that is part of the model name ``test-<name>``."""

    async def respond(self, request: ChatRequest) -> ScriptedReply: ...


class ScriptResponder:
    """Returns the replies of a script in order, regardless of the client; after the last one, starts again."""

    name = "script"

    def __init__(self, replies: Sequence[ScriptedReply | str]) -> None:
        """A text is the content of a reply."""
        script = [ScriptedReply(content=reply) if isinstance(reply, str) else reply for reply in replies]
        for reply in script:
            reply.check()
        self._replies = itertools.cycle(script)

    async def respond(self, request: ChatRequest) -> ScriptedReply:
        return next(self._replies)


class EchoResponder:
    """Replies with the content of the last message."""

    name = "echo"

    async def respond(self, request: ChatRequest) -> ScriptedReply:
        return ScriptedReply(content=request.messages[-1].text)
