"""Requests to an application in this process, without sockets."""

from __future__ import annotations

import asyncio
from urllib.parse import unquote_to_bytes

from starlette.types import ASGIApp, Message, Scope


async def send(app: ASGIApp, method: str, path: bytes, body: bytes) -> tuple[int, bytes]:
    """Send a request to an application; return the status and the body of the response."""
    location, _, query = path.partition(b"?")
    headers = [(b"host", b"127.0.0.1")]
    if body:
        headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    scope: Scope = {
        "type": "http",
        "method": method,
        "path": unquote_to_bytes(location).decode("utf-8", "replace"),
        "query_string": query,
        "headers": headers,
        "server": ("127.0.0.1", 1),
    }
    sent: list[Message] = []
    requests: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if not requests:
            await asyncio.Event().wait()  # the client stays
        return requests.pop()

    async def keep(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, keep)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])
