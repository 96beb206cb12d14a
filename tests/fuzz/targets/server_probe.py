"""Raw HTTP responses of whatever listens at an environment server's address.

The input is the responses to the requests of one probe, separated by ``\\x00\\x00``.
"""

from __future__ import annotations

import io
import queue
import time
from typing import Self
from unittest.mock import patch

from runner.envs.http import server
from runner.envs.http.server import ServerAddress, ServerState
from tests.fuzz.oracles import SECRET, check_displayable, check_masked, secret_environment

TOKENS = (
    b"HTTP/1.1 200 OK\r\n",
    b"Content-Length: 5\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n5\r\n",
    b'"AgentGym Console 1.0: Maze (strict, upstream)"',
    b'"This is environment lmrl-gym."',
    b'{"open":1,"n_tasks":3}',
    b"\x00\x00HTTP/1.1 405 X\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n",
)
ENVIRONMENTS = ("Maze", "SQLGym", "Unknown")
ADDRESS = ServerAddress(f"http://user:{SECRET}@127.0.0.1:1/base", secrets=("0ther-Secret",))


def check(data: bytes) -> None:
    responses = data.split(b"\x00\x00")

    def connect(*args: object) -> _Connection:
        return _Connection(responses.pop(0) if responses else b"")

    results: queue.SimpleQueue[tuple[str, ServerState]] = queue.SimpleQueue()
    with secret_environment(), patch.object(server, "_connect", connect):
        for env in ENVIRONMENTS:
            server._probe_into(results, env, ADDRESS, time.monotonic() + 60)
            assert results.qsize() == 1
            _check_state(results.get()[1])


def _check_state(state: ServerState) -> None:
    assert state.usable == (state.cause is None)
    if state.cause is not None:
        check_displayable(state.cause)
        check_masked(state.cause, "0ther-Secret")
    if state.identity is not None:
        check_displayable(f"{state.identity.env} {state.identity.label}")
    assert state.open is None or isinstance(state.open, int)


class _Connection(io.BytesIO):
    """A socket whose peer has sent a response and closed the connection."""

    def __enter__(self) -> Self:
        return self

    def settimeout(self, seconds: float) -> None: ...

    def sendall(self, data: bytes) -> None:
        assert SECRET.encode() not in data

    def recv_into(self, buffer: memoryview, n: int) -> int:
        return self.readinto(buffer[:n])
