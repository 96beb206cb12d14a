"""The web application of the test endpoint: chat completions, model lists for OpenAI and Ollama, health."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner import __version__
from runner.errors import ConfigError
from runner.serve.mock_llm.oracle import ORACLE_MODEL_PREFIX, OracleResponder, task_from_model_name
from runner.serve.mock_llm.scripted_reply import (
    TEST_MODEL_NAME,
    Behavior,
    ChatRequest,
    Completion,
    EchoResponder,
    Fault,
    FaultInjector,
    Responder,
    ScriptedReply,
    check_fault_kind,
    error_document,
    fault_status,
)
from runner.serve.request_guard import RequestGuard
from runner.util.clock import Clock
from runner.util.display_text import one_line

HEADER = "x-agentgym-test-model"
"""Header of every response, including errors; it marks a response as not written by a language model."""
FAULT_HEADER = "x-agentgym-test-fault"
MAX_BODY_BYTES = 8 << 20
HUGE_REPLY_CHARS = 10 << 20

_FILLER = "A very long reply. "
_JSON_TYPE = "application/json"
_STREAM_TYPE = "text/event-stream"
_HTML_PAGE = b"<!doctype html><title>502 Bad Gateway</title><h1>502 Bad Gateway</h1>\n"
_STREAM_END = b"data: [DONE]\n\n"
_BROKEN_JSON = b'{"choices": [{"delta": {"content"'
_RETRY_STATUSES = (429, 503)
_ERRORS: dict[int, tuple[str, str | None, str]] = {
    401: ("invalid_request_error", "invalid_api_key", "Incorrect API key provided: it has expired."),
    429: ("requests", "rate_limit_exceeded", "Rate limit reached."),
}


class PacedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """An ASGI application that sends one response with delays; it ends when the client disconnects.

    Attributes:
        closing: event that ends the response early; set when the server stops.
        delay_s: seconds before the headers; infinite for a response that never starts.
        complete: whether the body ends properly; if not, the connection closes after the last chunk.
    """

    closing: asyncio.Event
    chunks: Sequence[bytes] = ()
    status: int = 200
    headers: Mapping[str, str] = {}
    delay_s: float = 0.0
    pause_s: float = 0.0
    complete: bool = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not (self.delay_s or self.pause_s) and len(self.chunks) < 2:
            await self._send(send)
            return
        work = (self._send(send), _wait_for_disconnect(receive), self.closing.wait())
        tasks = [asyncio.ensure_future(part) for part in work]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        await asyncio.sleep(self.delay_s)
        headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in self.headers.items()]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        for index, chunk in enumerate(self.chunks):
            if index:
                await asyncio.sleep(self.pause_s)  # without a pause, too: it lets a disconnect be noticed
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        if self.complete:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass  # the rest of the request is irrelevant


class ResponseBuilder:
    def __init__(self, behavior: Behavior) -> None:
        self.closing = asyncio.Event()
        self._behavior = behavior
        self._completion_numbers = itertools.count(1)
        self._now = Clock().now

    def json_response(
        self, value: object, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> PacedResponse:
        return self._body_response(msgspec.json.encode(value), _JSON_TYPE, status, headers)

    def error_response(self, status: int, message: str | None = None, **fields: str) -> PacedResponse:
        """There is a default message for each status."""
        default_kind = "server_error" if status >= 500 else "invalid_request_error"
        kind, code, reason = _ERRORS.get(status, (default_kind, None, "The server had an error."))
        text = message or f"{reason} This is {TEST_MODEL_NAME}."
        document = error_document(text, kind=kind, code=fields.get("code", code))
        retry = {"retry-after": f"{self._behavior.retry_after_s:g}"} if status in _RETRY_STATUSES else None
        return self.json_response(document, status, retry)

    def build_response(
        self, request: ChatRequest, reply: ScriptedReply, responder_name: str, fault: str | None
    ) -> PacedResponse:
        """``fault`` is the kind of fault to apply, or None."""
        fault = fault or reply.fault
        if fault == "huge":
            reply = msgspec.structs.replace(reply, content=_FILLER * (HUGE_REPLY_CHARS // len(_FILLER) + 1))
        delay_s = math.inf if fault == "hang" else self._behavior.latency_s + reply.delay_s
        response = self._response(request, reply, responder_name, fault)
        headers = {**response.headers, **{name.lower(): value for name, value in reply.headers.items()}}
        return msgspec.structs.replace(self._apply_fault(response, fault), headers=headers, delay_s=delay_s)

    def _response(
        self, request: ChatRequest, reply: ScriptedReply, responder_name: str, fault: str | None
    ) -> PacedResponse:
        if fault and (status := fault_status(fault)):
            return self.error_response(status)
        if fault == "wrong-type":
            return self._body_response(_HTML_PAGE, "text/html; charset=utf-8")
        if reply.body is not None:
            return self._body_response(reply.body.encode(), _JSON_TYPE, reply.status)
        if reply.status >= 400:
            return self.error_response(reply.status, reply.content)
        id, created = f"chatcmpl-test-{next(self._completion_numbers)}", int(self._now().timestamp())
        completion = Completion(id, created, f"{TEST_MODEL_NAME}:{responder_name}", request, reply)
        if request.stream:
            return self._stream_response(completion, fault)
        document = completion.document()
        if fault == "empty-choices":
            document["choices"] = []
        body = msgspec.json.encode(document)
        return self._body_response(
            body[: len(body) // 2] + _BROKEN_JSON if fault == "invalid-json" else body, _JSON_TYPE, reply.status
        )

    def _body_response(
        self, body: bytes, content_type: str, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> PacedResponse:
        all_headers = {"content-type": content_type, "content-length": str(len(body)), **(headers or {})}
        return PacedResponse(closing=self.closing, chunks=[body], status=status, headers=all_headers)

    def _stream_response(self, completion: Completion, fault: str | None) -> PacedResponse:
        chunks: list[dict[str, Any]] = list(completion.chunks())
        if fault == "empty-choices":
            chunks = [{**chunk, "choices": []} for chunk in chunks]
        events = [b"data: " + msgspec.json.encode(chunk) + b"\n\n" for chunk in chunks]
        if fault == "invalid-json":
            events[len(events) // 2] = b"data: " + _BROKEN_JSON + b"\n\n"
        return PacedResponse(
            closing=self.closing,
            chunks=[*events, _STREAM_END],
            status=completion.reply.status,
            headers={"content-type": _STREAM_TYPE, "cache-control": "no-cache"},
            pause_s=self._behavior.token_latency_s,
        )

    def _apply_fault(self, response: PacedResponse, fault: str | None) -> PacedResponse:
        chunks = response.chunks
        match fault:
            case "drop":
                return msgspec.structs.replace(response, chunks=[], complete=False)
            case "truncated":
                half = chunks[: len(chunks) // 2] or [chunks[0][: len(chunks[0]) // 2]]
                return msgspec.structs.replace(response, chunks=half, complete=False)
            case "drip":
                single_bytes = [bytes([byte]) for chunk in chunks for byte in chunk]
                return msgspec.structs.replace(response, chunks=single_bytes, pause_s=self._behavior.drip_s)
        return response


class ModelApp:
    """An OpenAI-compatible endpoint; ``models`` are further names of the responder. A header marks each response."""

    def __init__(
        self, responder: Responder | None = None, *, behavior: Behavior | None = None, models: Iterable[str] = ()
    ) -> None:
        oracle = OracleResponder()
        responder = responder or oracle
        responders = {f"test-{known.name}": known for known in (oracle, EchoResponder(), responder)}
        self._oracle = oracle
        self._responders: dict[str, Responder] = {**responders, **dict.fromkeys([TEST_MODEL_NAME, *models], responder)}
        self._behavior = behavior or Behavior()
        self._responses = ResponseBuilder(self._behavior)
        self._faults = FaultInjector(self._behavior.faults, self._behavior.seed)

    def asgi_app(self, *, token: str | None = None, allowed_hosts: Collection[str] = ()) -> ASGIApp:
        """The application belongs to one event loop. Call ``close`` before building another application."""
        self._responses = ResponseBuilder(self._behavior)
        routes = [
            Route("/v1/chat/completions", self.complete, methods=["POST"]),
            Route("/v1/models", self._list_models),
            Route("/api/tags", self._list_tags),
            Route("/health", self._health),
        ]
        app = RequestGuard(Starlette(routes=routes), token=token, max_body=MAX_BODY_BYTES, allowed_hosts=allowed_hosts)
        return _with_header(app)

    def inject(self, *faults: Fault) -> None:
        self._faults = FaultInjector(faults, self._behavior.seed)

    def close(self) -> None:
        """End all responses that are not complete; call it in the event loop of the server."""
        self._responses.closing.set()

    async def complete(self, request: Request) -> PacedResponse:
        try:
            chat_request = msgspec.json.decode(await request.body(), type=ChatRequest)
            fault = request.headers.get(FAULT_HEADER) or chat_request.agentgym_test_fault
            if fault is not None:
                check_fault_kind(fault)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ConfigError) as exc:
            return self._responses.error_response(400, f"Not a chat completion request: {one_line(str(exc))}")
        try:
            responder = self._responder(chat_request.model)
        except ConfigError as exc:
            return self._responses.error_response(404, str(exc), code="model_not_found")
        fault = fault or self._faults.next_fault()
        is_error = fault is not None and fault_status(fault) is not None
        # An error must not consume a reply of a script.
        reply = ScriptedReply() if is_error else await responder.respond(chat_request)
        return self._responses.build_response(chat_request, reply, responder.name, fault)

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

    async def _list_models(self, request: Request) -> PacedResponse:
        models = [
            {"id": name, "object": "model", "created": 0, "owned_by": TEST_MODEL_NAME} for name in self._responders
        ]
        return self._responses.json_response({"object": "list", "data": models})

    async def _list_tags(self, request: Request) -> PacedResponse:
        details = {
            "parent_model": "",
            "format": "none",
            "family": TEST_MODEL_NAME,
            "families": [TEST_MODEL_NAME],
            "parameter_size": "0",
            "quantization_level": "none",
        }
        description = {"modified_at": "1970-01-01T00:00:00Z", "size": 0, "digest": "", "details": details}
        return self._responses.json_response(
            {"models": [{"name": name, "model": name, **description} for name in self._responders]}
        )

    async def _health(self, request: Request) -> PacedResponse:
        return self._responses.json_response({"status": "ok", "server": TEST_MODEL_NAME, "version": __version__})


def _with_header(app: ASGIApp) -> ASGIApp:
    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_header(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (HEADER.encode(), b"not a language model")]
            await send(message)

        await app(scope, receive, send_with_header)

    return wrapped
