"""Replies and faults as what is sent."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from runner.serve.mock_llm.chat_format import ChatRequest, Completion, error
from runner.serve.mock_llm.faults import Behavior, fault_status
from runner.serve.mock_llm.reply import TEST_MODEL_NAME, ScriptedReply
from runner.util.clock import Clock


class PacedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A reply as the ASGI application that sends it; it gives up when the client leaves.

    Attributes:
        closing: set when the server stops, which ends whatever still waits.
        delay_s: seconds before the headers, infinite where nothing is to come.
        pause_s: seconds before each piece but the first.
        whole: whether the reply is ended as it should be; else the connection is closed after the last piece.
    """

    closing: asyncio.Event
    chunks: Sequence[bytes] = ()
    status: int = 200
    headers: Mapping[str, str] = {}
    delay_s: float = 0.0
    pause_s: float = 0.0
    complete: bool = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        if not (self.delay_s or self.pause_s) and len(self.chunks) < 2:
            await self._send(send)
            return
        tasks = [asyncio.ensure_future(work) for work in (self._send(send), _left(receive), self.closing.wait())]
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
                await asyncio.sleep(self.pause_s)  # also without a pause: else nobody hears that the client left
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        if self.complete:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        """What is left of the request does not matter."""


HUGE = 10 << 20
"""Characters of a huge reply."""

_FILLER = "A very long reply. "
_JSON = "application/json"
_STREAM = "text/event-stream"
_PAGE = b"<!doctype html><title>502 Bad Gateway</title><h1>502 Bad Gateway</h1>\n"
_DONE = b"data: [DONE]\n\n"
_BROKEN = b'{"choices": [{"delta": {"content"'
_RETRIED = (429, 503)
_REASONS: dict[int, tuple[str, str | None, str]] = {
    401: ("invalid_request_error", "invalid_api_key", "Incorrect API key provided: it has expired."),
    429: ("requests", "rate_limit_exceeded", "Rate limit reached."),
}


class ResponseBuilder:
    """Makes the deliveries of one endpoint."""

    def __init__(self, behavior: Behavior) -> None:
        """Delay and spoil replies as ``behavior`` says."""
        self.closing = asyncio.Event()
        self._behavior = behavior
        self._numbers = itertools.count(1)
        self._now = Clock().now

    def document(self, value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> PacedResponse:
        """A JSON document, at once."""
        body = msgspec.json.encode(value)
        head = {"content-type": _JSON, "content-length": str(len(body)), **(headers or {})}
        return PacedResponse(closing=self.closing, chunks=[body], status=status, headers=head)

    def error(self, status: int, message: str | None = None, **named: str) -> PacedResponse:
        """An error of OpenAI's form, at once; without a message one that fits the status."""
        usual = "server_error" if status >= 500 else "invalid_request_error"
        kind, code, reason = _REASONS.get(status, (usual, None, "The server had an error."))
        document = error(message or f"{reason} This is {TEST_MODEL_NAME}.", kind=kind, code=named.get("code", code))
        retry = {"retry-after": f"{self._behavior.retry_after_s:g}"} if status in _RETRIED else None
        return self.document(document, status, retry)

    def build_response(
        self, asked: ChatRequest, reply: ScriptedReply, responder_name: str, fault: str | None
    ) -> PacedResponse:
        """A player's reply, with a fault if there is one."""
        fault = fault or reply.fault
        if fault == "huge":
            reply = msgspec.structs.replace(reply, content=_FILLER * (HUGE // len(_FILLER) + 1))
        delay_s = math.inf if fault == "hang" else self._behavior.latency_s + reply.delay_s
        response = self._response(asked, reply, responder_name, fault)
        headers = {**response.headers, **{name.lower(): value for name, value in reply.headers.items()}}
        return msgspec.structs.replace(self._apply_fault(response, fault), headers=headers, delay_s=delay_s)

    def _response(
        self, asked: ChatRequest, reply: ScriptedReply, responder_name: str, fault: str | None
    ) -> PacedResponse:
        if fault and (status := fault_status(fault)):
            return self.error(status)
        if fault == "wrong-type":
            return self._body_response(_PAGE, "text/html; charset=utf-8")
        if reply.body is not None:
            return self._body_response(reply.body.encode(), _JSON, reply.status)
        if reply.status >= 400:
            return self.error(reply.status, reply.content)
        completion = self._completion(asked, reply, responder_name)
        if asked.stream:
            return self._stream_response(completion, fault)
        document = completion.document()
        if fault == "empty-choices":
            document["choices"] = []
        body = msgspec.json.encode(document)
        return self._body_response(
            body[: len(body) // 2] + _BROKEN if fault == "invalid-json" else body, _JSON, reply.status
        )

    def _completion(self, asked: ChatRequest, reply: ScriptedReply, responder_name: str) -> Completion:
        created = int(self._now().timestamp())
        return Completion(
            f"chatcmpl-test-{next(self._numbers)}", created, f"{TEST_MODEL_NAME}:{responder_name}", asked, reply
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
            events[len(events) // 2] = b"data: " + _BROKEN + b"\n\n"
        return PacedResponse(
            closing=self.closing,
            chunks=[*events, _DONE],
            status=completion.reply.status,
            headers={"content-type": _STREAM, "cache-control": "no-cache"},
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
                drops = [bytes([byte]) for chunk in chunks for byte in chunk]
                return msgspec.structs.replace(response, chunks=drops, pause_s=self._behavior.drip_s)
        return response
