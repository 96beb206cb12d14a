"""The HTTP client of one event loop, for model servers: aiohttp's session, proxies and logins."""

from __future__ import annotations

import asyncio
import functools
import os
import ssl
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from runner.inference.endpoints import sent_login

if TYPE_CHECKING:
    import aiohttp
    from yarl import URL

CONNECT_TIMEOUT_S = 5.0
KEEPALIVE_S = 4.0
"""Seconds to keep an unused connection; shorter than on servers, so that it is not used while a server closes it."""
MAX_HEADER_BYTES = 64 << 10
"""Maximum bytes of one header of a response."""

_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


class _Route(NamedTuple):
    url: URL
    headers: dict[str, str]
    proxy: URL | None
    proxy_headers: dict[str, str]


class HttpClient:
    """Sends requests without compression, cookies and redirects, and without a proxy to servers on this machine.

    The caller must limit the total time of a response; only the time of the connection is limited.
    """

    def __init__(self) -> None:
        """Create the client of the running event loop."""
        import aiohttp

        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S, ssl=_ssl_context())
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT_S),
            headers={"User-Agent": "agentgym-console", "Accept": "*/*", "Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
        )
        self._routes: dict[str, _Route] = {}

    async def send(
        self, method: str, url: str, content: bytes | None, headers: dict[str, str]
    ) -> aiohttp.ClientResponse:
        """Send a request and return the response, whose body has not been read; the caller closes it.

        Raises:
            aiohttp.ClientError: for a network error or an invalid URL.
        """
        route = self._routes.get(url)
        if route is None:
            self._routes[url] = route = _find_route(url)
        for _ in range(2):  # the loop reads the ends of idle connections, and then removes these from the pool
            await asyncio.sleep(0)
        content_type = {} if content is None else {"Content-Type": "application/json"}
        return await self._session.request(
            method,
            route.url,
            data=content,
            headers=content_type | route.headers | headers,
            allow_redirects=False,
            proxy=route.proxy,
            proxy_headers=route.proxy_headers,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()


def _find_route(url: str) -> _Route:
    import aiohttp
    from yarl import URL

    try:
        proxy, headers = _proxy_of(url), _login_header("Authorization", url)
        target = URL(url, encoded=url.isascii()).with_user(None)
        if proxy is None:
            return _Route(target, headers, None, {})
        proxy_headers = _login_header("Proxy-Authorization", proxy)
        if target.scheme == "http":  # the proxy receives the request itself, and no request for a tunnel
            headers |= proxy_headers
        return _Route(target, headers, URL(proxy).with_user(None), proxy_headers)
    except ValueError:  # the message quotes the URL
        raise aiohttp.InvalidURL("") from None


def _login_header(name: str, url: str) -> dict[str, str]:
    login = sent_login(url)
    return {name: f"Basic {login}"} if login else {}


def _proxy_of(url: str) -> str | None:
    """Return the URL of the proxy that the environment configures for a URL, or None."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or host in _THIS_MACHINE or proxy_bypass(f"{host}:{parts.port}" if parts.port else host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


@functools.cache
def _ssl_context() -> ssl.SSLContext:
    # Cached: reading the certificates is the slowest part of creating a client.
    import certifi

    if file := os.environ.get("SSL_CERT_FILE"):
        return ssl.create_default_context(cafile=file)
    if folder := os.environ.get("SSL_CERT_DIR"):
        return ssl.create_default_context(capath=folder)
    return ssl.create_default_context(cafile=certifi.where())
