"""Shared HTTP clients: one ``httpx.AsyncClient`` per event loop, open while an environment of that loop uses it."""

from __future__ import annotations

import asyncio
import functools
import threading
from http.cookiejar import CookieJar
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import httpx

if TYPE_CHECKING:
    import ssl
    from http.client import HTTPResponse
    from urllib.request import Request


class _NoCookies(CookieJar):
    """Discards all cookies, so that episodes stay independent."""

    def extract_cookies(self, response: HTTPResponse, request: Request) -> None:
        """Ignore the cookies of a response."""


class _SharedClient:
    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.n_users = 0


_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, _SharedClient] = WeakKeyDictionary()
_lock = threading.Lock()  # workers are threads, each with its own loop


def acquire_client(keepalive_s: float) -> httpx.AsyncClient:
    """Return the HTTP client of the running event loop; pair each call with ``release_client``.

    Args:
        keepalive_s: seconds that an idle connection stays open; has no effect if the client already exists.
    """
    loop = asyncio.get_running_loop()
    with _lock:
        if loop not in _clients:
            _clients[loop] = _SharedClient(_new_client(keepalive_s))
        _clients[loop].n_users += 1
        return _clients[loop].client


async def release_client() -> None:
    """Release the HTTP client of the running event loop; the last release closes the client's connections."""
    loop = asyncio.get_running_loop()
    with _lock:
        shared = _clients[loop]
        shared.n_users -= 1
        if shared.n_users:
            return
        del _clients[loop]
    await shared.client.aclose()


def _new_client(keepalive_s: float) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        cookies=_NoCookies(),
        follow_redirects=False,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=keepalive_s),
        timeout=None,  # HttpConnection bounds each request as a whole
        trust_env=False,  # a proxy could not reach servers on the node's own machine
        verify=_tls_context(),
    )


@functools.cache
def _tls_context() -> ssl.SSLContext:
    return httpx.create_ssl_context()
