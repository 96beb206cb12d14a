"""Shared HTTP clients: an ``httpx.AsyncClient`` for a few environments of an event loop, open while any uses it."""

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


MAX_USERS = 8
"""Environments per client: its pool looks through all its connections at each request, 31 ms of CPU for 64 of them."""

_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, list[_SharedClient]] = WeakKeyDictionary()
_lock = threading.Lock()  # the event loops run on different threads


def acquire_client(keepalive_s: float) -> httpx.AsyncClient:
    """Return an HTTP client of the running event loop; pair each call with ``release_client``.

    Args:
        keepalive_s: seconds that an idle connection stays open; has no effect if a client exists that is not full.
    """
    loop = asyncio.get_running_loop()
    with _lock:
        clients = _clients.setdefault(loop, [])
        shared = next((shared for shared in clients if shared.n_users < MAX_USERS), None)
        if shared is None:
            clients.append(shared := _SharedClient(_new_client(keepalive_s)))
        shared.n_users += 1
        return shared.client


async def release_client(client: httpx.AsyncClient) -> None:
    """Release an HTTP client of the running event loop; the last release closes its connections."""
    with _lock:
        clients = _clients[asyncio.get_running_loop()]
        shared = next(shared for shared in clients if shared.client is client)
        shared.n_users -= 1
        if shared.n_users:
            return
        clients.remove(shared)
    await client.aclose()


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
