"""Instances of environments on servers: requests are limited in time and size, and a POST is sent at most once."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Any
from urllib.parse import urlencode

import httpx
import msgspec

from runner.envs.http.dialects import ClientDialect
from runner.envs.http.places import Desk, InstanceRegistry, PlaceTable
from runner.envs.http.response import (
    CHECK_ADDRESS_ADVICE,
    CHECK_LOG_ADVICE,
    Payload,
    ServerRequest,
    ServerResponse,
    check_status,
    decode_response,
)
from runner.envs.http.server import ServerAddress
from runner.errors import EnvironmentFault, ServerGone, catch_foreign, log_failure
from runner.util.display_text import one_line
from runner.util.http import UnusableBody, read_body, send_request

logger = logging.getLogger(__name__)

MAX_RESPONSE_BYTES = 8 << 20
OVERDUE_AFTER_S = 1.0
"""Seconds after which a reply is overdue: a server that works answers within milliseconds."""
PLACES = PlaceTable()
"""Places and leases of all batches of this process."""
_registry = InstanceRegistry(PLACES)
_NO_CLOSE_STATUSES = (404, 405)
"""Statuses of servers without a path ``/close``: AgentGym's Maze, Wordle, ALFWorld, SQLGym and WebShop."""


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


def use_desk(desk: Desk) -> None:
    """Let another process grant places and leases to the episodes of this one."""
    global _registry
    _registry = InstanceRegistry(desk)


def places_on(dialect: ClientDialect, address: ServerAddress) -> tuple[str, int | None]:
    """Return the key of a server in a ``PlaceTable`` and its number of places, None if that is unknown."""
    return address.base + dialect.prefix, dialect.places if address.places is None else address.places


def release_lost_owner(owner: Hashable, dialect: ClientDialect, address: ServerAddress) -> threading.Thread:
    """Close a lost worker's instances, which count against a limit, then release its places and leases, on a thread."""
    instances = PLACES.instances_of(owner).get(places_on(dialect, address)[0], [])

    async def close_all() -> None:
        await asyncio.gather(*(RemoteInstance(dialect, address, id=each).close() for each in instances))

    def run() -> None:
        with catch_foreign(log_failure(logger, "closing the instances of a lost worker")):
            if instances:
                asyncio.run(close_all())
        PLACES.release_owner(owner)

    thread = threading.Thread(target=run, name="lost worker", daemon=True)
    thread.start()
    return thread


