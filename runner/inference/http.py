"""HTTP access for inference: proxies and logins of URLs, size limits, and translation of errors."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import msgspec

from runner.inference.endpoints import sent_login
from runner.inference.errors import EndpointFailure, Mask
from runner.util.display_text import one_line
from runner.util.http_client import HttpClient, Route, loop_client, parse_url

if TYPE_CHECKING:
    import aiohttp

CONNECT_TIMEOUT_S = 5.0
KEEPALIVE_S = 4.0
"""Seconds to keep an unused connection to a model server."""
MAX_SMALL_BODY = 1 << 20
"""Maximum bytes of a response other than a model's reply: a health check, a model list or an error."""

_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


class ModelHttpClient(HttpClient):
    """``HttpClient`` that uses the proxies of the environment, but none to servers on this machine."""

    def __init__(self) -> None:
        super().__init__(KEEPALIVE_S, CONNECT_TIMEOUT_S)
        self._routes: dict[str, Route] = {}

    def find_route(self, url: str) -> Route:
        if url not in self._routes:
            self._routes[url] = _find_route(url)
        return self._routes[url]


def _find_route(url: str) -> Route:
    import aiohttp

    try:
        target, proxy, headers = parse_url(url).with_user(None), _proxy_of(url), _login_header("Authorization", url)
        if proxy is None:
            return Route(target, headers)
        proxy_headers = _login_header("Proxy-Authorization", proxy)
        if target.scheme == "http":  # the proxy receives the request itself, and no request for a tunnel
            headers |= proxy_headers
        return Route(target, headers, parse_url(proxy).with_user(None), proxy_headers)
    except ValueError:  # the message quotes the URL
        raise aiohttp.InvalidURL("") from None


def _login_header(name: str, url: str) -> dict[str, str]:
    login = sent_login(url)
    return {name: f"Basic {login}"} if login else {}


def _proxy_of(url: str) -> str | None:
    parts = urlsplit(url)
    host = parts.hostname or ""
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or host in _THIS_MACHINE or proxy_bypass(f"{host}:{parts.port}" if parts.port else host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


async def model_client() -> HttpClient:
    return await loop_client(ModelHttpClient)


class SmallResponse(msgspec.Struct, frozen=True):
    """A complete response whose body has at most ``MAX_SMALL_BODY`` bytes."""

    status: int
    body: bytes
    retry_after: str | None = None


async def fetch(
    client: HttpClient, method: str, url: str, body: object = None, headers: dict[str, str] | None = None
) -> SmallResponse:
    """Raises ``EndpointFailure`` without a response, or for one that is too large, or compressed with status 200."""
    content = None if body is None else msgspec.json.encode(body)
    async with send_request(client, method, url, content, headers or {}) as response:
        body = await (read_body(response, MAX_SMALL_BODY) if response.status == 200 else read_refusal(response))
        return SmallResponse(response.status, body, response.headers.get("retry-after"))


def bearer_header(key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


async def fetch_within(timeout_s: float, method: str, url: str, body: object, headers: dict[str, str]) -> SmallResponse:
    """Raises ``EndpointFailure`` as ``fetch``, or if the response is not complete within ``timeout_s`` seconds."""
    try:
        async with asyncio.timeout(timeout_s):
            return await fetch(await model_client(), method, url, body, headers)
    except TimeoutError:
        raise EndpointFailure("timeout", f"no complete answer within {timeout_s:g} s") from None


@asynccontextmanager
async def send_request(
    client: HttpClient, method: str, url: str, content: bytes | None, headers: dict[str, str], mask: Mask = str
) -> AsyncIterator[aiohttp.ClientResponse]:
    """The caller reads the body in the ``with`` block, whose network errors become ``EndpointFailure``, too."""
    with translate_errors(mask):
        async with await client.send(method, url, content, headers) as response:
            yield response


async def read_body(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Raises ``EndpointFailure`` if the body is longer than ``limit`` bytes or compressed."""
    reject_encoding(response)
    chunks, size = [], 0
    async for chunk in response.content.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if size > limit:
            raise EndpointFailure("reply", f"the reply is larger than {limit >> 20} MiB")
    return b"".join(chunks)


async def read_refusal(response: aiohttp.ClientResponse) -> bytes:
    """Return the body of a response with another status than 200, which counts for more than a body that is no use.

    The body ends where it breaks or exceeds ``MAX_SMALL_BODY`` bytes, even if it is compressed; of a compression other
    than gzip and deflate it is replaced by the name.
    """
    import aiohttp

    data, encoding = bytearray(), _encoding(response)
    with suppress(aiohttp.ClientError, OSError):
        async for chunk in response.content.iter_any():
            data += chunk
            if len(data) >= MAX_SMALL_BODY:
                break
    if not encoding:
        return bytes(data[:MAX_SMALL_BODY])
    if encoding in ("gzip", "x-gzip", "deflate"):
        with suppress(zlib.error):
            return zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(data, MAX_SMALL_BODY)
    return f"the reply is compressed ({one_line(encoding, 40)}), which was not requested".encode()


def reject_encoding(response: aiohttp.ClientResponse) -> None:
    """Reject a compressed response: a few bytes could expand to gigabytes, and no request allows compression."""
    if encoding := _encoding(response):
        raise EndpointFailure("reply", f"the reply is compressed ({one_line(encoding, 40)}), which was not requested")


def _encoding(response: aiohttp.ClientResponse) -> str:
    encoding = response.headers.get("content-encoding", "").strip().lower()
    return "" if encoding == "identity" else encoding


@contextmanager
def translate_errors(mask: Mask) -> Iterator[None]:
    """Convert exceptions of the HTTP client in the ``with`` block to ``EndpointFailure`` with masked messages."""
    import aiohttp

    try:
        yield
    except aiohttp.ConnectionTimeoutError as exc:
        raise EndpointFailure("timeout", f"no connection within {CONNECT_TIMEOUT_S:g} s") from exc
    except (aiohttp.ClientConnectorError, aiohttp.ClientHttpProxyError) as exc:
        raise EndpointFailure("connection", f"no connection: {_error_text(exc, mask)}") from exc
    except (aiohttp.InvalidURL, UnicodeError):  # the message quotes the URL or the header
        raise EndpointFailure("configuration", "the URL or the key cannot be used") from None
    except (aiohttp.ClientError, OSError) as exc:
        raise EndpointFailure("connection", f"the connection broke: {_error_text(exc, mask)}") from exc


def _error_text(exc: Exception, mask: Mask) -> str:
    # Without the URL that some messages contain.
    import aiohttp

    text = str(exc)
    if isinstance(exc, aiohttp.ClientResponseError):
        text = f"{exc.status} {exc.message}"
    elif isinstance(exc, aiohttp.ClientConnectorCertificateError):
        text = str(exc.certificate_error)
    elif isinstance(exc, aiohttp.ClientConnectorError):
        text = exc.os_error.strerror or str(exc.os_error)
    return one_line(mask(text), 160) or type(exc).__name__
