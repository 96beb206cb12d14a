"""The HTTP clients that environments share: one per event loop, open while any environment of that loop needs it."""

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

KEEPALIVE_S = 1.0
"""Seconds that an unused connection is kept.

Servers close theirs after 2 to 5, mostly while a model thinks. A step that meets the closing could not be sent again,
as nobody knows whether it was taken.
"""


class _NoCookies(CookieJar):
    """Servers get nothing back: episodes have nothing to do with each other."""

    def extract_cookies(self, response: HTTPResponse, request: Request) -> None:
        """Keep none."""


class _Shared:
    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.n_users = 0


_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared] = WeakKeyDictionary()
_guard = threading.Lock()  # slots are threads, each with a loop of its own


def borrow() -> httpx.AsyncClient:
    """The running loop's client; give it back with ``give_back``."""
    loop = asyncio.get_running_loop()
    with _guard:
        if loop not in _shared:
            _shared[loop] = _Shared(_client())
        _shared[loop].n_users += 1
        return _shared[loop].client


async def give_back() -> None:
    """Return what ``borrow`` gave; the last one to do so closes the loop's connections."""
    loop = asyncio.get_running_loop()
    with _guard:
        shared = _shared[loop]
        shared.n_users -= 1
        if shared.n_users:
            return
        del _shared[loop]
    await shared.client.aclose()


def _client() -> httpx.AsyncClient:
    return httpx.AsyncClient(
        cookies=_NoCookies(),
        follow_redirects=False,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEEPALIVE_S),
        timeout=None,  # each request is bounded as a whole
        trust_env=False,  # no proxy stands between a node and its own machine's servers
        verify=_tls(),
    )


@functools.cache
def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context()
