"""Environment instances on a server, from creation to closing.

``RemoteInstance`` sends the requests of one instance. ``InstanceLeases`` records the instances that this process uses:
a server with a fixed number of slots (8 in ``agentenv-sqlgym/agentenv_sqlgym/environment.py`` of AgentGym, 8000 for
WebShop) reissues the oldest id when no slot is free, so two episodes would share an instance and mix up their rewards.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

from runner.envs.http.address import ServerAddress
from runner.envs.http.client import DEFAULT_TIMINGS, HttpConnection, HttpTimings
from runner.envs.http.dialects import ClientDialect, fill_placeholders
from runner.envs.http.response import Payload, check_status
from runner.errors import EnvironmentFault, ServerGone

logger = logging.getLogger(__name__)

_MAX_CREATE_ATTEMPTS = 32
"""Attempts to create an instance while the server returns ids that are in use."""
_NO_CLOSE_STATUSES = (404, 405)
"""Statuses of servers without a path ``/close``: AgentGym's Maze, Wordle, ALFWorld, SQLGym and WebShop."""


class InstanceLeases:
    """Thread-safe set of the instances in use, by server and id."""

    def __init__(self) -> None:
        """Create an empty set."""
        self._leased: set[tuple[str, int | str]] = set()
        self._lock = threading.RLock()  # re-entrant: a finalizer may call release while this thread is in acquire

    def acquire(self, server: str, instance: int | str) -> bool:
        """Lease an instance; return False if another episode already leases it."""
        with self._lock:
            is_free = (server, instance) not in self._leased
            self._leased.add((server, instance))
            return is_free

    def release(self, server: str, instance: int | str) -> None:
        """End the lease of an instance."""
        with self._lock:
            self._leased.discard((server, instance))


LEASES = InstanceLeases()


class RemoteInstance:
    """One environment instance on a server.

    Attributes:
        id: the server's id of the instance; None before ``open`` and after ``close``.
    """

    def __init__(self, dialect: ClientDialect, address: ServerAddress, timings: HttpTimings = DEFAULT_TIMINGS) -> None:
        """Prepare the connection; ``open`` sends the first request.

        Raises:
            ConfigError: if the address is invalid.
        """
        self.id: int | str | None = None
        self._dialect = dialect
        self._server = address.base
        self._connection = HttpConnection(dialect.name, address, timings)
        self._close_timeout_s = timings.close_timeout_s
        self._release_lease: Callable[[], object]
        """Finalizer that ends the lease once, at the latest when this object is garbage-collected."""

    async def open(self, task: int) -> None:
        """Create the instance on the server.

        Raises:
            EnvironmentFault: if the server cannot be reached, sends an invalid reply, or returns only leased ids.
        """
        body = fill_placeholders(self._dialect.create_body, task=task, env=self._dialect.name)
        for _ in range(_MAX_CREATE_ATTEMPTS):
            payload = await self._post(self._dialect.create, body)
            instance_id = payload.id(self._dialect.created_at)
            if LEASES.acquire(self._server, instance_id):
                self.id = instance_id
                self._release_lease = weakref.finalize(self, LEASES.release, self._server, instance_id)
                return
        raise payload.fault("returned an instance that is already in use", "Run fewer episodes at the same time")

    async def reset(self, task: int) -> Payload:
        """Start a task in the instance and return the reply; raises the same errors as ``open``."""
        body = fill_placeholders(self._dialect.reset_body, task=task, env=self._dialect.name)
        return await self._post(self._dialect.reset, self._with_id(body))

    def request_size(self, text: str) -> int:
        """Return the size of the request body for a step with the action ``text``, in bytes."""
        return len(_encode_json(self._with_id({"action": text})))

    async def step(self, text: str) -> Payload:
        """Send one action and return the reply; raises the same errors as ``open``."""
        return await self._post("/step", self._with_id({"action": text}))

    async def get(self, path: str) -> Payload:
        """Send a GET request for this instance and return the reply; raises the same errors as ``open``."""
        query = urlencode({self._dialect.id_field: self.id})
        return await self._connection.fetch_json(f"{self._dialect.prefix}{path}?{query}", None)

    @property
    def unanswered(self) -> ServerGone | None:
        """The error for the latest request, if it was cancelled while its reply was overdue."""
        return self._connection.unanswered

    async def close(self) -> None:
        """Delete the instance on the server within ``HttpTimings.close_timeout_s``; a failure is only logged."""
        if self.id is None:
            return
        instance_id, body, release_lease = self.id, _encode_json(self._with_id({})), self._release_lease
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
            release_lease()

    async def disconnect(self) -> None:
        """Release the shared HTTP client; a later request acquires it again."""
        await self._connection.close()

    async def _post(self, path: str, body: Mapping[str, Any]) -> Payload:
        return await self._connection.fetch_json(self._dialect.prefix + path, _encode_json(body))

    def _with_id(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {self._dialect.id_field: self.id, **body}


def _encode_json(body: Mapping[str, Any]) -> bytes:
    # "replace": a lone surrogate, which no server accepts, becomes a question mark
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
