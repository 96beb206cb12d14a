"""HTTP client of one environment's server: requests are limited in time and size, and a POST is sent at most once."""

from __future__ import annotations

import asyncio

import msgspec

from runner.envs.http.address import ServerAddress
from runner.envs.http.response import (
    CHECK_ADDRESS_ADVICE,
    CHECK_LOG_ADVICE,
    Payload,
    ServerRequest,
    ServerResponse,
    decode_response,
)
from runner.errors import ServerGone
from runner.util.display_text import one_line
from runner.util.http_client import HttpClient, loop_client

MAX_RESPONSE_BYTES = 8 << 20
"""Maximum size of a response body, in bytes."""
OVERDUE_AFTER_S = 1.0
"""Seconds after which a reply is overdue: a server that works answers within milliseconds."""


class HttpTimings(msgspec.Struct, frozen=True):
    """Delays and time limits that are the same for all servers.

    Attributes:
        connect_retry_delays_s: delay before each further attempt to connect. Only connecting is retried, since
            ``/step`` is not idempotent.
        keepalive_s: seconds that an idle connection stays open. Servers close idle connections after 2 to 5 s
            (uvicorn: 5 s), often while a model generates. A step sent on a connection that closes could not be
            retried, because the server may have executed it.
    """

    connect_retry_delays_s: tuple[float, ...] = (0.1, 0.4)
    close_timeout_s: float = 2.0
    keepalive_s: float = 1.0


DEFAULT_TIMINGS = HttpTimings()


class HttpConnection:
    """Sends requests of one environment to its server; belongs to one event loop at a time."""

    def __init__(self, env: str, address: ServerAddress, timings: HttpTimings = DEFAULT_TIMINGS) -> None:
        """Raises ``ConfigError`` if the address is invalid; nothing is sent yet."""
        self._env = env
        self._base = address.base
        self._timeout_s = address.timeout_s
        self._timings = timings
        self._headers = {"accept": "application/json", "content-type": "application/json"}
        if authorization := address.authorization:
            self._headers["authorization"] = authorization
        self.unanswered: ServerGone | None = None
        """The error for the latest request, if it was cancelled while its reply was overdue."""

    def request(self, path: str, body: bytes | None) -> ServerRequest:
        return ServerRequest(self._env, self._base + path, body)

    async def fetch_json(self, path: str, body: bytes | None) -> Payload:
        """Raises ``EnvironmentFault`` if the response is an error, no JSON, or exceeds the limit on size or time."""
        request = self.request(path, body)
        return Payload(request, decode_response(request, await self.send(request)))

    async def send(self, request: ServerRequest) -> ServerResponse:
        """Send a request and return the response, even one with an error status; only connecting is retried.

        Raises:
            ServerGone: if the server cannot be reached, drops the connection or does not reply in time.
            EnvironmentFault: if the server replies with something other than HTTP, or with too much.
        """
        import aiohttp

        started = asyncio.get_running_loop().time()
        self.unanswered = None
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._send_with_retries(request)
        except asyncio.CancelledError:
            if (waited_s := asyncio.get_running_loop().time() - started) > OVERDUE_AFTER_S:
                came_back = f"got no complete reply for {waited_s:.1f} s, until the episode's time limit"
                self.unanswered = request.gone(came_back, "The server hangs or is overloaded", timed_out=True)
            raise
        except TimeoutError:
            came_back = f"got no complete reply within {self._timeout_s:g} s"
            advice = "The server hangs or is overloaded: check its log, or raise timeout_sec in the profile"
            raise request.gone(came_back, advice, timed_out=True) from None
        except aiohttp.ClientConnectorError as exc:
            advice = "Start the server, or correct its port or base_url in the profile"
            raise request.gone(f"reached no server ({_describe(exc.os_error)})", advice) from None
        except aiohttp.InvalidURL as exc:
            raise request.fault(f"cannot be sent ({_describe(exc)})", "Correct its base_url in the profile") from None
        except (aiohttp.ClientError, OSError) as exc:
            advice = "It is not retried because the server may have executed it. " + CHECK_LOG_ADVICE
            error = request.gone if _is_dropped(exc) else request.fault
            raise error(f"got no complete reply: the connection broke ({_describe(exc)})", advice) from None

    async def _send_with_retries(self, request: ServerRequest) -> ServerResponse:
        import aiohttp

        for delay_s in self._timings.connect_retry_delays_s:
            try:
                return await self._exchange(request)
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(delay_s)
        return await self._exchange(request)

    async def _exchange(self, request: ServerRequest) -> ServerResponse:
        client = await loop_client(HttpClient, self._timings.keepalive_s, None)
        async with await client.send(request.method, request.url, request.body, self._headers) as response:
            if response.headers.get("content-encoding", "identity").lower() != "identity":
                raise request.fault("returned a compressed body, which was not requested", CHECK_ADDRESS_ADVICE)
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > MAX_RESPONSE_BYTES:
                    raise request.fault(f"returned more than {MAX_RESPONSE_BYTES >> 20} MiB", CHECK_ADDRESS_ADVICE)
            return ServerResponse(response.status, response.headers.get("content-type", ""), bytes(body))


def _is_dropped(exc: Exception) -> bool:
    """Return whether the connection ended before the reply was complete; False if the reply is not HTTP."""
    import aiohttp

    return isinstance(exc, aiohttp.ServerConnectionError | aiohttp.ClientPayloadError | OSError)


def _describe(exc: Exception) -> str:
    import aiohttp

    if isinstance(exc, aiohttp.ServerDisconnectedError):
        return "the server disconnected"
    if isinstance(exc, aiohttp.ClientPayloadError):
        return "the reply is incomplete"
    text = exc.message if isinstance(exc, aiohttp.ClientResponseError) else str(exc)
    return one_line(text or type(exc).__name__)
