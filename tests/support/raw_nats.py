"""A NATS client without a library, which publishes as fast as a socket permits and reads nothing unless requested."""

from __future__ import annotations

import json
import socket
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from runner.bus.address import BusAddress

TIMEOUT_S = 60


def publish_frame(subject: str, payload: bytes, reply: str = "") -> bytes:
    """Return the bytes of one message to a server."""
    return f"PUB {subject} {reply} {len(payload)}\r\n".encode() + payload + b"\r\n"


class RawNatsClient:
    """Blocking connection to a server; closed at the end of the block."""

    def __init__(self, address: BusAddress) -> None:
        url = urlsplit(address.url)
        self._socket = socket.create_connection((url.hostname or "", url.port or 0), TIMEOUT_S)
        self._lines = self._socket.makefile("rb")
        self._lines.readline()
        login = {"verbose": False, "headers": True, "user": address.user, "pass": address.password, "name": "raw"}
        self._socket.sendall(b"CONNECT " + json.dumps(login).encode() + b"\r\n")
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()
        self._socket.close()

    def subscribe(self, subject: str) -> None:
        """Subscribe; the messages stay unread in the socket."""
        self._socket.sendall(f"SUB {subject} 1\r\n".encode())
        self.flush()

    def send(self, frames: bytes) -> None:
        self._socket.sendall(frames)

    def flush(self) -> None:
        """Wait until the server has processed everything that was sent."""
        self._socket.sendall(b"PING\r\n")
        while (line := self._lines.readline()) != b"PONG\r\n":
            assert line, "the server closed the connection"
