"""Environment instances on a server, from creation to closing: ``RemoteInstance``."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any
from urllib.parse import urlencode

from runner.envs.http.address import ServerAddress
from runner.envs.http.client import DEFAULT_TIMINGS, HttpConnection, HttpTimings
from runner.envs.http.dialects import ClientDialect, fill_placeholders
from runner.envs.http.places import InstanceRegistry, LocalRegistry
from runner.envs.http.response import Payload, check_status
from runner.errors import EnvironmentFault, ServerGone, catch_foreign, log_failure

logger = logging.getLogger(__name__)

_NO_CLOSE_STATUSES = (404, 405)
"""Statuses of servers without a path ``/close``: AgentGym's Maze, Wordle, ALFWorld, SQLGym and WebShop."""
LOCAL_REGISTRY = LocalRegistry()
"""Places and leases of all batches of this process."""
_registry: InstanceRegistry = LOCAL_REGISTRY


def use_registry(registry: InstanceRegistry) -> None:
    global _registry
    _registry = registry


def places_on(dialect: ClientDialect, address: ServerAddress) -> tuple[str, int | None]:
    """Return the key of a server in an ``InstanceRegistry`` and its number of places, None if that is unknown."""
    return address.base + dialect.prefix, dialect.places if address.places is None else address.places


def release_lost_owner(owner: Hashable, dialect: ClientDialect, address: ServerAddress) -> threading.Thread:
    """Close the instances of a lost worker on their server, then release its places and leases, on the returned thread.

    A server with a limit would reject other episodes if the instances stayed open. Failures are only logged.
    """
    instances = LOCAL_REGISTRY.instances_of(owner).get(places_on(dialect, address)[0], [])

    async def close(instance_id: int | str) -> None:
        instance = RemoteInstance(dialect, address)
        instance.id = instance_id
        await instance.close()

    async def close_all() -> None:
        await asyncio.gather(*map(close, instances))

    def run() -> None:
        with catch_foreign(log_failure(logger, "closing the instances of a lost worker")):
            if instances:
                asyncio.run(close_all())
        LOCAL_REGISTRY.release_owner(owner)

    thread = threading.Thread(target=run, name="lost worker", daemon=True)
    thread.start()
    return thread


class RemoteInstance:
    """One environment instance on a server; ``id`` is the server's id of it, None before ``open`` and after ``close``.

    The requests raise ``EnvironmentFault`` if the server cannot be reached or sends an invalid reply.
    """

    def __init__(self, dialect: ClientDialect, address: ServerAddress, timings: HttpTimings = DEFAULT_TIMINGS) -> None:
        """Raises ``ConfigError`` if the address is invalid; sends nothing yet."""
        self.id: int | str | None = None
        self._dialect = dialect
        self._server, self._places = places_on(dialect, address)
        self._connection = HttpConnection(dialect.name, address, timings)
        self._close_timeout_s = timings.close_timeout_s
        self._release: Callable[[], object] = _nothing
        """Gives back the place and the lease once; without this call, the garbage collection of this object does."""

    async def open(self, task: int) -> None:
        """Wait for a place on the server and create the instance there."""
        while self.id is None:
            registry = _registry
            place = await registry.enter(self._server, self._places)
            try:
                await self._create(task, registry, place)
            finally:
                if self.id is None:
                    registry.leave(self._server, place)

    async def _create(self, task: int, registry: InstanceRegistry, place: int) -> None:
        """Create an instance and lease it; if the server returns a leased one, ``id`` remains None."""
        body = fill_placeholders(self._dialect.create_body, task=task, env=self._dialect.name)
        payload = await self._post(self._dialect.create, body)
        instance_id = payload.id(self._dialect.created_at)
        if await registry.lease(self._server, instance_id):
            self.id = instance_id
            finalizer = weakref.finalize(self, registry.collect, self._server, place, instance_id)
            finalizer.atexit = False
            leave = partial(registry.leave, self._server, place, instance_id)
            self._release = lambda: finalizer.detach() and leave()

    async def reset(self, task: int) -> Payload:
        body = fill_placeholders(self._dialect.reset_body, task=task, env=self._dialect.name)
        return await self._post(self._dialect.reset, self._with_id(body))

    def request_size(self, text: str) -> int:
        return len(_encode_json(self._with_id({"action": text})))

    async def step(self, text: str) -> Payload:
        return await self._post("/step", self._with_id({"action": text}))

    async def get(self, path: str) -> Payload:
        query = urlencode({self._dialect.id_field: self.id})
        return await self._connection.fetch_json(f"{self._dialect.prefix}{path}?{query}", None)

    @property
    def unanswered(self) -> ServerGone | None:
        """The error for the latest request, if it was cancelled while its reply was overdue."""
        return self._connection.unanswered

    def abandon(self) -> None:
        """Forget the instance without closing it, because another episode uses it now."""
        self.id = None
        self._release()

    async def close(self) -> None:
        """Delete the instance on the server within ``HttpTimings.close_timeout_s``; a failure is only logged."""
        if self.id is None:
            return
        instance_id, body, release = self.id, _encode_json(self._with_id({})), self._release
        self.id = None
        try:
            async with asyncio.timeout(self._close_timeout_s):
                request = self._connection.request(self._dialect.prefix + "/close", body)
                response = await self._connection.send(request)
                if response.status not in _NO_CLOSE_STATUSES:
                    check_status(request, response)
        except TimeoutError:
            timeout_s = self._close_timeout_s
            logger.warning("%s did not close instance %s within %g s", self._server, instance_id, timeout_s)
        except EnvironmentFault as exc:
            logger.warning("Could not close an instance: %s", exc)
        finally:
            release()

    async def _post(self, path: str, body: Mapping[str, Any]) -> Payload:
        return await self._connection.fetch_json(self._dialect.prefix + path, _encode_json(body))

    def _with_id(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {self._dialect.id_field: self.id, **body}


def _nothing() -> None:
    pass


def _encode_json(body: Mapping[str, Any]) -> bytes:
    # "replace": a lone surrogate, which no server accepts, becomes a question mark
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
