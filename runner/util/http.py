"""The HTTP client of the runner: httpx over one aiohttp session for each event loop.

With 64 conversations at once, httpx's own connection pool takes twenty times the CPU of aiohttp's for each call, so
httpx is the interface and aiohttp sends. Requests go to the transport without ``httpx.AsyncClient``, whose cookies,
redirects and logins are not wanted here and would take as much CPU as the rest of a call. Both are slow to import: only
what is about to send a request imports this module.
"""

from __future__ import annotations

import asyncio
import fnmatch
import functools
import ipaddress
import os
import re
import socket
import ssl
import threading
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from types import SimpleNamespace
from typing import Any, TypeAlias
from urllib.parse import urlsplit
from urllib.request import getproxies

import aiohttp
import certifi
import httpx
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import HttpProcessingError
from yarl import URL

from runner.util.thread_replies import wait_for_reply
from runner.util.urls import split_login

MAX_HEADER_BYTES = 64 << 10
"""Maximum bytes of all headers of a response, and of one of them while aiohttp reads it."""
CONNECT_TIMEOUT_S = 5.0
KEEPALIVE_S = 4.0
"""Seconds to keep an unused connection to a server that is not an environment's."""
CONNECTED = "connection.connect_tcp.complete"
"""The only event that this transport reports to a request's extension ``trace``, see httpx's documentation."""

_HEADERS = {"User-Agent": "agentgym-console", "Accept": "*/*", "Accept-Encoding": "identity"}


class UnusableBody(Exception):
    """A body that no caller reads; the text continues a sentence about it, such as "is larger than 4 MiB"."""


class ProxyLoginRequired(httpx.ProxyError):
    pass


@asynccontextmanager
async def send_request(
    method: str,
    url: str,
    content: bytes | None = None,
    headers: dict[str, str] | None = None,
    *,
    keepalive_s: float = KEEPALIVE_S,
    connect_timeout_s: float | None = CONNECT_TIMEOUT_S,
    on_connected: Callable[[], object] | None = None,
) -> AsyncIterator[httpx.Response]:
    """Send a request over the proxy that the environment names, and yield the response before its body is read.

    A POST is never sent twice, no redirect is followed, no cookie kept. The caller limits the total time, and reads the
    body in the ``with`` block. A login in the URL becomes the header ``Authorization`` unless there is one.

    Args:
        keepalive_s: seconds to keep the connection for another request; shorter than on the server, so that it is not
            used while the server closes it.
        connect_timeout_s: seconds to connect; None: no limit.

    Raises:
        httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError: the request cannot be sent.
        httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError: no connection; the server has executed nothing.
        httpx.ReadError: the connection was lost; the server may have executed the request.
        httpx.RemoteProtocolError: the response is not HTTP, or its headers exceed ``MAX_HEADER_BYTES``.
    """
    transport = await _loop_transport(keepalive_s, is_traced=on_connected is not None)
    extensions: dict[str, Any] = {"timeout": {"connect": connect_timeout_s}}
    if on_connected is not None:
        extensions["trace"] = functools.partial(_report_connected, on_connected)
    try:
        target, login = _parse_url(url)
        content_type = {} if content is None else {"Content-Type": "application/json"}
        headers = _HEADERS | content_type | login | (headers or {})
        request = httpx.Request(method, target, headers=headers, content=content, extensions=extensions)
    except ValueError:  # such as a key that is not ASCII, which the message quotes
        raise httpx.LocalProtocolError("the URL or a header cannot be sent") from None
    response = await transport.handle_async_request(request)
    response.request = request
    try:
        yield response
    finally:
        await response.aclose()


@functools.lru_cache(maxsize=256)
def _parse_url(url: str) -> tuple[httpx.URL, dict[str, str]]:
    address, login = split_login(url)
    return httpx.URL(address), {"Authorization": f"Basic {login}"} if login else {}


async def _report_connected(on_connected: Callable[[], object], event: str, info: object) -> None:
    if event == CONNECTED:
        on_connected()


