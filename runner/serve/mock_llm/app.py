"""The web application of the test endpoint: chat completions, model lists for OpenAI and Ollama, health."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner import __version__
from runner.errors import ConfigError
from runner.serve.mock_llm.chat_format import ChatRequest
from runner.serve.mock_llm.http_response import PacedResponse, ResponseBuilder
from runner.serve.mock_llm.oracle import ORACLE_MODEL_PREFIX, OracleResponder, task_from_model_name
from runner.serve.mock_llm.scripted_reply import (
    TEST_MODEL_NAME,
    Behavior,
    EchoResponder,
    Fault,
    FaultInjector,
    Responder,
    ScriptedReply,
    check_fault_kind,
    fault_status,
)
from runner.serve.request_guard import guard_app
from runner.util.display_text import one_line

HEADER = "x-agentgym-test-model"
"""Header of every response, including errors; it marks a response as not written by a language model."""
FAULT_HEADER = "x-agentgym-test-fault"
MAX_BODY_BYTES = 8 << 20


class ModelApp:
    """An OpenAI-compatible endpoint; a header marks each response as not written by a language model.

    Args:
        models: model names for the responder, in addition to ``test-<responder>`` and ``agentgym-test-model``.
    """

    def __init__(
        self,
        responder: Responder | None = None,
        *,
        behavior: Behavior | None = None,
        models: Iterable[str] = (),
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
        app = guard_app(Starlette(routes=routes), token=token, max_body=MAX_BODY_BYTES, allowed_hosts=allowed_hosts)
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
