"""The driver's end of a worker's channel: frames that are not urgent are read together with later ones."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterator

import msgspec

from runner.pool.remote_worker import BrokenFrame
from runner.worker.frames import LENGTH_BYTES, MAX_FRAME_BYTES, WorkerFrame, decode_worker_frame

LINGER_S = 0.025
"""Maximum seconds that frames which are not urgent stay in the channel, while they arrive in quick succession."""

_RECEIVE_BYTES = 1 << 16
_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class ChannelReader:
    """Waits for the frames of one worker; used on one thread.

    Each wake-up costs CPU, so frames that are not urgent stay in the channel for up to ``LINGER_S``. The kernel already
    holds them, so they survive the death of the worker. An urgent frame ends the wait: the worker writes to its bell, a
    pipe whose other end arrives with the first frame. Without a bell, every frame is read at once. The caller closes
    ``sock``.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.buffer = FrameBuffer()
        self._sock = sock
        self._frames = select.poll()
        self._frames.register(sock, select.POLLIN)
        self._bell: int | None = None
        self._rings = select.poll()
        self._has_received = self._has_more = self._is_busy = False

    def wait(self, timeout_s: float) -> bool:
        """Return whether there are any frames, or the channel has ended."""
        if self._bell is not None and self._can_linger and self._rings.poll(LINGER_S * 1000):
            os.read(self._bell, _RECEIVE_BYTES)
        started_s = time.monotonic()
        is_readable = bool(self._frames.poll(timeout_s * 1000))
        self._is_busy = is_readable and time.monotonic() - started_s < LINGER_S
        return is_readable

    def receive(self) -> bytes:
        """Return bytes for ``buffer``; empty at the end of the channel."""
        try:
            data = self._sock.recv(_RECEIVE_BYTES) if self._has_received else self._receive_first()
        except OSError:  # it ended with unread frames
            return b""
        self._has_more = len(data) == _RECEIVE_BYTES
        return data

    def close(self) -> None:
        if self._bell is not None:
            os.close(self._bell)

    @property
    def _can_linger(self) -> bool:
        # A worker whose frame is incomplete, or that has sent more than was read, may be blocked until it is read.
        return self._is_busy and not (self._has_more or self.buffer.n_incomplete)

    def _receive_first(self) -> bytes:
        data, descriptors, _, _ = socket.recv_fds(self._sock, _RECEIVE_BYTES, 1, _CLOSE_ON_EXEC)
        self._has_received = True
        for self._bell in descriptors:
            os.set_inheritable(self._bell, False)
            self._rings.register(self._bell, select.POLLIN)
        return data


class FrameBuffer:
    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[WorkerFrame]:
        """Yield the frames that the bytes complete; the iterator must be used up.

        Raises ``BrokenFrame`` if a frame is too large or invalid.
        """
        self._data += data
        start = 0
        while len(self._data) - start >= LENGTH_BYTES:
            size = int.from_bytes(self._data[start : start + LENGTH_BYTES], "big")
            if size > MAX_FRAME_BYTES:
                raise BrokenFrame(f"a frame of {size:,} bytes; at most {MAX_FRAME_BYTES >> 20} MiB are allowed")
            end = start + LENGTH_BYTES + size
            if len(self._data) < end:
                break
            yield _decode(bytes(self._data[start + LENGTH_BYTES : end]))
            start = end
        del self._data[:start]

    @property
    def n_incomplete(self) -> int:
        return len(self._data)


def _decode(data: bytes) -> WorkerFrame:
    try:
        return decode_worker_frame(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        raise BrokenFrame(f"an invalid frame of {len(data):,} bytes: {exc}") from exc