async def read_body(response: httpx.Response, limit: int) -> bytes:
    """Raises ``UnusableBody`` if the body is longer than ``limit`` bytes or compressed."""
    reject_encoding(response)
    chunks, size = [], 0
    async for chunk in response.aiter_raw():
        chunks.append(chunk)
        size += len(chunk)
        if size > limit:
            raise UnusableBody(f"is larger than {limit >> 20} MiB")
    return b"".join(chunks)


def reject_encoding(response: httpx.Response) -> None:
    """Reject a compressed response: a few bytes could expand to gigabytes, and no request allows compression."""
    if encoding := content_encoding(response):
        raise UnusableBody(f"is compressed ({encoding[:40]}), which was not requested")


def content_encoding(response: httpx.Response) -> str:
    """Return the compression of the body, untrusted and in lower case; empty if there is none."""
    encoding = response.headers.get("content-encoding", "").strip().lower()
    return "" if encoding == "identity" else encoding


# ----------------------------------------------------------------------------------------------------- proxies


def find_proxy(url: httpx.URL) -> httpx.Proxy | None:
    """Return the proxy for a URL by ``HTTP_PROXY`` and its relatives; None for this machine and what NO_PROXY names.

    ``NO_PROXY`` is ``*`` or a list, by commas, of names (with what is below them), addresses, networks such as
    ``10.0.0.0/8`` and wildcards such as ``gpu-*.lab``, each with an optional port.

    Raises:
        httpx.ProxyError: the proxy's URL cannot be used.
    """
    proxies = getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if not proxy or is_this_machine(url.host) or _is_exempt(url, proxies.get("no", "")):
        return None
    with suppress(httpx.InvalidURL, ValueError):
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        found = httpx.Proxy(f"{parts.scheme}://{parts.netloc}")  # its path and query are not used, and not shown
        if found.url.host and (found.url.port or 0) < 1 << 16:
            return found
    problem = f"the proxy of the environment for {url.scheme} cannot be used"
    raise httpx.ProxyError(f"{problem}: give http://HOST:PORT, https://HOST:PORT or socks5://HOST:PORT")


def is_this_machine(host: str) -> bool:
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = _address(host)
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    return address is not None and (address.is_loopback or address.is_unspecified)


def _is_exempt(url: httpx.URL, exceptions: str) -> bool:
    host = url.host.lower().rstrip(".")
    port = url.port or {"http": 80, "https": 443}.get(url.scheme)
    return any(_names(entry.strip().lower(), host, port) for entry in exceptions.split(",") if entry.strip())


def _names(entry: str, host: str, port: int | None) -> bool:
    if match := re.fullmatch(r"(\[.*\]|[^:]*):(\d+)", entry):
        entry = match[1]
        if int(match[2]) != port:
            return False
    entry = entry.strip("[]").strip(".")
    if (address := _address(host)) is not None:
        try:
            return address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return fnmatch.fnmatchcase(host, entry)
    return fnmatch.fnmatchcase(host, entry) or host.endswith(f".{entry}")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]"))
    with suppress(OSError, UnicodeError):
        return ipaddress.IPv4Address(socket.inet_aton(host))  # in the short forms that a lookup takes, such as 127.1
    return None


# ------------------------------------------------------------------------------------------------ the transport


