"""Sends requests to an environment's server: everything bounded, nothing sent twice."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from runner.envs.http.address import ServerAddress
from runner.envs.http.response import CHECK_ADDRESS_ADVICE, CHECK_LOG_ADVICE, Payload, ServerResponse, ServerRequest, decode_response
from runner.util.text import one_line

if TYPE_CHECKING:
    import httpx

MAX_RESPONSE_BYTES = 8 << 20
"""Bytes of a reply's body; of a larger one no more is read."""
CONNECT_RETRY_DELAYS_S = (0.1, 0.4)
"""Seconds before each further try to connect."""


class HttpConnection:
    """One environment's way to its server; used by one event loop at a time."""

    def __init__(self, env: str, address: ServerAddress) -> None:
        """Keep the address; nothing is sent yet.

        Raises:
            ConfigError: for an address that no request can be sent to.
        """
        self._env = env
        self._base = address.base
        self._timeout_s = address.timeout_s
        self._headers = {
            "accept": "application/json",
            "accept-encoding": "identity",
            "content-type": "application/json",
            "user-agent": "agentgym-console",
        }
        if authorization := address.authorization:
            self._headers["authorization"] = authorization
        self._client: httpx.AsyncClient | None = None

    def request(self, path: str, body: bytes | None) -> ServerRequest:
        """A request for ``path`` of the server with a JSON ``body``, or with none."""
        return ServerRequest(self._env, self._base + path, body)

    async def ask(self, path: str, body: bytes | None) -> Payload:
        """What the server answers to a request.

        Raises:
            EnvironmentFault: where that is an error, no JSON, too much or too late.
        """
        request = self.request(path, body)
        return Payload(request, decode_response(request, await self.send(request)))

    async def send(self, request: ServerRequest) -> ServerResponse:
        """What a server answers, whatever its status; only the connecting is tried again.

        Raises:
            EnvironmentFault: where nothing whole came back in time.
        """
        import httpx

        from runner.envs.http import pool

        if self._client is None:
            self._client = pool.borrow()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._persistently(self._client, request)
        except TimeoutError:
            came_back = f"got no complete reply within {self._timeout_s:g} s"
            advice = "The server hangs or is overloaded: see its log, or raise timeout_sec in the profile"
            raise request.fault(came_back, advice) from None
        except httpx.ConnectError as exc:
            advice = "Start the server, or correct its port or base_url in the profile"
            raise request.fault(f"reached no server ({_cause(exc)})", advice) from None
        except httpx.InvalidURL as exc:
            raise request.fault(f"cannot be sent ({_cause(exc)})", "Correct its base_url in the profile") from None
        except httpx.HTTPError as exc:
            advice = "It is not sent again, as it may have been carried out. " + CHECK_LOG_ADVICE
            raise request.fault(f"got no complete reply: the connection broke ({_cause(exc)})", advice) from None

    async def close(self) -> None:
        """Give the connections back; a later request takes new ones."""
        from runner.envs.http import pool

        if self._client is not None:
            self._client = None
            await pool.give_back()

    async def _persistently(self, client: httpx.AsyncClient, request: ServerRequest) -> ServerResponse:
        import httpx

        for pause_s in CONNECT_RETRY_DELAYS_S:
            try:
                return await self._exchange(client, request)
            except httpx.ConnectError:
                await asyncio.sleep(pause_s)
        return await self._exchange(client, request)

    async def _exchange(self, client: httpx.AsyncClient, request: ServerRequest) -> ServerResponse:
        async with client.stream(request.method, request.url, content=request.body, headers=self._headers) as response:
            if response.headers.get("content-encoding", "identity").lower() != "identity":
                raise request.fault("was answered with a compressed body, which was not asked for", CHECK_ADDRESS_ADVICE)
            body = bytearray()
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > MAX_RESPONSE_BYTES:
                    raise request.fault(f"was answered with more than {MAX_RESPONSE_BYTES >> 20} MiB", CHECK_ADDRESS_ADVICE)
            return ServerResponse(response.status_code, response.headers.get("content-type", ""), bytes(body))


def _cause(exc: Exception) -> str:
    return one_line(str(exc) or type(exc).__name__)
