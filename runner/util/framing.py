"""Frames over a socket or in a file: bytes, each after their length as four bytes, most significant first.

It imports only what ARE's interpreter has, which uses it, too.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

from runner.errors import RunnerError

MAX_FRAME_BYTES = 256 << 20
_LENGTH_BYTES = 4


class FrameTooLarge(RunnerError):
    def __init__(self, size: int, max_bytes: int) -> None:
        super().__init__(f"a frame of {size:,} bytes; at most {max_bytes >> 20} MiB are allowed")


def framed(data: bytes, max_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """Return ``data`` after its length; raises ``FrameTooLarge``."""
    if len(data) > max_bytes:
        raise FrameTooLarge(len(data), max_bytes)
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


def send_frame(sock: socket.socket, data: bytes, max_bytes: int = MAX_FRAME_BYTES) -> None:
    """Send ``data`` after its length; raises ``FrameTooLarge`` before anything is sent, or ``OSError``."""
    sock.sendall(framed(data, max_bytes))


def read_frame(sock: socket.socket, max_bytes: int = MAX_FRAME_BYTES) -> bytes | None:
    """Wait for the next frame and return it without its length; None at the end of the connection.

    A frame that the other process has not sent completely when it ends is dropped. After ``FrameTooLarge``, and after
    ``TimeoutError`` by the time limit of the socket, the connection can only be closed.
    """
    if (length := _read_exactly(sock, _LENGTH_BYTES)) is None:
        return None
    return _read_exactly(sock, _size(length, max_bytes))


class FrameBuffer:
    """Finds the frames in bytes that arrive in pieces of any size."""

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_bytes = max_bytes
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the frames that the bytes complete, which must all be taken; raises ``FrameTooLarge``."""
        self._data += data
        start = 0
        while len(self._data) >= (begin := start + _LENGTH_BYTES):
            end = begin + _size(self._data[start:begin], self._max_bytes)
            if len(self._data) < end:
                break
            yield bytes(self._data[begin:end])
            start = end
        del self._data[:start]

    @property
    def n_incomplete(self) -> int:
        return len(self._data)


def _size(length: bytes | bytearray, max_bytes: int) -> int:
    if (size := int.from_bytes(length, "big")) > max_bytes:
        raise FrameTooLarge(size, max_bytes)
    return size


def _read_exactly(sock: socket.socket, size: int) -> bytes | None:
    """Return the next ``size`` bytes; None if the connection ends before."""
    try:
        data = sock.recv(size, socket.MSG_WAITALL) if size else b""
        while len(data) < size:
            if not (more := sock.recv(size - len(data), socket.MSG_WAITALL)):
                return None
            data += more
    except TimeoutError:
        raise
    except OSError:
        return None
    return data