class AiohttpTransport(httpx.AsyncBaseTransport):
    """Sends requests over one aiohttp session, and those over a SOCKS proxy by httpx's own pool."""

    def __init__(self, keepalive_s: float, *, is_traced: bool) -> None:
        self._keepalive_s = keepalive_s
        connector = _Connector(limit=0, keepalive_timeout=keepalive_s, resolver=_Resolver())
        handler: type[ResponseHandler] = _StrictHandler
        connector._factory = functools.partial(handler, loop=asyncio.get_running_loop())
        tracing = aiohttp.TraceConfig()
        tracing.on_connection_create_end.append(_trace_connected)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=["User-Agent", "Accept", "Accept-Encoding", "Content-Type"],
            auto_decompress=False,
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
            trace_configs=[tracing] if is_traced else [],  # tracing costs each request a tenth of its CPU
        )
        self._proxies: dict[tuple[str, str, int | None], httpx.Proxy | None] = {}
        self._socks: dict[str, httpx.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        proxy = self._find_proxy(request.url)
        if proxy is not None and proxy.url.scheme.startswith("socks"):
            return await self._send_over_socks(proxy, request)
        for _ in range(2):  # the loop reads the ends of idle connections, and then removes these from the pool
            await asyncio.sleep(0)
        with _httpx_errors(proxy):
            reply = await self._send(request, proxy)
        response = httpx.Response(
            reply.status,
            headers=reply.raw_headers,
            stream=_Body(reply, proxy),
            extensions={} if proxy is None else {"proxy": str(proxy.url)},
        )
        if proxy is not None and reply.status == httpx.codes.PROXY_AUTHENTICATION_REQUIRED:
            reply.close()
            raise ProxyLoginRequired(_refused_login(proxy))
        return _with_bounded_headers(response, reply.close)

    async def _send(self, request: httpx.Request, proxy: httpx.Proxy | None) -> aiohttp.ClientResponse:
        headers = [(name.decode("ascii"), value.decode("latin-1")) for name, value in request.headers.raw]
        login = _proxy_login(proxy)
        if request.url.scheme == "http":  # the proxy receives the request itself, and no request for a tunnel
            headers += login.items()
        return await self._session.request(
            request.method,
            URL(str(request.url), encoded=True),
            data=request.content or None,
            headers=headers,
            allow_redirects=False,
            proxy=None if proxy is None else URL(str(proxy.url)),
            proxy_headers=login,
            ssl=_ssl_context() if "https" in (request.url.scheme, proxy and proxy.url.scheme) else True,
            timeout=aiohttp.ClientTimeout(total=None, connect=request.extensions["timeout"]["connect"]),
            trace_request_ctx=request.extensions.get("trace"),
        )

    def _find_proxy(self, url: httpx.URL) -> httpx.Proxy | None:
        origin = url.scheme, url.host, url.port
        if origin not in self._proxies:
            self._proxies[origin] = find_proxy(url)
        return self._proxies[origin]

    async def _send_over_socks(self, proxy: httpx.Proxy, request: httpx.Request) -> httpx.Response:
        if (key := str(proxy.url)) not in self._socks:
            self._socks[key] = _socks_transport(proxy, self._keepalive_s)
        from socksio.exceptions import SOCKSError  # installed, as httpx needs it for the transport

        progress = _SocksProgress(request.extensions.get("trace"))
        request.extensions["trace"] = progress.report
        timeout_s = request.extensions["timeout"]["connect"]
        try:
            async with asyncio.timeout(timeout_s) as progress.deadline:
                response = await self._socks[key].handle_async_request(request)
        except TimeoutError:
            raise httpx.ConnectTimeout(f"no connection through the proxy {proxy.url} within {timeout_s:g} s") from None
        except (httpx.TransportError, SOCKSError) as exc:  # of socksio if the proxy's replies are not SOCKS
            if progress.is_sending:
                raise
            raise httpx.ProxyError(f"the proxy {proxy.url} gives no connection: {exc}") from exc
        finally:
            await progress.close_unused()
        try:
            return _with_bounded_headers(response, lambda: None)
        except httpx.RemoteProtocolError:
            await response.aclose()
            raise

    async def aclose(self) -> None:
        await self._session.close()
        for transport in self._socks.values():
            await transport.aclose()


class _SocksProgress:
    """Until the request is sent, its deadline is that of the connection, and no server has executed it."""

    deadline: asyncio.Timeout
    is_sending = False
    _stream: Any = None

    def __init__(self, on_event: Callable[[str, dict[str, Any]], Awaitable[None]] | None) -> None:
        self._on_event = on_event

    async def report(self, event: str, info: dict[str, Any]) -> None:
        if event == "socks.connect_tcp.complete":
            self._stream = info["return_value"]
        elif event == "http11.send_request_headers.started":
            self.is_sending = True
            self.deadline.reschedule(None)
            if self._on_event is not None:
                await self._on_event(CONNECTED, info)

    async def close_unused(self) -> None:
        """Close a connection to the proxy that did not become one to the server, which httpcore leaves open."""
        if self._stream is not None and not self.is_sending:
            await self._stream.aclose()


def _with_bounded_headers(response: httpx.Response, close: Callable[[], object]) -> httpx.Response:
    if sum(len(name) + len(value) for name, value in response.headers.raw) > MAX_HEADER_BYTES:
        close()
        raise httpx.RemoteProtocolError(f"the headers of the reply are larger than {MAX_HEADER_BYTES >> 10} KiB")
    return response


def _socks_transport(proxy: httpx.Proxy, keepalive_s: float) -> httpx.AsyncHTTPTransport:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=keepalive_s)
    try:
        return httpx.AsyncHTTPTransport(verify=_ssl_context(), trust_env=False, limits=limits, proxy=proxy)
    except ImportError:
        advice = "pip install 'agentgym-console[socks]'"
        raise httpx.ProxyError(f"the proxy {proxy.url} needs the package for SOCKS: {advice}") from None


