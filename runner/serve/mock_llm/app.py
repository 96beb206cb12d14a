"""The web application of the test endpoint: chat completions, model lists for OpenAI and Ollama, health."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from typing import Protocol

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Send

from runner import __version__
from runner.errors import ConfigError
from runner.serve.env_api.routing import json_response
from runner.serve.mock_llm.completion import TEST_MODEL_NAME, ChatRequest, Completion, request_decoder
from runner.serve.mock_llm.oracle import ORACLE_MODEL_PREFIX, OracleResponder, task_from_model_name
from runner.serve.mock_llm.script import Behavior, Fault, ScriptedReply, check_fault_kind, fault_status
from runner.serve.request_guard import RequestGuard
from runner.util.clock import Clock
from runner.util.display_text import one_line

MARK = ("x-agentgym-test-model", "not a language model")
"""Header that the host has to add to every response, including errors."""
FAULT_HEADER = "x-agentgym-test-fault"
MAX_BODY_BYTES = 8 << 20
HUGE_REPLY_CHARS = 10 << 20

_FILLER = "A very long reply. "
_JSON_TYPE = "application/json"
_HTML_PAGE = b"<!doctype html><title>502 Bad Gateway</title><h1>502 Bad Gateway</h1>\n"
_BROKEN_JSON = b'{"choices": [{"delta": {"content"'
_ERRORS: dict[int, tuple[str, str | None, str]] = {
    401: ("invalid_request_error", "invalid_api_key", "Incorrect API key provided: it has expired."),
    429: ("requests", "rate_limit_exceeded", "Rate limit reached."),
}


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
        self._replies = itertools.cycle(
            [ScriptedReply(content=reply) if isinstance(reply, str) else reply for reply in replies]
        )

    async def respond(self, request: ChatRequest) -> ScriptedReply:
        return next(self._replies)


class EchoResponder:
    name = "echo"

    async def respond(self, request: ChatRequest) -> ScriptedReply:
        return ScriptedReply(content=request.messages[-1].text)


class PacedResponse(StreamingResponse):
    """Waits before the headers, perhaps without end; the client may disconnect at any time."""

    delay_s = 0.0

    async def stream_response(self, send: Send) -> None:
        await asyncio.sleep(self.delay_s)
        await super().stream_response(send)


async def _paced(chunks: Sequence[bytes], pause_s: float, *, complete: bool) -> AsyncIterator[bytes]:
    for index, chunk in enumerate(chunks):
        if index:
            await asyncio.sleep(pause_s)  # without a pause, too: it lets a disconnect be noticed
        yield chunk
    if not complete:
        raise ConnectionAbortedError("The fault of this reply closes the connection")


class ModelApp:
    """An OpenAI-compatible endpoint; ``models`` are further names of the responder."""

    def __init__(
        self, responder: Responder | None = None, *, behavior: Behavior | None = None, models: Iterable[str] = ()
    ) -> None:
        oracle = OracleResponder()
        responder = responder or oracle
        responders = {f"test-{known.name}": known for known in (oracle, EchoResponder(), responder)}
        self._oracle = oracle
        self._responders: dict[str, Responder] = {**responders, **dict.fromkeys([TEST_MODEL_NAME, *models], responder)}
        self._behavior = behavior or Behavior()
        self._completion_numbers = itertools.count(1)
        self._now = Clock().now
        self.inject(*self._behavior.faults)

    def asgi_app(self, *, token: str | None = None, allowed_hosts: Collection[str] = ()) -> ASGIApp:
        routes = [
            Route("/v1/chat/completions", self.complete, methods=["POST"]),
            Route("/v1/models", self._list_models),
            Route("/api/tags", self._list_tags),
            Route("/health", self._health),
        ]
        app = Starlette(routes=routes)
        return RequestGuard(app, token=token, max_body=MAX_BODY_BYTES, allowed_hosts=allowed_hosts)

    def inject(self, *faults: Fault) -> None:
        """Replace the faults that affect later requests; with the same seed, they affect the same requests."""
        self._faults = [(fault, fault.times) for fault in faults]
        self._random = random.Random(self._behavior.seed)

    async def complete(self, request: Request) -> Response:
        try:
            chat_request = request_decoder.decode(await request.body())
            fault = request.headers.get(FAULT_HEADER) or chat_request.agentgym_test_fault
            if fault is not None:
                check_fault_kind(fault)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ConfigError) as exc:
            return self._error(400, f"Not a chat completion request: {one_line(str(exc))}")
        try:
            responder = self._responder(chat_request.model)
        except ConfigError as exc:
            return self._error(404, str(exc), code="model_not_found")
        fault = fault or self._next_fault()
        # An error must not consume a reply of a script.
        reply = ScriptedReply() if fault_status(fault) else await responder.respond(chat_request)
        return self._reply(chat_request, reply, responder.name, fault or reply.fault)

    def _next_fault(self) -> str | None:
        for index, (fault, left) in enumerate(self._faults):
            if left != 0 and self._random.random() < fault.share:
                self._faults[index] = (fault, None if left is None else left - 1)
                return fault.kind
        return None

    def _responder(self, model: str) -> Responder:
        if model.startswith(ORACLE_MODEL_PREFIX):
            task_from_model_name(model)
            return self._oracle
        responder = self._responders.get(model)
        if responder is None:
            known = ", ".join(self._responders)
            raise ConfigError(
                f"The model {one_line(model)!r} does not exist on this {TEST_MODEL_NAME}; available: {known}"
            )
        return responder

    def _error(self, status: int, message: str | None = None, code: str | None = None) -> Response:
        default = ("server_error" if status >= 500 else "invalid_request_error", None, "The server had an error.")
        kind, default_code, reason = _ERRORS.get(status, default)
        text = message or f"{reason} This is {TEST_MODEL_NAME}."
        retry = {"retry-after": f"{self._behavior.retry_after_s:g}"} if status in (429, 503) else None
        error = {"message": text, "type": kind, "param": None, "code": code or default_code}
        return Response(msgspec.json.encode({"error": error}), status, retry, _JSON_TYPE)

    def _reply(self, request: ChatRequest, reply: ScriptedReply, responder_name: str, fault: str | None) -> Response:
        if fault == "huge":
            reply = msgspec.structs.replace(reply, content=_FILLER * (HUGE_REPLY_CHARS // len(_FILLER) + 1))
        id, created = f"chatcmpl-test-{next(self._completion_numbers)}", int(self._now().timestamp())
        completion = Completion(id, created, f"{TEST_MODEL_NAME}:{responder_name}", request, reply)
        plain = self._plain_response(reply, fault)
        if plain is None and request.stream:
            chunks, status, pause_s = _events(completion, fault), reply.status, self._behavior.token_latency_s
            headers = {"content-type": "text/event-stream", "cache-control": "no-cache"}
        else:
            plain = plain or Response(_document(completion, fault), reply.status, media_type=_JSON_TYPE)
            chunks, status, headers, pause_s = [bytes(plain.body)], plain.status_code, dict(plain.headers), 0.0
        match fault:
            case "drop":
                chunks = []
            case "truncated":
                chunks = chunks[: len(chunks) // 2] or [chunks[0][: len(chunks[0]) // 2]]
            case "drip":
                chunks, pause_s = [bytes([byte]) for chunk in chunks for byte in chunk], self._behavior.drip_s
        headers |= {name.lower(): value for name, value in reply.headers.items()}
        response = PacedResponse(_paced(chunks, pause_s, complete=fault not in ("drop", "truncated")), status, headers)
        response.delay_s = math.inf if fault == "hang" else self._behavior.latency_s + reply.delay_s
        return response

    def _plain_response(self, reply: ScriptedReply, fault: str | None) -> Response | None:
        if status := fault_status(fault):
            return self._error(status)
        if fault == "wrong-type":
            return Response(_HTML_PAGE, media_type="text/html")
        if reply.body is not None:
            return Response(reply.body, reply.status, media_type=_JSON_TYPE)
        return self._error(reply.status, reply.content) if reply.status >= 400 else None

    async def _list_models(self, request: Request) -> Response:
        mark = {"object": "model", "created": 0, "owned_by": TEST_MODEL_NAME}
        return json_response({"object": "list", "data": [{"id": name, **mark} for name in self._responders]})

    async def _list_tags(self, request: Request) -> Response:
        details = {"parent_model": "", "format": "none", "family": TEST_MODEL_NAME, "families": [TEST_MODEL_NAME]}
        details |= {"parameter_size": "0", "quantization_level": "none"}
        tag = {"modified_at": "1970-01-01T00:00:00Z", "size": 0, "digest": "", "details": details}
        return json_response({"models": [{"name": name, "model": name, **tag} for name in self._responders]})

    async def _health(self, request: Request) -> Response:
        return json_response({"status": "ok", "server": TEST_MODEL_NAME, "version": __version__})


def _document(completion: Completion, fault: str | None) -> bytes:
    document = completion.document()
    if fault == "empty-choices":
        document["choices"] = []
    body = msgspec.json.encode(document)
    return body[: len(body) // 2] + _BROKEN_JSON if fault == "invalid-json" else body


def _events(completion: Completion, fault: str | None) -> list[bytes]:
    chunks = list(completion.chunks())
    if fault == "empty-choices":
        chunks = [{**chunk, "choices": []} for chunk in chunks]
    events = [msgspec.json.encode(chunk) for chunk in chunks]
    if fault == "invalid-json":
        events[len(events) // 2] = _BROKEN_JSON
    return [b"data: %b\n\n" % event for event in [*events, b"[DONE]"]]
