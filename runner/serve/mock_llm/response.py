"""Replies and faults as what is sent."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from runner.serve.mock_llm.chat_format import ChatRequest, Completion, error
from runner.serve.mock_llm.delivery import Delivery
from runner.serve.mock_llm.faults import Behaviour, status_of
from runner.serve.mock_llm.reply import NAME, Reply
from runner.util.clock import Clock

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


class Answers:
    """Makes the deliveries of one endpoint."""

    def __init__(self, behaviour: Behaviour) -> None:
        """Delay and spoil replies as ``behaviour`` says."""
        self.closing = asyncio.Event()
        self._behaviour = behaviour
        self._numbers = itertools.count(1)
        self._now = Clock().now

    def document(self, value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Delivery:
        """A JSON document, at once."""
        body = msgspec.json.encode(value)
        head = {"content-type": _JSON, "content-length": str(len(body)), **(headers or {})}
        return Delivery(closing=self.closing, pieces=[body], status=status, headers=head)

    def error(self, status: int, message: str | None = None, **named: str) -> Delivery:
        """An error of OpenAI's form, at once; without a message one that fits the status."""
        usual = "server_error" if status >= 500 else "invalid_request_error"
        kind, code, reason = _REASONS.get(status, (usual, None, "The server had an error."))
        document = error(message or f"{reason} This is {NAME}.", kind=kind, code=named.get("code", code))
        retry = {"retry-after": f"{self._behaviour.retry_after_s:g}"} if status in _RETRIED else None
        return self.document(document, status, retry)

    def answer(self, asked: ChatRequest, reply: Reply, played_by: str, fault: str | None) -> Delivery:
        """A player's reply, with a fault if there is one."""
        fault = fault or reply.fault
        if fault == "huge":
            reply = msgspec.structs.replace(reply, content=_FILLER * (HUGE // len(_FILLER) + 1))
        delay_s = math.inf if fault == "hang" else self._behaviour.latency_s + reply.delay_s
        delivery = self._delivery(asked, reply, played_by, fault)
        headers = {**delivery.headers, **{name.lower(): value for name, value in reply.headers.items()}}
        return msgspec.structs.replace(self._spoiled(delivery, fault), headers=headers, delay_s=delay_s)

    def _delivery(self, asked: ChatRequest, reply: Reply, played_by: str, fault: str | None) -> Delivery:
        if fault and (status := status_of(fault)):
            return self.error(status)
        if fault == "wrong-type":
            return self._whole(_PAGE, "text/html; charset=utf-8")
        if reply.body is not None:
            return self._whole(reply.body.encode(), _JSON, reply.status)
        if reply.status >= 400:
            return self.error(reply.status, reply.content)
        completion = self._completion(asked, reply, played_by)
        if asked.stream:
            return self._stream(completion, fault)
        document = completion.document()
        if fault == "empty-choices":
            document["choices"] = []
        body = msgspec.json.encode(document)
        return self._whole(body[: len(body) // 2] + _BROKEN if fault == "invalid-json" else body, _JSON, reply.status)

    def _completion(self, asked: ChatRequest, reply: Reply, played_by: str) -> Completion:
        created = int(self._now().timestamp())
        return Completion(f"chatcmpl-test-{next(self._numbers)}", created, f"{NAME}:{played_by}", asked, reply)

    def _whole(self, body: bytes, content_type: str, status: int = 200) -> Delivery:
        headers = {"content-type": content_type, "content-length": str(len(body))}
        return Delivery(closing=self.closing, pieces=[body], status=status, headers=headers)

    def _stream(self, completion: Completion, fault: str | None) -> Delivery:
        chunks: list[dict[str, Any]] = list(completion.chunks())
        if fault == "empty-choices":
            chunks = [{**chunk, "choices": []} for chunk in chunks]
        events = [b"data: " + msgspec.json.encode(chunk) + b"\n\n" for chunk in chunks]
        if fault == "invalid-json":
            events[len(events) // 2] = b"data: " + _BROKEN + b"\n\n"
        return Delivery(
            closing=self.closing,
            pieces=[*events, _DONE],
            status=completion.reply.status,
            headers={"content-type": _STREAM, "cache-control": "no-cache"},
            pause_s=self._behaviour.token_latency_s,
        )

    def _spoiled(self, delivery: Delivery, fault: str | None) -> Delivery:
        pieces = delivery.pieces
        match fault:
            case "drop":
                return msgspec.structs.replace(delivery, pieces=[], whole=False)
            case "truncated":
                half = pieces[: len(pieces) // 2] or [pieces[0][: len(pieces[0]) // 2]]
                return msgspec.structs.replace(delivery, pieces=half, whole=False)
            case "drip":
                drops = [bytes([byte]) for piece in pieces for byte in piece]
                return msgspec.structs.replace(delivery, pieces=drops, pause_s=self._behaviour.drip_s)
        return delivery
