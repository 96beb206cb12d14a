"""Places and leases on environment servers: how many episodes a server holds, and which instance each episode uses.

A server with a fixed number of slots (8 in ``agentenv-sqlgym/agentenv_sqlgym/environment.py`` of AgentGym, 8000 for
WebShop) reissues the id of another instance when no slot is free, so two episodes would share an instance and mix up
their rewards. An episode therefore takes a place before it creates an instance, and leases the instance before it uses
it. All episodes of a driver share one ``PlaceTable``, those of its workers through their links.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from typing import Literal, Protocol, TypeAlias

import msgspec

from runner.util.thread_replies import wait_for_reply

InstanceId: TypeAlias = int | str
"""Id of an instance, from its server; or of a place, chosen by its owner and unique among its places everywhere."""
Granted: TypeAlias = Literal["place", "lease"]
OnReply: TypeAlias = Callable[[bool], object]


class Desk(Protocol):
    """Grants places and leases: ``PlaceTable`` in the process that plays a batch, a link to it in a worker.

    Thread-safe, callable on any event loop.
    """

    async def grant(self, name: Granted, server: str, instance: InstanceId) -> bool:
        """Wait for the place ``instance``, or lease an instance; return False if another episode leases it.

        What is granted after a cancellation must be released, too.
        """

    def release(self, name: Granted, server: str, instance: InstanceId) -> None:
        """End what was granted, or the wait for it; may run in a finalizer, when the thread may hold any lock."""


class InstanceRegistry:
    """Places and leases as episodes see them; thread-safe, callable on any event loop.

    Raises ``EnvironmentFault`` if the desk cannot answer.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._numbers = itertools.count()

    async def enter(self, server: str) -> int:
        """Wait for a place on a server and return its id; a cancelled wait takes none."""
        place, entered = next(self._numbers), False
        try:
            entered = await self._desk.grant("place", server, place)
        finally:
            if not entered:
                self.leave(server, place)
        return place

    async def lease(self, server: str, instance: InstanceId) -> bool:
        """Lease an instance; return False if another episode leases it."""
        request = asyncio.ensure_future(self._desk.grant("lease", server, instance))
        try:
            return await asyncio.shield(request)
        except asyncio.CancelledError:
            request.add_done_callback(partial(self._release_granted, server, instance))
            raise

    def leave(self, server: str, place: int, instance: InstanceId | None = None) -> None:
        """Callable in a finalizer, too."""
        if instance is not None:
            self._desk.release("lease", server, instance)
        self._desk.release("place", server, place)

    def _release_granted(self, server: str, instance: InstanceId, request: asyncio.Future[bool]) -> None:
        if not request.cancelled() and request.exception() is None and request.result():
            self._desk.release("lease", server, instance)


class _Server(msgspec.Struct):
    """State of one server; ``learned`` is the number of places that its replies showed, None before that."""

    places: set[tuple[Hashable, InstanceId]] = msgspec.field(default_factory=set)
    waiting: dict[tuple[Hashable, InstanceId], OnReply] = msgspec.field(default_factory=dict)
    leases: dict[InstanceId, Hashable] = msgspec.field(default_factory=dict)
    refused: set[InstanceId] = msgspec.field(default_factory=set)
    learned: int | None = None

    def lease(self, owner: Hashable, instance: InstanceId) -> bool:
        if instance not in self.leases:
            self.leases[instance] = owner
            self.refused.clear()
            return True
        if instance in self.refused:  # the server went through all its instances and none was free
            self.learned = len(self.leases)
        self.refused.add(instance)
        return False

    def release_lease(self, owner: Hashable, instance: InstanceId) -> None:
        if instance in self.leases and self.leases[instance] == owner:
            del self.leases[instance]
            self.refused.clear()

    def instances_of(self, owner: Hashable) -> list[InstanceId]:
        return [instance for instance, holder in self.leases.items() if holder == owner]

    def release_owner(self, owner: Hashable) -> None:
        self.places = {key for key in self.places if key[0] != owner}
        self.waiting = {key: on_reply for key, on_reply in self.waiting.items() if key[0] != owner}
        for instance in self.instances_of(owner):
            self.release_lease(owner, instance)


class PlaceTable:
    """The places and leases of one driver: those of this process, and of its workers by ``owner``.

    A server's number of places is declared, or learned: a server that returns the same leased instance again, without
    a lease or release in between, has as many places as there are leases. It is forgotten when the server is idle.

    Callbacks run on the thread that frees a place, which may be inside a finalizer: they must neither block nor raise.
    """

    def __init__(self) -> None:
        self._servers: dict[str, _Server] = {}
        self._declared: dict[str, float] = {}
        self._work: deque[Callable[[], object]] = deque()
        self._replies: list[Callable[[], object]] = []
        self._lock = threading.Lock()  # never held while foreign code runs

    async def grant(self, name: Granted, server: str, instance: InstanceId) -> bool:
        return await wait_for_reply(lambda on_reply: self.request(name, server, instance, on_reply))

    def request(
        self, name: Granted, server: str, instance: InstanceId, on_reply: OnReply, owner: Hashable = None
    ) -> None:
        """Pass ``on_reply`` at once whether an instance is leased, or True once a place is free.

        That may be after ``release``, which ends the wait.
        """

        def request() -> None:
            state = self._servers.setdefault(server, _Server())
            if name == "place":
                state.waiting[owner, instance] = on_reply
                self._grant(server)
            else:
                self._replies.append(partial(on_reply, state.lease(owner, instance)))

        self._run(request)

    def release(self, name: Granted, server: str, instance: InstanceId, owner: Hashable = None) -> None:
        def release() -> None:
            if (state := self._servers.get(server)) is None:
                return
            if name == "place":
                state.waiting.pop((owner, instance), None)
                state.places.discard((owner, instance))
                self._grant(server)
            else:
                state.release_lease(owner, instance)

        self._run(release)

    def declare(self, server: str, places: int | None) -> None:
        def declare() -> None:
            self._declared[server] = max(1, math.inf if places is None else places)
            self._grant(server)

        self._run(declare)

    def instances_of(self, owner: Hashable) -> dict[str, list[InstanceId]]:
        with self._lock:
            held = {server: state.instances_of(owner) for server, state in self._servers.items()}
        self._run()
        return {server: instances for server, instances in held.items() if instances}

    def release_owner(self, owner: Hashable) -> None:
        def release() -> None:
            for server, state in list(self._servers.items()):
                state.release_owner(owner)
                self._grant(server)

        self._run(release)

    def _grant(self, server: str) -> None:
        if (state := self._servers.get(server)) is None:
            return
        limit = min(self._declared.get(server, math.inf), math.inf if state.learned is None else state.learned)
        while state.waiting and len(state.places) < limit:
            key = next(iter(state.waiting))
            self._replies.append(partial(state.waiting.pop(key), True))
            state.places.add(key)
        if not (state.places or state.waiting or state.leases):
            del self._servers[server]

    def _run(self, *work: Callable[[], object]) -> None:
        """Do what changes the table, then make the replies.

        A finalizer may interrupt the thread that holds the lock; then that thread does the finalizer's work after its
        own, as it does the work of other threads.
        """
        self._work.extend(work)
        while self._work and self._lock.acquire(blocking=False):
            try:
                while self._work:
                    self._work.popleft()()
                replies, self._replies = self._replies, []
            finally:
                self._lock.release()
            for reply in replies:
                reply()
