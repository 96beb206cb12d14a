"""The way from a worker to its driver: a queue of frames that is emptied in bursts, and requests with their replies."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

import msgspec

from runner.envs.http.places import InstanceId
from runner.errors import EnvironmentFault
from runner.store.parts import Decided, Ended, Free, Reset, Step, Tokens
from runner.types import TimeStep
from runner.util.framing import framed
from runner.util.safe_values import encode
from runner.worker.frames import Release, Reply, Request, RequestName, WorkerFrame, encode_frame

MAX_QUEUED_BYTES = 4 << 20
"""Size of the queue above which episodes wait before their next step, and streamed tokens are dropped."""
LINGER_S = 0.025
"""Seconds that a frame which is not urgent waits for others, since each wake-up of the driver costs CPU.

What waits is in the journal already.
"""

_T = TypeVar("_T")

_CAN_WAIT = (Reset, Step, Tokens, Decided, Ended)
"""Frames that need no action of the driver; at a start, it begins to measure the time of the episode."""


class Link(ABC):
    """The way of a worker's frames to its driver; thread-safe."""

    @abstractmethod
    def send(self, frame: WorkerFrame) -> None:
        """Send a frame without blocking."""

    async def wait_for_room(self) -> None:  # noqa: B027 - by default nothing is queued
        """Wait while too much is queued for the driver; callable on any event loop."""


class DriverLink(Link):
    """The link to a driver in another process, from which it requests what exists once per batch; thread-safe.

    The owner of the link reads the frames of the driver, and passes replies to ``resolve``. A caller whose request is
    cancelled must ``release`` it, because the driver may grant it later.
    """

    def __init__(self) -> None:
        self._ids = itertools.count(1).__next__  # atomic
        self._waiting: dict[int, asyncio.Future[Reply]] = {}

    async def grant(self, name: RequestName, target: str, instance: InstanceId) -> bool:
        """Request a place, a lease or admission to an endpoint; callable on any event loop.

        Raises ``EnvironmentFault`` if the driver cannot answer.
        """
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        request = Request(id=self._ids(), name=name, target=target, instance=instance)
        self._waiting[request.id] = future
        try:
            self.send(request)
            reply = await future
        finally:
            self._waiting.pop(request.id, None)
        if reply.error is not None:
            raise EnvironmentFault(f"The driver granted no {name} on {target}: {reply.error}")
        return reply.granted

    def release(self, name: RequestName, target: str, instance: InstanceId) -> None:
        self.send(Release(name=name, target=target, instance=instance))

    def resolve(self, reply: Reply) -> None:
        """Pass a reply to its request on the request's event loop; a reply without a request is ignored."""
        if (future := self._waiting.get(reply.id)) is not None:
            _set_result(future, reply)


class FrameQueue(DriverLink):
    """Keeps the frames of a worker until ``take`` fetches them; thread-safe, with one taker."""

    def __init__(self, max_bytes: int = MAX_QUEUED_BYTES) -> None:
        super().__init__()
        self._pid = os.getpid()
        self._max_bytes = max_bytes
        self._lock = threading.RLock()  # a finalizer in ``send`` or ``take`` may send, too
        self._data = bytearray()
        self._is_urgent = self._has_end = False
        self._without_room: list[asyncio.Future[None]] = []
        self._wake_taker: Callable[[], object] | None = None

    def send(self, frame: WorkerFrame) -> None:
        """Queue a frame; above the maximum size, streamed tokens are dropped.

        A process that an environment has forked ends here, because it must not go on with the episode.

        Raises ``FrameTooLarge``, or ``ValueError`` or ``TypeError`` if MessagePack cannot hold a value of the frame.
        """
        if os.getpid() != self._pid:
            os._exit(0)
        data = framed(_encode(frame))
        with self._lock:
            if isinstance(frame, Tokens) and len(self._data) > self._max_bytes:
                return
            is_urgent = not isinstance(frame, _CAN_WAIT)
            wakes = not self._data or (is_urgent and not self._is_urgent)
            self._is_urgent = self._is_urgent or is_urgent
            self._has_end = self._has_end or isinstance(frame, Free)
            self._data += data
            if wakes and self._wake_taker is not None:
                self._wake_taker()

    async def wait_for_room(self) -> None:
        with self._lock:
            if len(self._data) <= self._max_bytes:
                return
            room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._without_room.append(room)
        await room

    async def take(self, linger_s: float = LINGER_S) -> tuple[bytes, bool]:
        """Wait for frames and return them, each after its length, and whether an episode's ``Free`` is among them.

        The first frame waits ``linger_s`` seconds for others, or until one is urgent.
        """
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            self._wake_taker = lambda: loop.call_soon_threadsafe(changed.set)
        while not self._data:
            await changed.wait()
            changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(linger_s):
                while not self._is_urgent:
                    await changed.wait()
                    changed.clear()
        with self._lock:
            taken = bytes(self._data), self._has_end
            self._data.clear()
            self._is_urgent = self._has_end = False
            without_room, self._without_room = self._without_room, []
            self._wake_taker = None
        for future in without_room:
            _set_result(future, None)
        return taken


def write_frames(queue: FrameQueue, sock: socket.socket) -> None:
    """Write what is queued to a socket until its other end is closed."""

    async def write() -> None:
        with contextlib.suppress(OSError):
            while True:
                sock.sendall((await queue.take())[0])

    asyncio.run(write())


def _encode(frame: WorkerFrame) -> bytes:
    try:
        return encode_frame(frame)
    except (TypeError, ValueError, OverflowError):
        if not isinstance(frame, Step):
            raise
        # A name or a warning of the agent, or a number, is none that MessagePack can hold.
        repaired = msgspec.json.decode(encode(frame.summary), type=TimeStep)
        return encode_frame(msgspec.structs.replace(frame, summary=repaired))


def _set_result(future: asyncio.Future[_T], value: _T) -> None:
    def set_result() -> None:
        if not future.done():
            future.set_result(value)

    with contextlib.suppress(RuntimeError):  # the loop is closed
        future.get_loop().call_soon_threadsafe(set_result)
