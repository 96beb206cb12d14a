"""HTTP access for inference: one httpx client per event loop, size limits, and translation of errors."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from runner.inference.errors import EndpointFailure, Mask
from runner.util.display_text import one_line

if TYPE_CHECKING:
    import ssl

    import httpx

MAX_SMALL_BODY = 1 << 20
"""Maximum bytes of a response other than a model's reply: a health check, a model list or an error."""
CONNECT_TIMEOUT_S = 5.0
KEEPALIVE_S = 4.0
"""Seconds to keep an unused connection; shorter than on servers, so that it is not used while a server closes it."""

_clients_lock = threading.Lock()
_clients: dict[asyncio.AbstractEventLoop, tuple[httpx.AsyncClient, AsyncGenerator[httpx.AsyncClient]]] = {}
"""The HTTP client of each running event loop, and the generator that closes the client with the loop."""


async def loop_client() -> httpx.AsyncClient:
    """Return the HTTP client of the running event loop; the first call creates it, the end of the loop closes it."""
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        lifetime = _client_lifetime(loop)
        client = await anext(lifetime)
        with _clients_lock:
            # a loop may be closed without shutting down its generators
            for closed_loop in [other for other in _clients if other.is_closed()]:
                del _clients[closed_loop]
            _clients[loop] = client, lifetime
    return _clients[loop][0]


async def _client_lifetime(loop: asyncio.AbstractEventLoop) -> AsyncGenerator[httpx.AsyncClient]:
    """Close the client when the event loop shuts down its async generators."""
    client = new_client()
    try:
        yield client
    finally:
        with _clients_lock:
            _clients.pop(loop, None)
        await client.aclose()


def new_client() -> httpx.AsyncClient:
    """Return an HTTP client for model servers; the caller must limit the total time of a reply."""
    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=KEEPALIVE_S)
    return httpx.AsyncClient(timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S), limits=limits, **client_options())


def client_options() -> dict[str, Any]:
    """Return the options of httpx clients: no compression, no cookies, and no proxy for servers on this machine."""
    from http.cookiejar import CookieJar, DefaultCookiePolicy

    return {
        "verify": _ssl_context(),
        "mounts": dict.fromkeys(("all://localhost", "all://127.0.0.1", "all://[::1]")),
        "headers": {"User-Agent": "agentgym-console", "Accept-Encoding": "identity"},
        "cookies": CookieJar(DefaultCookiePolicy(allowed_domains=())),
    }


@functools.cache
def _ssl_context() -> ssl.SSLContext:
    # Cached: reading the certificates is the slowest part of creating a client.
    import httpx

    return httpx.create_ssl_context()


class SmallResponse(msgspec.Struct, frozen=True):
    """A complete response whose body has at most ``MAX_SMALL_BODY`` bytes."""

    status: int
    body: bytes
    retry_after: str | None = None


async def fetch(
    client: httpx.AsyncClient, method: str, url: str, body: object = None, headers: dict[str, str] | None = None
) -> SmallResponse:
    """Send a request and return its complete response.

    Raises:
        EndpointFailure: if there is no response, or its body is larger than ``MAX_SMALL_BODY`` bytes.
    """
    content = None if body is None else msgspec.json.encode(body)
    async with send_request(client, method, url, content, headers or {}) as response:
        body = await read_body(response, MAX_SMALL_BODY)
        return SmallResponse(response.status_code, body, response.headers.get("retry-after"))


@asynccontextmanager
async def send_request(
    client: httpx.AsyncClient, method: str, url: str, content: bytes | None, headers: dict[str, str], mask: Mask = str
) -> AsyncIterator[httpx.Response]:
    """Send a request and yield the response; the caller reads its body in the ``with`` block.

    Raises:
        EndpointFailure: for a network error, including errors while the caller reads the body.
    """
    content_type = {"Content-Type": "application/json"} if content is not None else {}
    with translate_errors(mask):
        request = client.build_request(method, url, content=content, headers=content_type | headers)
        response = await client.send(request, stream=True)
        try:
            yield response
        finally:
            await response.aclose()


async def read_body(response: httpx.Response, limit: int) -> bytes:
    """Return the body of a response.

    Raises:
        EndpointFailure: if the body is longer than ``limit`` bytes or compressed.
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
    """Reject a compressed response: a few bytes could expand to gigabytes, and no request allows compression.

    Raises:
        EndpointFailure: if the response is compressed; the message names the encoding.
    """
    encoding: Any = response.headers.get("content-encoding", "identity")
    if encoding.strip().lower() not in ("", "identity"):
        raise EndpointFailure("reply", f"the reply is compressed ({one_line(encoding, 40)}), which was not requested")


@contextmanager
def translate_errors(mask: Mask) -> Iterator[None]:
    """Convert httpx exceptions in the ``with`` block to endpoint failures with masked messages.

    Raises:
        EndpointFailure: for network errors, protocol errors and invalid URLs.
    """
    import httpx

    try:
        yield
    except httpx.ConnectTimeout as exc:
        raise EndpointFailure("timeout", f"no connection within {CONNECT_TIMEOUT_S:g} s") from exc
    except (httpx.ConnectError, httpx.ProxyError) as exc:
        raise EndpointFailure("connection", f"no connection: {_error_text(exc, mask)}") from exc
    except httpx.LocalProtocolError:  # its message quotes the header
        raise EndpointFailure("configuration", "the key or the URL cannot be sent in a header") from None
    except httpx.TransportError as exc:
        raise EndpointFailure("connection", f"the connection broke: {_error_text(exc, mask)}") from exc
    except (httpx.InvalidURL, UnicodeError):
        raise EndpointFailure("configuration", "the URL or the key cannot be used") from None


def _error_text(exc: Exception, mask: Mask) -> str:
    return one_line(mask(str(exc)), 160) or type(exc).__name__
