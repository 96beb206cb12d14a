"""HTTP access for inference: small responses, refusals, and the translation of errors."""

from __future__ import annotations

import asyncio
import math
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx
import msgspec

from runner.inference.errors import EndpointFailure, Mask
from runner.util.display_text import one_line
from runner.util.http import ProxyLoginRequired, UnusableBody, content_encoding, read_body, send_request

MAX_SMALL_BODY = 1 << 20
"""Maximum bytes of a response other than a model's reply: a health check, a model list or an error."""

MAX_RETRY_AFTER_S = 3600.0


class SmallResponse(msgspec.Struct, frozen=True):
    """A complete response whose body has at most ``MAX_SMALL_BODY`` bytes."""

    status: int
    body: bytes
    retry_after: str | None = None


async def fetch(
    method: str,
    url: str,
    body: object = None,
    headers: dict[str, str] | None = None,
    timeout_s: float | None = None,
) -> SmallResponse:
    """Raises ``EndpointFailure`` without a complete response in time, or for one that is too large or compressed."""
    content = None if body is None else msgspec.json.encode(body)
    try:
        async with asyncio.timeout(timeout_s), open_response(method, url, content, headers or {}) as response:
            status = response.status_code
            data = await (read_body(response, MAX_SMALL_BODY) if status == 200 else read_refusal(response))
            return SmallResponse(status, data, response.headers.get("retry-after"))
    except TimeoutError:
        raise EndpointFailure("timeout", f"no complete answer within {timeout_s:g} s") from None


def retry_after_s(header: str | None, now: datetime) -> float | None:
    """Return the seconds to wait by a ``Retry-After`` header (seconds or an HTTP date); None if absent or invalid."""
    if header is None:
        return None
    try:
        if ":" in header:
            date = parsedate_to_datetime(header)
            seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now.timestamp()
        else:
            seconds = float(header)
    except (ValueError, OverflowError):
        return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_S) if math.isfinite(seconds) else None


def bearer_header(key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


@asynccontextmanager
async def open_response(
    method: str, url: str, content: bytes | None, headers: dict[str, str], mask: Mask = str
) -> AsyncIterator[httpx.Response]:
    """The caller reads the body in the ``with`` block, whose network errors become ``EndpointFailure``, too."""
    with translate_errors(mask):
        async with send_request(method, url, content, headers) as response:
            yield response


async def read_refusal(response: httpx.Response) -> bytes:
    """Return the body of a response with another status than 200, which counts for more than a body that is no use.

    The body ends where it breaks or exceeds ``MAX_SMALL_BODY`` bytes, even if it is compressed; of a compression other
    than gzip and deflate it is replaced by the name.
    """
    data, encoding = bytearray(), content_encoding(response)
    with suppress(httpx.TransportError):
        async for chunk in response.aiter_raw():
            data += chunk
            if len(data) >= MAX_SMALL_BODY:
                break
    if not encoding:
        return bytes(data[:MAX_SMALL_BODY])
    if encoding in ("gzip", "x-gzip", "deflate"):
        with suppress(zlib.error):
            return zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(data, MAX_SMALL_BODY)
    return f"the reply is compressed ({one_line(encoding, 40)}), which was not requested".encode()


@contextmanager
def translate_errors(mask: Mask) -> Iterator[None]:
    """Convert exceptions of the HTTP client in the ``with`` block to ``EndpointFailure`` with masked messages."""

    def text(exc: Exception) -> str:
        return one_line(mask(str(exc)), 200) or type(exc).__name__

    try:
        yield
    except httpx.ConnectTimeout as exc:
        raise EndpointFailure("timeout", text(exc)) from exc
    except ProxyLoginRequired as exc:
        raise EndpointFailure("configuration", text(exc), status=407) from exc
    except (httpx.ConnectError, httpx.ProxyError) as exc:
        raise EndpointFailure("connection", f"no connection: {text(exc)}") from exc
    except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError):
        raise EndpointFailure("configuration", "the URL or the key cannot be used") from None
    except httpx.TransportError as exc:
        raise EndpointFailure("connection", f"the connection broke: {text(exc)}") from exc
    except UnusableBody as exc:
        raise EndpointFailure("reply", f"the reply {text(exc)}") from None
