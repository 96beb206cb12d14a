"""The link of a worker whose frames another party fetches, such as the generator of a Ray actor."""

from __future__ import annotations

import asyncio
import threading
from typing import TypeAlias

import msgspec

from runner.worker.frames import Free, Streamed, WorkerFrame, encode_frame
from runner.worker.link import DriverLink

MAX_QUEUED_BYTES = 4 << 20
"""Size of the queue above which a sender waits and streamed tokens are dropped."""

Packed: TypeAlias = bytes
"""Several encoded frames as one MessagePack array."""


def pack(frames: list[bytes]) -> Packed:
    return msgspec.msgpack.encode(frames)


def unpack(packed: Packed) -> list[bytes]:
    """Raises ``msgspec.MsgspecError`` if the bytes are not joined frames."""
    return msgspec.msgpack.decode(packed, type=list[bytes])


class FrameQueue(DriverLink):
    """Keeps the frames of a worker until ``take`` fetches them; thread-safe."""

    def __init__(self, max_bytes: int = MAX_QUEUED_BYTES) -> None:
        super().__init__()
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        self._frames: list[bytes] = []
        self._n_bytes = 0
        self._has_end = False
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def send(self, frame: WorkerFrame) -> None:
        """Queue a frame; while the queue is full, streamed tokens are dropped and other frames wait.

        Raises ``ValueError`` or ``TypeError`` if MessagePack cannot hold a value of the frame.
        """
        data = encode_frame(frame)
        with self._changed:
            if isinstance(frame, Streamed) and self._n_bytes > self._max_bytes:
                return
            self._changed.wait_for(lambda: self._n_bytes <= self._max_bytes)
            self._frames.append(data)
            self._n_bytes += len(data)
            self._has_end = self._has_end or isinstance(frame, Free)
            if self._waiter is not None:
                loop, event = self._waiter
                loop.call_soon_threadsafe(event.set)

    async def take(self, linger_s: float = 0.0) -> tuple[list[bytes], bool]:
        """Wait for frames and return them, encoded, and whether an episode's ``Free`` is among them.

        The first frame waits ``linger_s`` seconds for others.
        """
        while (event := self._expect()) is not None:
            await event.wait()
        if linger_s and not self._has_end:
            await asyncio.sleep(linger_s)
        with self._changed:
            frames, has_end = self._frames, self._has_end
            self._frames, self._n_bytes, self._has_end, self._waiter = [], 0, False, None
            self._changed.notify_all()
            return frames, has_end

    def _expect(self) -> asyncio.Event | None:
        """Return an event that the next frame sets; None if there is a frame."""
        with self._changed:
            if self._frames:
                return None
            event = asyncio.Event()
            self._waiter = asyncio.get_running_loop(), event
            return event
