"""One instance on a server: the place where an episode is played, from its creation to its closing."""

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
from runner.envs.http.client import HttpConnection
from runner.envs.http.dialects import ClientDialect, fill_placeholders
from runner.envs.http.response import Payload, check_status
from runner.errors import EnvironmentFault


class InstanceLeases:
    """Instances by server and id; shared by all threads of the process."""

    def __init__(self) -> None:
        """Start with none in use."""
        self._held: set[tuple[str, int | str]] = set()
        self._guard = threading.RLock()  # garbage is collected anywhere, also while this thread takes one

    def take(self, server: str, instance: int | str) -> bool:
        """Whether the instance was free; it is taken now."""
        with self._guard:
            free = (server, instance) not in self._held
            self._held.add((server, instance))
            return free

    def release(self, server: str, instance: int | str) -> None:
        """Let others have it."""
        with self._guard:
            self._held.discard((server, instance))


LEASES = InstanceLeases()


logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 2.0
"""Seconds that the closing may take."""
_PLACES = 32
"""How many instances are asked for where those that a server gives out are in use."""
_CANNOT_CLOSE = (404, 405)
"""What servers answer that have no path for it, as most of AgentGym's."""


class RemoteInstance:
    """An instance of one dialect on one server.

    Attributes:
        id: what the server calls it; None before it is opened and after it is closed.
    """

    def __init__(self, dialect: ClientDialect, address: ServerAddress) -> None:
        """Prepare the connection; nothing is sent yet.

        Raises:
            ConfigError: for an address that no request can be sent to.
        """
        self.id: int | str | None = None
        self._dialect = dialect
        self._server = address.base
        self._connection = HttpConnection(dialect.name, address)
        self._release: Callable[[], object]
        """Gives the lease back; called by itself when nobody has this instance any more, and only once."""

    async def open(self, task: int) -> None:
        """Have the server make the instance.

        Raises:
            EnvironmentFault: where it cannot be reached, answers nonsense, or gives out only what is in use here.
        """
        body = fill_placeholders(self._dialect.create_body, task=task, env=self._dialect.name)
        for _ in range(_PLACES):
            payload = await self._post(self._dialect.create, body)
            given = payload.id(self._dialect.created_at)
            if LEASES.take(self._server, given):
                self.id = given
                self._release = weakref.finalize(self, LEASES.release, self._server, given)
                return
        raise payload.fault("gave out an instance that is in use", "Play fewer episodes at the same time")

    async def reset(self, task: int) -> Payload:
        """Start a task; raises as ``open`` does."""
        body = fill_placeholders(self._dialect.reset_body, task=task, env=self._dialect.name)
        return await self._post(self._dialect.reset, self._addressed(body))

    def request_size(self, text: str) -> int:
        """How many bytes the request for a step with ``text`` has."""
        return len(_encoded(self._addressed({"action": text})))

    async def step(self, text: str) -> Payload:
        """Take one action; raises as ``open`` does."""
        return await self._post("/step", self._addressed({"action": text}))

    async def look(self, path: str) -> Payload:
        """What a path shows of the instance; raises as ``open`` does."""
        query = urlencode({self._dialect.id_field: self.id})
        return await self._connection.ask(f"{self._dialect.prefix}{path}?{query}", None)

    async def close(self) -> None:
        """Have the server forget the instance, if it can, within ``CLOSE_TIMEOUT_S`` seconds; a failure is only logged."""
        if self.id is None:
            return
        given, body, release = self.id, _encoded(self._addressed({})), self._release
        self.id = None
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                request = self._connection.request(self._dialect.prefix + "/close", body)
                reply = await self._connection.send(request)
                if reply.status not in _CANNOT_CLOSE:
                    check_status(request, reply)
        except TimeoutError:
            logger.warning("%s did not close the instance %s within %g s", self._server, given, CLOSE_TIMEOUT_S)
        except EnvironmentFault as exc:
            logger.warning("An instance was not closed: %s", exc)
        finally:
            release()

    async def disconnect(self) -> None:
        """Give the connections back; a later request takes new ones."""
        await self._connection.close()

    async def _post(self, path: str, body: Mapping[str, Any]) -> Payload:
        return await self._connection.ask(self._dialect.prefix + path, _encoded(body))

    def _addressed(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {self._dialect.id_field: self.id, **body}


def _encoded(body: Mapping[str, Any]) -> bytes:
    """JSON; half of a surrogate pair, which no server would take, becomes a question mark."""
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