def _proxy_login(proxy: httpx.Proxy | None) -> dict[str, str]:
    if proxy is None or proxy.raw_auth is None:
        return {}
    return {"Proxy-Authorization": f"Basic {b64encode(b':'.join(proxy.raw_auth)).decode()}"}


def _refused_login(proxy: httpx.Proxy) -> str:
    problem = "refuses its login" if proxy.raw_auth else "requires a login: give its URL as http://USER:PASSWORD@HOST"
    return f"the proxy {proxy.url} {problem} (status 407)"


class _Body(httpx.AsyncByteStream):
    def __init__(self, reply: aiohttp.ClientResponse, proxy: httpx.Proxy | None) -> None:
        self._reply = reply
        self._proxy = proxy

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _httpx_errors(self._proxy):
            async for chunk in self._reply.content.iter_any():
                yield chunk

    async def aclose(self) -> None:
        self._reply.release()  # a connection with an unread rest is closed


@contextmanager
def _httpx_errors(proxy: httpx.Proxy | None) -> Iterator[None]:
    """Convert aiohttp's exceptions, of which some quote the reply, the URL or a header."""
    through = "" if proxy is None else f" through the proxy {proxy.url}"
    try:
        yield
    except aiohttp.ConnectionTimeoutError as exc:
        raise httpx.ConnectTimeout(f"no connection{through} within {CONNECT_TIMEOUT_S:g} s") from exc
    except aiohttp.ClientHttpProxyError as exc:
        assert proxy is not None
        if exc.status == httpx.codes.PROXY_AUTHENTICATION_REQUIRED:
            raise ProxyLoginRequired(_refused_login(proxy)) from exc
        raise httpx.ProxyError(f"the proxy {proxy.url} refuses the connection: {exc.status} {exc.message}") from exc
    except aiohttp.ClientProxyConnectionError as exc:
        assert proxy is not None
        raise httpx.ProxyError(f"the proxy {proxy.url} cannot be reached: {_cause(exc)}") from exc
    except aiohttp.ClientConnectorCertificateError as exc:
        raise httpx.ConnectError(f"{exc.certificate_error}{through}") from exc.certificate_error
    except aiohttp.ClientConnectorError as exc:
        raise httpx.ConnectError(_cause(exc) + through) from exc.os_error
    except aiohttp.InvalidURL as exc:
        raise httpx.InvalidURL("the URL is not valid") from exc
    except aiohttp.ServerDisconnectedError as exc:
        raise httpx.ReadError(f"the server disconnected{through}") from exc
    except aiohttp.ClientPayloadError as exc:
        raise httpx.ReadError(f"the reply is incomplete{through}") from exc
    except OSError as exc:
        raise httpx.ReadError(f"{exc.strerror or type(exc).__name__}{through}") from exc
    except aiohttp.ClientError as exc:
        raise httpx.RemoteProtocolError(f"the reply is not valid HTTP{through}") from exc
    except ValueError as exc:  # a line break in a header
        raise httpx.LocalProtocolError("a header cannot be sent") from exc


def _cause(exc: aiohttp.ClientConnectorError) -> str:
    error = exc.os_error
    if isinstance(error, socket.gaierror | ssl.SSLError) or not error.errno:  # OpenSSL's numbers are others
        return error.strerror or str(error) or "the connection was closed"
    return os.strerror(error.errno)


