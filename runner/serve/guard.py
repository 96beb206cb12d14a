"""What stands before every server of ours: no web page, stranger or endless body gets past it."""

from __future__ import annotations

import asyncio
import base64
import hmac
import ipaddress
import re
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.util.text import one_line

MAX_BODY = 1 << 20
BODY_S = 30.0
"""Seconds that a client has to send its request's body."""

_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^:\[\]/@\s]+))(?::\d{1,5})?")
_SAME_PAGE = (None, "none", "same-origin")


def guarded(
    app: ASGIApp, *, token: str | None = None, max_body: int = MAX_BODY, allowed_hosts: Collection[str] = ()
) -> ASGIApp:
    """``app`` behind checks that are answered with ``{"detail": …}`` and a status of 400 or more.

    A request has to name this machine in ``Host`` (a loopback name or address, the address it came in by, or one of
    ``allowed_hosts``), must not come from another site's page, and its body has to be JSON by its type. The body is
    read here, whole, so that the app neither waits for it nor sees too much.

    Args:
        app: any ASGI application; it is never asked for WebSockets.
        token: what has to be sent as ``Authorization: Bearer …``, or as a password by clients that only know URLs;
            None: nothing.
        max_body: the largest body in bytes, whether or not its length is declared.
        allowed_hosts: further names that this server is known by.
    """
    return _Guard(app, token, max_body, frozenset(map(_plain, allowed_hosts)))


def is_loopback(host: str) -> bool:
    """Whether a host name or address, without a port, leads to this machine alone."""
    if _plain(host) == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Guard:
    def __init__(self, app: ASGIApp, token: str | None, max_body: int, hosts: Collection[str]) -> None:
        self._app = app
        self._credential = None if token is None else token.encode()
        self._max_body = max_body
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._guard(scope, receive, send)

    async def _guard(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        try:
            self._check_site(headers, scope.get("server"))
            self._check_token(headers)
            self._check_body(headers)
            body = await self._read(receive)
        except HTTPException as refusal:
            # What is left of the body is not read, so the connection is of no further use.
            extra = {**(refusal.headers or {}), "connection": "close"}
            await JSONResponse({"detail": refusal.detail}, refusal.status_code, extra)(scope, receive, send)
        except ClientDisconnect:
            return
        else:
            await self._app(scope, _replayed(body, receive), send)

    def _check_site(self, headers: Headers, server: tuple[str, int | None] | None) -> None:
        given = headers.get("host", "")
        name = _host_name(given)
        known = is_loopback(name) or name in self._hosts or (server is not None and name == server[0])
        if not (name and known):
            shown = one_line(given, 80)
            raise HTTPException(403, f"This server does not answer for the host '{shown}'; see --allow-host")
        origin = headers.get("origin")
        foreign = origin is not None and _plain(origin.partition("://")[2]) != _plain(given)
        if foreign or headers.get("sec-fetch-site") not in _SAME_PAGE:
            raise HTTPException(403, "This server does not answer to web pages")

    def _check_token(self, headers: Headers) -> None:
        if self._credential is None:
            return
        if not hmac.compare_digest(_sent_token(headers.get("authorization", "")), self._credential):
            wanted = "This server wants its token, as Authorization: Bearer or as the password of the URL"
            raise HTTPException(401, wanted, {"www-authenticate": "Bearer"})

    def _check_body(self, headers: Headers) -> None:
        length = headers.get("content-length", "0")
        if length == "0" and "transfer-encoding" not in headers:
            return
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, "The Content-Type of a body has to be application/json")
        if int(length) > self._max_body:
            raise self._too_large()

    def _too_large(self) -> HTTPException:
        return HTTPException(413, f"The body is larger than {self._max_body} bytes")

    async def _read(self, receive: Receive) -> bytes:
        body, more = bytearray(), True
        try:
            async with asyncio.timeout(BODY_S):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnect
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > self._max_body:
                        raise self._too_large()
        except TimeoutError as exc:
            raise HTTPException(408, f"The body did not arrive within {BODY_S:.0f} seconds") from exc
        return bytes(body)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Gives the body at once, and after it whatever comes, which is how an app hears of a disconnection."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay


def _sent_token(authorization: str) -> bytes:
    scheme, _, value = authorization.partition(" ")
    match scheme.lower():
        case "bearer":
            return value.strip().encode("latin-1")  # as the header was decoded
        case "basic":
            return _password(value.strip())
    return b""


def _password(encoded: str) -> bytes:
    try:
        return base64.b64decode(encoded).partition(b":")[2]
    except ValueError:
        return b""


def _host_name(header: str) -> str:
    match = _HOST.fullmatch(header)
    return _plain(match["v6"] or match["name"]) if match else ""


def _plain(host: str) -> str:
    return host.lower().removesuffix(".")
