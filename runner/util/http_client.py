"""HTTP client: aiohttp's session without compression, cookies and redirects; one per event loop."""

from __future__ import annotations

import asyncio
import functools
import os
import ssl
import threading
from collections.abc import AsyncGenerator, Callable, Hashable
from typing import TYPE_CHECKING, NamedTuple, TypeVar, TypeVarTuple, cast

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.client_proto import ResponseHandler
    from yarl import URL

MAX_HEADER_BYTES = 64 << 10
"""Maximum bytes of all headers of a response, and of one of them while aiohttp reads it."""

_Args = TypeVarTuple("_Args")
_C = TypeVar("_C", bound="HttpClient")


class Route(NamedTuple):
    """``headers`` are added to those of the request."""

    url: URL
    headers: dict[str, str] | None = None
    proxy: URL | None = None
    proxy_headers: dict[str, str] | None = None


class HttpClient:
    """Sends requests of one event loop and reuses their connections; the caller limits the total time of a response.

    Args:
        keepalive_s: seconds to keep an unused connection; shorter than on servers, so that it is not used while a
            server closes it.
        connect_timeout_s: seconds to connect; None: no limit.
    """

    def __init__(self, keepalive_s: float, connect_timeout_s: float | None) -> None:
        import aiohttp

        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=keepalive_s)
        connector._factory = functools.partial(_strict_handler(), loop=asyncio.get_running_loop())
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, connect=connect_timeout_s),
            headers={"User-Agent": "agentgym-console", "Accept": "*/*", "Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
        )

    async def send(
        self, method: str, url: str, content: bytes | None, headers: dict[str, str]
    ) -> aiohttp.ClientResponse:
        """Send a request and return the response, whose body has not been read; the caller closes it.

        Raises ``aiohttp.ClientError`` for a network error, an invalid URL, or headers larger than ``MAX_HEADER_BYTES``.
        """
        import aiohttp

        route = self.find_route(url)
        for _ in range(2):  # the loop reads the ends of idle connections, and then removes these from the pool
            await asyncio.sleep(0)
        content_type = {} if content is None else {"Content-Type": "application/json"}
        schemes = (route.url.scheme, route.proxy.scheme if route.proxy else "")
        response = await self._session.request(
            method,
            route.url,
            data=content,
            headers=content_type | (route.headers or {}) | headers,
            allow_redirects=False,
            proxy=route.proxy,
            proxy_headers=route.proxy_headers,
            ssl=_ssl_context() if "https" in schemes else True,
        )
        if sum(len(name) + len(value) for name, value in response.raw_headers) > MAX_HEADER_BYTES:
            response.close()
            raise aiohttp.ClientError(f"the headers of the reply are larger than {MAX_HEADER_BYTES >> 10} KiB")
        return response

    def find_route(self, url: str) -> Route:
        """Without a proxy here. Raises ``aiohttp.InvalidURL`` if the URL cannot be used."""
        return Route(parse_url(url))

    async def close(self) -> None:
        await self._session.close()


def parse_url(url: str) -> URL:
    """The ``aiohttp.InvalidURL`` of a bad URL does not quote it."""
    import aiohttp
    from yarl import URL

    try:
        return URL(url, encoded=url.isascii())
    except ValueError:
        raise aiohttp.InvalidURL("") from None


_clients_lock = threading.Lock()
_clients: dict[asyncio.AbstractEventLoop, dict[Hashable, tuple[HttpClient, AsyncGenerator[HttpClient]]]] = {}
"""The clients of each running event loop, and the generators that close them with the loop."""


async def loop_client(create: Callable[[*_Args], _C], *args: *_Args) -> _C:
    """Return the client ``create(*args)`` of the running event loop, which the end of the loop closes."""
    loop, key = asyncio.get_running_loop(), (create, args)
    if key not in _clients.get(loop, {}):
        lifetime = _client_lifetime(loop, create(*args))
        client = await anext(lifetime)
        with _clients_lock:
            # a loop may be closed without shutting down its generators
            for closed_loop in [other for other in _clients if other.is_closed()]:
                del _clients[closed_loop]
            _clients.setdefault(loop, {})[key] = client, lifetime
    return cast("_C", _clients[loop][key][0])


async def _client_lifetime(loop: asyncio.AbstractEventLoop, client: HttpClient) -> AsyncGenerator[HttpClient]:
    try:
        yield client
    finally:
        with _clients_lock:
            _clients.pop(loop, None)
        await client.close()


@functools.cache
def _strict_handler() -> type[ResponseHandler]:
    import aiohttp
    from aiohttp.client_proto import ResponseHandler

    class StrictHandler(ResponseHandler):
        # With aiohttp 3.14, the reader of a body waits forever after bytes that are not a valid chunk.
        def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
            super().set_exception(exc, *cause)
            body = self._payload
            if isinstance(exc, aiohttp.http.HttpProcessingError) and body is not None and body.exception() is None:
                body.set_exception(aiohttp.ClientError("the reply is malformed"))

    return StrictHandler


@functools.cache
def _ssl_context() -> ssl.SSLContext:
    # Cached: reading the certificates is the slowest part of the first request.
    import certifi

    if file := os.environ.get("SSL_CERT_FILE"):
        return ssl.create_default_context(cafile=file)
    if folder := os.environ.get("SSL_CERT_DIR"):
        return ssl.create_default_context(capath=folder)
    return ssl.create_default_context(cafile=certifi.where())