class RemoteInstance:
    """One environment instance on a server; ``id`` is the server's id of it, None before ``open`` and after ``close``.

    Belongs to one event loop at a time. An invalid address raises ``ConfigError`` at once. The requests raise
    ``EnvironmentFault`` if the server cannot be reached or sends an error, no JSON, or too much; only connecting is
    retried.
    """

    def __init__(
        self,
        dialect: ClientDialect,
        address: ServerAddress,
        timings: HttpTimings = DEFAULT_TIMINGS,
        id: int | str | None = None,
    ) -> None:
        self.id = id
        self.unanswered: ServerGone | None = None
        """The error for the latest request, if it was cancelled while its reply was overdue."""
        self._dialect = dialect
        self._server, self._places = places_on(dialect, address)
        self._timeout_s = address.timeout_s
        self._timings = timings
        self._headers = {"Accept": "application/json"} | address.login
        self._release: Callable[[], object] = lambda: None
        """Gives back the place and the lease once; without this call, the garbage collection of this object does."""

    async def open(self, task: int) -> None:
        while self.id is None:
            registry = _registry
            PLACES.declare(self._server, self._places)  # in a worker without effect; its driver declares them, too
            place = await registry.enter(self._server)
            try:
                await self._create(task, registry, place)
            finally:
                if self.id is None:
                    registry.leave(self._server, place)

    async def _create(self, task: int, registry: InstanceRegistry, place: int) -> None:
        """Create an instance and lease it; if the server returns a leased one, ``id`` remains None."""
        payload = await self._fetch(self._dialect.create, self._dialect.body(self._dialect.create_body, task))
        instance_id = payload.id(self._dialect.created_at)
        if await registry.lease(self._server, instance_id):
            self.id = instance_id
            self._release = finalizer = weakref.finalize(self, registry.leave, self._server, place, instance_id)
            finalizer.atexit = False

    async def reset(self, task: int) -> Payload:
        body = self._with_id(self._dialect.body(self._dialect.reset_body, task))
        return await self._fetch(self._dialect.reset, body)

    def request_size(self, text: str) -> int:
        return len(_encode_json(self._with_id({"action": text})))

    async def step(self, text: str) -> Payload:
        return await self._fetch("/step", self._with_id({"action": text}))

    async def get(self, path: str) -> Payload:
        return await self._fetch(f"{path}?{urlencode({self._dialect.id_field: self.id})}")

    def abandon(self) -> None:
        """Forget the instance without closing it, because another episode uses it now."""
        self.id = None
        self._release()

    async def close(self) -> None:
        """Delete the instance on the server within ``HttpTimings.close_timeout_s``; a failure is only logged."""
        if self.id is None:
            return
        request, timeout_s = self._request("/close", self._with_id({})), self._timings.close_timeout_s
        instance_id, self.id = self.id, None
        release = self._release
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._send(request)
            if response.status not in _NO_CLOSE_STATUSES:
                check_status(request, response)
        except TimeoutError:
            logger.warning("%s did not close instance %s within %g s", self._server, instance_id, timeout_s)
        except EnvironmentFault as exc:
            logger.warning("Could not close an instance: %s", exc)
        finally:
            release()

    def _with_id(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {self._dialect.id_field: self.id, **body}

    def _request(self, path: str, body: Mapping[str, Any] | None) -> ServerRequest:
        content = None if body is None else _encode_json(body)
        return ServerRequest(self._dialect.name, self._server + path, content)

    async def _fetch(self, path: str, body: Mapping[str, Any] | None = None) -> Payload:
        request = self._request(path, body)
        return Payload(request, decode_response(request, await self._send(request)))

    async def _send(self, request: ServerRequest) -> ServerResponse:
        """Return the response, even one with an error status.

        Raises:
            ServerGone: if the server cannot be reached, drops the connection or does not reply in time.
            EnvironmentFault: if the server replies with something other than HTTP, or with too much.
        """
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
        except (httpx.ConnectError, httpx.ProxyError) as exc:
            advice = "Start the server, or correct its port or base_url in the profile"
            raise request.gone(f"reached no server ({one_line(str(exc))})", advice) from None
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError) as exc:
            advice = "Correct its base_url in the profile"
            raise request.fault(f"cannot be sent ({one_line(str(exc))})", advice) from None
        except UnusableBody as exc:
            raise request.fault(f"returned a body that {one_line(str(exc))}", CHECK_ADDRESS_ADVICE) from None
        except httpx.TransportError as exc:
            advice = "It is not retried because the server may have executed it. " + CHECK_LOG_ADVICE
            error = request.fault if isinstance(exc, httpx.RemoteProtocolError) else request.gone
            raise error(f"got no complete reply: the connection broke ({one_line(str(exc))})", advice) from None

    async def _send_with_retries(self, request: ServerRequest) -> ServerResponse:
        for delay_s in self._timings.connect_retry_delays_s:
            try:
                return await self._exchange(request)
            except (httpx.ConnectError, httpx.ProxyError):
                await asyncio.sleep(delay_s)
        return await self._exchange(request)

    async def _exchange(self, request: ServerRequest) -> ServerResponse:
        keepalive_s = self._timings.keepalive_s
        async with send_request(
            request.method, request.url, request.body, self._headers, keepalive_s=keepalive_s, connect_timeout_s=None
        ) as response:
            body = await read_body(response, MAX_RESPONSE_BYTES)
            return ServerResponse(response.status_code, response.headers.get("content-type", ""), body)


def _encode_json(body: Mapping[str, Any]) -> bytes:
    # "replace": a lone surrogate, which no server accepts, becomes a question mark
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
