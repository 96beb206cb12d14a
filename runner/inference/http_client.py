"""The HTTP client of one event loop, for model servers: aiohttp's session, proxies and logins."""

from __future__ import annotations

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
    proxy_auth: aiohttp.BasicAuth | None


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
        content_type = {} if content is None else {"Content-Type": "application/json"}
        return await self._session.request(
            method,
            route.url,
            data=content,
            headers=content_type | route.headers | headers,
            allow_redirects=False,
            proxy=route.proxy,
            proxy_auth=route.proxy_auth,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()


def _find_route(url: str) -> _Route:
    import aiohttp
    from yarl import URL

    try:
        target = URL(url)
        login = sent_login(url)
        proxy = _proxy_of(url)
        proxy_login = None if proxy is None else aiohttp.BasicAuth.from_url(proxy)
        return _Route(
            target.with_user(None),
            {"Authorization": f"Basic {login}"} if login else {},
            None if proxy is None else proxy.with_user(None),
            proxy_login,
        )
    except ValueError:  # the message quotes the URL
        raise aiohttp.InvalidURL("") from None


def _proxy_of(url: str) -> URL | None:
    """Return the proxy that the environment configures for a URL, or None."""
    from yarl import URL

    parts = urlsplit(url)
    host = parts.hostname or ""
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or host in _THIS_MACHINE or proxy_bypass(f"{host}:{parts.port}" if parts.port else host):
        return None
    return URL(proxy if "://" in proxy else f"http://{proxy}")


@functools.cache
def _ssl_context() -> ssl.SSLContext:
    # Cached: reading the certificates is the slowest part of creating a client.
    import certifi

    if file := os.environ.get("SSL_CERT_FILE"):
        return ssl.create_default_context(cafile=file)
    if folder := os.environ.get("SSL_CERT_DIR"):
        return ssl.create_default_context(capath=folder)
    return ssl.create_default_context(cafile=certifi.where())
