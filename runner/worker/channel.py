"""The channel between a driver and a worker process, and that between a driver and its fork server."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import select
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from runner.util.framing import COPIED_BYTES, framed, send_frame
from runner.worker.frames import (
    Decided,
    Ended,
    Hello,
    Reply,
    Request,
    Reset,
    Started,
    Stepped,
    Streamed,
    WorkerFrame,
    encode_frame,
)

RequestName: TypeAlias = Literal["place", "lease", "enter"]
StartMode: TypeAlias = Literal["fork", "spawn"]

_CAN_WAIT = (Started, Reset, Stepped, Streamed, Decided, Ended)
"""Frames that need no action of the driver: it may read them later, together with others."""


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


class SocketLink(DriverLink):
    """The link of a worker process; thread-safe. ``on_broken``, called when the driver is gone, must not return."""

    def __init__(self, sock: socket.socket, on_broken: Callable[[], object]) -> None:
        super().__init__()
        self._sock = sock
        self._on_broken = on_broken
        self._lock = threading.Lock()
        self._poll = select.poll()
        self._poll.register(sock, select.POLLOUT)
        self._bell: int | None = None
        self._has_stepped = False

    def greet(self, hello: Hello) -> None:
        """Send the first frame, and with it the end of a pipe, the bell, that is readable when a frame is urgent."""
        theirs, self._bell = os.pipe()
        for descriptor in (theirs, self._bell):
            os.set_blocking(descriptor, False)
        try:
            socket.send_fds(self._sock, [framed(encode_frame(hello))], [theirs])
        except OSError:
            self._on_broken()
        finally:
            os.close(theirs)

    def send(self, frame: WorkerFrame) -> None:
        """Send a frame; blocks while the driver reads too slowly, except that streamed tokens are then dropped.

        Raises ``FrameTooLarge``, or ``ValueError`` or ``TypeError`` if MessagePack cannot hold a value of the frame.
        """
        data = encode_frame(frame)
        can_drop = isinstance(frame, Streamed)
        if not self._lock.acquire(blocking=not can_drop):
            return
        try:
            is_full = not self._poll.poll(0)
            if is_full and can_drop:
                return
            if is_full or len(data) > COPIED_BYTES:
                self._ring()
            send_frame(self._sock, data)
            is_first_step = self._is_first_step(frame)
            if is_first_step or not isinstance(frame, _CAN_WAIT):
                self._ring()
            if is_first_step:
                os.sched_yield()  # the driver shows the step first if there are too few CPUs for both
        except OSError:
            self._on_broken()
        finally:
            self._lock.release()

    def _is_first_step(self, frame: WorkerFrame) -> bool:
        """Until the first step of the worker, a new batch shows nothing."""
        is_first = isinstance(frame, Stepped) and not self._has_stepped
        self._has_stepped = self._has_stepped or is_first
        return is_first

    def _ring(self) -> None:
        if self._bell is not None:
            with contextlib.suppress(OSError):  # it is full of rings, or the driver is gone
                os.write(self._bell, b"\0")


class StartWorker(msgspec.Struct, frozen=True):
    """Request of a driver to its fork server, with the descriptors of the worker's channel and of its log.

    ``path`` is its ``sys.path``.
    """

    name: str
    environ: list[tuple[bytes, bytes]]
    folder: bytes
    path: list[bytes]
