"""Middleware of all servers: checks the host, origin, token and body of each request."""

from __future__ import annotations

import asyncio
import base64
import hmac
import ipaddress
import re
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.util.display_text import one_line

MAX_BODY_BYTES = 1 << 20
BODY_TIMEOUT_S = 30.0
"""Seconds that a client has to send the body of a request."""

_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^:\[\]/@\s]+))(?::\d{1,5})?")


def is_loopback(host: str) -> bool:
    if _normalize_host(host) == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class RequestGuard:
    """An application behind request checks; a rejected request gets ``{"detail": …}`` and a status of 400 or more.

    ``Host`` must name this machine: a loopback name or address, the address of the connection, or one of
    ``allowed_hosts`` (this stops DNS rebinding). Requests from pages of other sites are rejected. A body must have the
    content type ``application/json``. The guard reads the whole body before it calls the application.

    Args:
        app: any ASGI application; the guard passes no WebSocket connection to it.
        token: token to require, as ``Authorization: Bearer …`` or as the password of the URL; None: no authentication.
        max_body: maximum bytes of a body, even if its length is not declared.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str | None = None,
        max_body: int = MAX_BODY_BYTES,
        allowed_hosts: Collection[str] = (),
        body_timeout_s: float = BODY_TIMEOUT_S,
    ) -> None:
        self._app = app
        self._credential = None if token is None else token.encode()
        self._max_body = max_body
        self._hosts = frozenset(map(_normalize_host, allowed_hosts))
        self._body_timeout_s = body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        try:
            self._check_site(headers, scope.get("server"))
            self._check_token(headers)
            self._check_body(headers)
            body = await self._read_body(Request(scope, receive))
        except HTTPException as rejection:
            # The rest of the body stays unread, so the connection cannot be reused.
            extra = {**(rejection.headers or {}), "connection": "close"}
            await JSONResponse({"detail": rejection.detail}, rejection.status_code, extra)(scope, receive, send)
        except ClientDisconnect:
            return
        else:
            await self._app(scope, _with_body(body, receive), send)

    def _check_site(self, headers: Headers, server: tuple[str, int | None] | None) -> None:
        host = headers.get("host", "")
        name = _host_name(host)
        known = is_loopback(name) or name in self._hosts or (server is not None and name == server[0])
        if not (name and known):
            shown = one_line(host, 80)
            raise HTTPException(403, f"Host '{shown}' is not allowed; start the server with --allow-host")
        origin = headers.get("origin")
        foreign = origin is not None and _normalize_host(origin.partition("://")[2]) != _normalize_host(host)
        if foreign or headers.get("sec-fetch-site") not in (None, "none", "same-origin"):
            raise HTTPException(403, "Requests from pages of other sites are not allowed")

    def _check_token(self, headers: Headers) -> None:
        if self._credential is None:
            return
        if not hmac.compare_digest(_sent_token(headers.get("authorization", "")), self._credential):
            detail = "Token required: send it as Authorization: Bearer or as the password of the URL"
            raise HTTPException(401, detail, {"www-authenticate": "Bearer"})

    def _check_body(self, headers: Headers) -> None:
        length = headers.get("content-length", "0")
        if length == "0" and "transfer-encoding" not in headers:
            return
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, "The Content-Type of a body must be application/json")
        if int(length) > self._max_body:
            raise self._body_too_large()

    def _body_too_large(self) -> HTTPException:
        return HTTPException(413, f"The body is larger than {self._max_body} bytes")

    async def _read_body(self, request: Request) -> bytes:
        body = bytearray()
        try:
            async with asyncio.timeout(self._body_timeout_s):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > self._max_body:
                        raise self._body_too_large()
        except TimeoutError as exc:
            raise HTTPException(408, f"The body did not arrive within {self._body_timeout_s:.0f} seconds") from exc
        return bytes(body)


def _with_body(body: bytes, receive: Receive) -> Receive:
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()  # later messages report a disconnect

    return replay


def _sent_token(authorization: str) -> bytes:
    """Return the token of a bearer, or the password of basic authentication."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode("latin-1")  # as the header was decoded
    try:
        return base64.b64decode(value.strip()).partition(b":")[2] if scheme.lower() == "basic" else b""
    except ValueError:
        return b""


def _host_name(header: str) -> str:
    match = _HOST.fullmatch(header)
    return _normalize_host(match["v6"] or match["name"]) if match else ""


def _normalize_host(host: str) -> str:
    return host.lower().removesuffix(".")