async def _trace_connected(session: aiohttp.ClientSession, context: SimpleNamespace, params: object) -> None:
    trace: Callable[[str, dict[str, Any]], Awaitable[None]] | None = context.trace_request_ctx
    if trace is not None:
        await trace(CONNECTED, {})


class _Connector(aiohttp.TCPConnector):
    async def connect(self, req: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as of the base
        """Before there is a connection nothing is sent, also if a proxy breaks off the request for a tunnel."""
        try:
            return await super().connect(req, *args, **kwargs)
        except (aiohttp.ClientConnectorError, aiohttp.ClientHttpProxyError):
            raise
        except aiohttp.ClientError as exc:
            has_ended = isinstance(exc, aiohttp.ClientConnectionError)
            problem = "it disconnected" if has_ended else "its reply is not valid HTTP"
            raise httpx.ProxyError(f"the proxy {req.proxy} opens no tunnel: {problem}") from exc


class _Resolver(AbstractResolver):
    """Looks names up on daemon threads, because a lookup cannot be cancelled and would delay the end of the process."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        def look_up(on_reply: Callable[[list[Any] | OSError], object]) -> None:
            try:
                on_reply(socket.getaddrinfo(host, port, family, socket.SOCK_STREAM))
            except OSError as exc:
                on_reply(exc)
            except UnicodeError:
                on_reply(OSError("the name is not valid"))

        def start(on_reply: Callable[[list[Any] | OSError], object]) -> None:
            thread = threading.Thread(target=look_up, args=(on_reply,), name="name lookup", daemon=True)
            try:
                thread.start()
            except RuntimeError as exc:
                on_reply(OSError(f"the name cannot be looked up: {exc}"))

        found = await wait_for_reply(start)
        if isinstance(found, OSError):
            raise found
        flags = socket.AI_NUMERICHOST
        return [
            ResolveResult(hostname=host, host=address[0], port=port, family=kind, proto=protocol, flags=flags)
            for kind, _, protocol, _, address in found
        ]

    async def close(self) -> None:
        pass


class _StrictHandler(ResponseHandler):
    # With aiohttp 3.14, the reader of a body waits forever after bytes that are not a valid chunk.
    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        super().set_exception(exc, *cause)
        body = self._payload
        if isinstance(exc, HttpProcessingError) and body is not None and body.exception() is None:
            body.set_exception(aiohttp.ClientError("the reply is malformed"))


@functools.cache
def _ssl_context() -> ssl.SSLContext:
    # Cached: reading the certificates is the slowest part of the first request.
    if file := os.environ.get("SSL_CERT_FILE"):
        try:
            return ssl.create_default_context(cafile=file)
        except OSError as exc:
            raise httpx.ConnectError(f"the certificates of SSL_CERT_FILE cannot be used: {exc.strerror}") from exc
    if folder := os.environ.get("SSL_CERT_DIR"):
        return ssl.create_default_context(capath=folder)
    return ssl.create_default_context(cafile=certifi.where())


# ---------------------------------------------------------------------------- one transport for each event loop

_lock = threading.Lock()
_Key: TypeAlias = tuple[float, bool]
_transports: dict[asyncio.AbstractEventLoop, dict[_Key, tuple[AiohttpTransport, AsyncGenerator[None]]]] = {}
"""The transports of each running event loop by their settings, and the generators that close them with the loop."""


async def _loop_transport(keepalive_s: float, *, is_traced: bool) -> AiohttpTransport:
    loop, key = asyncio.get_running_loop(), (keepalive_s, is_traced)
    if key not in _transports.get(loop, {}):
        transport = AiohttpTransport(keepalive_s, is_traced=is_traced)
        lifetime = _close_with_loop(loop, transport)
        await anext(lifetime)
        with _lock:
            # a loop may be closed without shutting down its generators
            for closed_loop in [other for other in _transports if other.is_closed()]:
                del _transports[closed_loop]
            _transports.setdefault(loop, {})[key] = transport, lifetime
    return _transports[loop][key][0]


async def _close_with_loop(loop: asyncio.AbstractEventLoop, transport: AiohttpTransport) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        with _lock:
            _transports.pop(loop, None)
        await transport.aclose()
