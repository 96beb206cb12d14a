"""Places and leases on environment servers: how many episodes a server holds, and which instance each episode uses.

A server with a fixed number of slots (8 in ``agentenv-sqlgym/agentenv_sqlgym/environment.py`` of AgentGym, 8000 for
WebShop) reissues the id of another instance when no slot is free, so two episodes would share an instance and mix up
their rewards. An episode therefore takes a place before it creates an instance, and leases the instance before it uses
it. All episodes of a driver share one ``PlaceTable``, those of its workers through their links.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Literal, Protocol, TypeAlias

import msgspec

InstanceId: TypeAlias = int | str
Granted: TypeAlias = Literal["place", "lease"]
Place: TypeAlias = int | str | None
"""Id of a place, chosen by its owner; unique among the owner's places on all servers."""


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
            await self._desk.grant("place", server, place)
            entered = True
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

    places: set[tuple[Hashable, Place]] = msgspec.field(default_factory=set)
    waiting: dict[tuple[Hashable, Place], Callable[[], object]] = msgspec.field(default_factory=dict)
    leases: dict[InstanceId, Hashable] = msgspec.field(default_factory=dict)
    refused: set[InstanceId] = msgspec.field(default_factory=set)
    learned: int | None = None

    @property
    def in_use(self) -> bool:
        return bool(self.places or self.waiting or self.leases)

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
        self.waiting = {key: on_granted for key, on_granted in self.waiting.items() if key[0] != owner}
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
        self._declared: dict[str, int] = {}
        self._releases: deque[Callable[[], object]] = deque()
        self._granted: list[Callable[[], object]] = []
        self._lock = threading.Lock()  # never held while foreign code runs

    async def grant(self, name: Granted, server: str, instance: InstanceId) -> bool:
        if name == "lease":
            return self.request_lease(None, server, instance)
        loop = asyncio.get_running_loop()
        granted: asyncio.Future[None] = loop.create_future()
        self.request_place(None, server, instance, partial(_set_granted, loop, granted))
        await granted
        return True

    def release(self, name: Granted, server: str, instance: InstanceId) -> None:
        (self.release_lease if name == "lease" else self.release_place)(None, server, instance)

    def declare(self, server: str, places: int | None) -> None:
        with self._locked():
            if places is None:
                self._declared.pop(server, None)
            else:
                self._declared[server] = max(1, places)
            self._grant(server)

    def request_place(self, owner: Hashable, server: str, place: Place, on_granted: Callable[[], object]) -> None:
        """Call ``on_granted`` once a place is free, perhaps still after ``release_place``, which ends the wait."""
        with self._locked():
            self._servers.setdefault(server, _Server()).waiting[owner, place] = on_granted
            self._grant(server)

    def request_lease(self, owner: Hashable, server: str, instance: InstanceId) -> bool:
        with self._locked():
            return self._servers.setdefault(server, _Server()).lease(owner, instance)

    def release_place(self, owner: Hashable, server: str, place: Place) -> None:
        def release() -> None:
            if (state := self._servers.get(server)) is not None:
                state.waiting.pop((owner, place), None)
                state.places.discard((owner, place))
                self._grant(server)

        self._release(release)

    def release_lease(self, owner: Hashable, server: str, instance: InstanceId) -> None:
        def release() -> None:
            if (state := self._servers.get(server)) is not None:
                state.release_lease(owner, instance)

        self._release(release)

    def instances_of(self, owner: Hashable) -> dict[str, list[InstanceId]]:
        with self._locked():
            held = {server: state.instances_of(owner) for server, state in self._servers.items()}
        return {server: instances for server, instances in held.items() if instances}

    def release_owner(self, owner: Hashable) -> None:
        with self._locked():
            for server, state in list(self._servers.items()):
                state.release_owner(owner)
                self._grant(server)

    def _grant(self, server: str) -> None:
        if (state := self._servers.get(server)) is None:
            return
        limit = min(self._declared.get(server, math.inf), math.inf if state.learned is None else state.learned)
        while state.waiting and len(state.places) < limit:
            key = next(iter(state.waiting))
            self._granted.append(state.waiting.pop(key))
            state.places.add(key)
        if not state.in_use:
            del self._servers[server]

    def _release(self, release: Callable[[], object]) -> None:
        # A finalizer may interrupt a thread that holds the lock; then that thread runs the release after its own work.
        self._releases.append(release)
        self._run_releases()

    def _run_releases(self) -> None:
        while self._releases and self._lock.acquire(blocking=False):
            try:
                while self._releases:
                    self._releases.popleft()()
                granted, self._granted = self._granted, []
            finally:
                self._lock.release()
            for on_granted in granted:
                on_granted()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock, then run waiting releases and the callbacks of granted requests."""
        try:
            with self._lock:
                try:
                    yield
                finally:
                    granted, self._granted = self._granted, []
            for on_granted in granted:
                on_granted()
        finally:
            self._run_releases()


def _set_granted(loop: asyncio.AbstractEventLoop, granted: asyncio.Future[None]) -> None:
    def set_result() -> None:
        if not granted.done():
            granted.set_result(None)

    with contextlib.suppress(RuntimeError):  # the loop was closed, so the wait has ended
        loop.call_soon_threadsafe(set_result)
