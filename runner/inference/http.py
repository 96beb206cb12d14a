"""The one seam to the network: an httpx client per event loop, bounded replies, and failures in our own words."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from runner.inference.errors import EndpointFailure, Mask
from runner.util.text import one_line

if TYPE_CHECKING:
    import ssl

    import httpx

MAX_SMALL_BODY = 1 << 20
"""Bytes of a health check, a list of models or an error."""
CONNECT_TIMEOUT_S = 5.0
KEEP_ACKED_S = 4.0
"""Seconds that an unused connection is kept: less than servers do, so that none is used in the moment it is closed."""

_clients_lock = threading.Lock()
_clients: dict[asyncio.AbstractEventLoop, tuple[httpx.AsyncClient, AsyncGenerator[httpx.AsyncClient]]] = {}
"""One client per event loop, whoever asks: they hold nothing but connections, which end with their loop."""


async def loop_client() -> httpx.AsyncClient:
    """The client of the running event loop, made when first asked for and closed with the loop."""
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        lifetime = _client_lifetime(loop)
        client = await anext(lifetime)
        with _clients_lock:
            for closed in [other for other in _clients if other.is_closed()]:  # in another way than asyncio.run does
                del _clients[closed]
            _clients[loop] = client, lifetime
    return _clients[loop][0]


async def _client_lifetime(loop: asyncio.AbstractEventLoop) -> AsyncGenerator[httpx.AsyncClient]:
    """Lasts as long as the loop, which closes its generators at its end."""
    client = new_client()
    try:
        yield client
    finally:
        with _clients_lock:
            _clients.pop(loop, None)
        await client.aclose()


def new_client() -> httpx.AsyncClient:
    """A client for model servers; the whole of a reply is bounded by who asks."""
    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=KEEP_ACKED_S)
    return httpx.AsyncClient(timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S), limits=limits, **client_options())


def client_options() -> dict[str, Any]:
    """Nothing compressed, no cookies kept, and no proxy on the way to this machine."""
    from http.cookiejar import CookieJar, DefaultCookiePolicy

    return {
        "verify": _ssl_context(),
        "mounts": dict.fromkeys(("all://localhost", "all://127.0.0.1", "all://[::1]")),
        "headers": {"User-Agent": "agentgym-console", "Accept-Encoding": "identity"},
        "cookies": CookieJar(DefaultCookiePolicy(allowed_domains=())),
    }


@functools.cache
def _ssl_context() -> ssl.SSLContext:
    """Made once: reading the certificates takes longer than everything else about a client."""
    import httpx

    return httpx.create_ssl_context()


class SmallResponse(msgspec.Struct, frozen=True):
    """A small reply."""

    status: int
    body: bytes
    retry_after: str | None = None


async def fetch(
    client: httpx.AsyncClient, method: str, url: str, body: object = None, headers: dict[str, str] | None = None
) -> SmallResponse:
    """Ask for something small.

    Raises:
        EndpointFailure: when nothing comes, or more than ``MAX_SMALL_BODY``.
    """
    content = None if body is None else msgspec.json.encode(body)
    async with send_request(client, method, url, content, headers or {}) as response:
        body = await read_body(response, MAX_SMALL_BODY)
        return SmallResponse(response.status_code, body, response.headers.get("retry-after"))


@asynccontextmanager
async def send_request(
    client: httpx.AsyncClient, method: str, url: str, content: bytes | None, headers: dict[str, str], mask: Mask = str
) -> AsyncIterator[httpx.Response]:
    """Send a request; the reply's body is not read yet.

    Raises:
        EndpointFailure: for whatever goes wrong on the network, while the body is read as well.
    """
    kind = {"Content-Type": "application/json"} if content is not None else {}
    with translate_errors(mask):
        request = client.build_request(method, url, content=content, headers=kind | headers)
        response = await client.send(request, stream=True)
        try:
            yield response
        finally:
            await response.aclose()


async def read_body(response: httpx.Response, limit: int) -> bytes:
    """The body as it came.

    Raises:
        EndpointFailure: when it is longer than ``limit`` bytes, or compressed, which was not asked for.
    """
    reject_encoding(response)
    chunks, size = [], 0
    async for chunk in response.aiter_raw():
        chunks.append(chunk)
        size += len(chunk)
        if size > limit:
            raise EndpointFailure("reply", f"the reply is larger than {limit >> 20} MiB")
    return b"".join(chunks)


def reject_encoding(response: httpx.Response) -> None:
    """No compressed replies: a small one may stand for gigabytes.

    Raises:
        EndpointFailure: naming the encoding.
    """
    encoding: Any = response.headers.get("content-encoding", "identity")
    if encoding.strip().lower() not in ("", "identity"):
        raise EndpointFailure("reply", f"the reply is compressed ({one_line(encoding, 40)}), which was not asked for")


@contextmanager
def translate_errors(mask: Mask) -> Iterator[None]:
    """Turn what httpx raises into failures of the endpoint.

    Raises:
        EndpointFailure: in place of errors of the network, the protocol, or the URL.
    """
    import httpx

    try:
        yield
    except httpx.ConnectTimeout as exc:
        raise EndpointFailure("timeout", f"no connection within {CONNECT_TIMEOUT_S:g} s") from exc
    except (httpx.ConnectError, httpx.ProxyError) as exc:
        raise EndpointFailure("connection", f"no connection: {_shown(exc, mask)}") from exc
    except httpx.LocalProtocolError:  # quotes the header that it does not like
        raise EndpointFailure("configuration", "the key or the URL cannot be sent in a header") from None
    except httpx.TransportError as exc:
        raise EndpointFailure("connection", f"the connection broke: {_shown(exc, mask)}") from exc
    except (httpx.InvalidURL, UnicodeError):
        raise EndpointFailure("configuration", "the URL or the key cannot be used") from None


def _shown(exc: Exception, mask: Mask) -> str:
    return one_line(mask(str(exc)), 160) or type(exc).__name__
