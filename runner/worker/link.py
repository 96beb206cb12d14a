"""The link of a worker to its driver, as its parts see it: a socket, or the frames of a Ray actor."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from abc import ABC, abstractmethod
from typing import Literal, TypeAlias

from runner.worker.frames import Reply, Request, WorkerFrame

RequestName: TypeAlias = Literal["place", "lease", "enter"]


class DriverLink(ABC):
    """Sends frames to the driver and requests from it what exists once per batch; thread-safe.

    The owner of the link reads the frames of the driver, and passes replies to ``resolve``. A caller whose request is
    cancelled must send a ``Release`` itself, because the driver may grant it later.
    """

    def __init__(self) -> None:
        self._ids = itertools.count(1).__next__  # atomic
        self._waiting: dict[int, asyncio.Future[Reply]] = {}

    @abstractmethod
    def send(self, frame: WorkerFrame) -> None:
        """Send a frame; blocks while the driver reads too slowly."""

    async def request(self, name: RequestName, target: str, instance: int | str | None = None) -> Reply:
        """Callable on any event loop."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        request = Request(id=self._ids(), name=name, target=target, instance=instance)
        self._waiting[request.id] = future
        try:
            self.send(request)
            return await future
        finally:
            self._waiting.pop(request.id, None)

    def resolve(self, reply: Reply) -> None:
        """Pass a reply to its request on the request's event loop; a reply without a request is ignored."""
        future = self._waiting.get(reply.id)
        if future is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                future.get_loop().call_soon_threadsafe(_set_reply, future, reply)


def _set_reply(future: asyncio.Future[Reply], reply: Reply) -> None:
    if not future.done():
        future.set_result(reply)
