"""HTTP responses with replies and faults: status, headers, and chunks with pauses between them."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from runner.serve.mock_llm.chat_format import ChatRequest, Completion, error_document
from runner.serve.mock_llm.scripted_reply import TEST_MODEL_NAME, Behavior, ScriptedReply, fault_status
from runner.util.clock import Clock


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


class ResponseBuilder:
    def __init__(self, behavior: Behavior) -> None:
        self.closing = asyncio.Event()
        self._behavior = behavior
        self._completion_numbers = itertools.count(1)
        self._now = Clock().now

    def json_response(
        self, value: object, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> PacedResponse:
        body = msgspec.json.encode(value)
        all_headers = {"content-type": _JSON_TYPE, "content-length": str(len(body)), **(headers or {})}
        return PacedResponse(closing=self.closing, chunks=[body], status=status, headers=all_headers)

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
        completion = self._completion(request, reply, responder_name)
        if request.stream:
            return self._stream_response(completion, fault)
        document = completion.document()
        if fault == "empty-choices":
            document["choices"] = []
        body = msgspec.json.encode(document)
        return self._body_response(
            body[: len(body) // 2] + _BROKEN_JSON if fault == "invalid-json" else body, _JSON_TYPE, reply.status
        )

    def _completion(self, request: ChatRequest, reply: ScriptedReply, responder_name: str) -> Completion:
        created = int(self._now().timestamp())
        return Completion(
            f"chatcmpl-test-{next(self._completion_numbers)}",
            created,
            f"{TEST_MODEL_NAME}:{responder_name}",
            request,
            reply,
        )

    def _body_response(self, body: bytes, content_type: str, status: int = 200) -> PacedResponse:
        headers = {"content-type": content_type, "content-length": str(len(body))}
        return PacedResponse(closing=self.closing, chunks=[body], status=status, headers=headers)

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
