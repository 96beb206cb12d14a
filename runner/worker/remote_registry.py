"""Places and leases of the episodes in a worker process, granted by the driver's ``LocalRegistry``."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from functools import partial

from runner.envs.http.places import InstanceId
from runner.errors import EnvironmentFault
from runner.worker.channel import DriverLink
from runner.worker.frames import Release, Reply


class RemoteRegistry:
    """An ``InstanceRegistry`` in a worker: each request is a frame to the driver, which knows all episodes.

    The driver declares the number of places itself. The id of a place is the ``instance`` of its frames, so that a
    ``Release`` of a place that was not granted yet ends the wait for it.
    """

    def __init__(self, link: DriverLink) -> None:
        self._link = link
        self._numbers = itertools.count()
        self._collected: deque[tuple[str, int, InstanceId]] = deque()

    async def enter(self, server: str, places: int | None) -> int:
        """Raises ``EnvironmentFault`` if the driver refuses the request."""
        self._leave_collected()
        place, entered = next(self._numbers), False
        try:
            reply = await self._link.request("place", server, place)
            _check(reply)
            entered = True
        finally:
            if not entered:
                self.leave(server, place)
        return place

    async def lease(self, server: str, instance: InstanceId) -> bool:
        """Raises ``EnvironmentFault`` if the driver cannot answer."""
        # The driver may grant a request after the episode was cancelled; then the lease must end.
        request = asyncio.ensure_future(self._link.request("lease", server, instance))
        try:
            reply = await asyncio.shield(request)
        except asyncio.CancelledError:
            request.add_done_callback(partial(self._release_granted, server, instance))
            raise
        return reply.granted if reply.error is None else _check(reply)

    def leave(self, server: str, place: int, instance: InstanceId | None = None) -> None:
        self._leave_collected()
        self._send_releases(server, place, instance)

    def collect(self, server: str, place: int, instance: InstanceId) -> None:
        """For finalizers: the place and its instance are sent with the next request or release."""
        self._collected.append((server, place, instance))

    def _leave_collected(self) -> None:
        while self._collected:
            self._send_releases(*self._collected.popleft())

    def _send_releases(self, server: str, place: int, instance: InstanceId | None) -> None:
        if instance is not None:
            self._link.send(Release(name="lease", target=server, instance=instance))
        self._link.send(Release(name="place", target=server, instance=place))

    def _release_granted(self, server: str, instance: InstanceId, request: asyncio.Future[Reply]) -> None:
        if not request.cancelled() and request.exception() is None and request.result().granted:
            self._link.send(Release(name="lease", target=server, instance=instance))


def _check(reply: Reply) -> bool:
    if reply.error is not None or not reply.granted:
        raise EnvironmentFault(f"The driver granted no place on the server: {reply.error or 'request refused'}")
    return True
