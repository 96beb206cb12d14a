"""Raw HTTP responses of whatever listens at an environment server's address, over a real connection.

The input is the responses to the requests of one probe, separated by ``\\x00\\x00``.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import threading

from runner.envs.http.server import ServerAddress, ServerState, probe_servers
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


def check(data: bytes) -> None:
    server = _server()
    server.responses = data.split(b"\x00\x00")
    url = f"http://user:{SECRET}@127.0.0.1:{server.port}/base"
    with secret_environment():
        for env in ENVIRONMENTS:
            _check_state(probe_servers({env: ServerAddress(url, secrets=("0ther-Secret",))}, 20)[env])


def _check_state(state: ServerState) -> None:
    assert state.usable == (state.cause is None)
    assert state.status != "busy"
    if state.cause is not None:
        check_displayable(state.cause)
        check_masked(state.cause, "0ther-Secret")
    if state.identity is not None:
        check_displayable(f"{state.identity.env} {state.identity.label}")
    assert state.open is None or isinstance(state.open, int)


class _Server:
    """Sends one response for each connection, and closes it."""

    def __init__(self) -> None:
        self.responses: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(1 << 16)
                connection.sendall(self.responses.pop(0) if self.responses else b"")


@functools.cache
def _server() -> _Server:
    return _Server()
