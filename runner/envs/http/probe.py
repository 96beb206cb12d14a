"""Asks servers of environments what they are: all at once, and never for longer than promised.

Nothing but sockets and threads: ``--list-envs`` is not to wait for an HTTP client to be imported, and a name that takes
long to be resolved can only be left alone.
"""

from __future__ import annotations

import io
import queue
import socket
import threading
import time
from collections.abc import Mapping
from typing import Literal, cast
from urllib.parse import SplitResult, urlsplit

import msgspec

from runner.envs.http.address import ServerAddress
from runner.envs.http.identify import ServerIdentity, identify_server
from runner.errors import catch_foreign
from runner.util.text import mask, one_line

PROBE_TIMEOUT_S = 2.0
"""Seconds for all servers together."""
SLOW_AFTER_S = 0.5
"""A greeting takes a well server a few milliseconds."""
MAX_RESPONSE_BYTES = 64 * 1024
"""Of a reply, its headers included."""
NOT_LISTENING = "nothing listens there"
UNAUTHORIZED, METHOD_NOT_ALLOWED = 401, 405
"""The answer to who has not logged in, and to GET on a path that takes POST."""


class ServerState(msgspec.Struct, frozen=True, kw_only=True):
    """What answers at an address.

    Attributes:
        address: where to play, with what the server told of itself.
        greeting: what it says it is; None where nothing answered.
        latency_s: seconds until that was there.
        open: instances in use, where the server tells.
        http_status: of its greeting; None where nothing answered.
        cause: why it is not well.
    """

    status: Literal["up", "slow", "wrong", "down"]
    address: ServerAddress
    identify_server: ServerIdentity | None = None
    latency_s: float | None = None
    open: int | None = None
    http_status: int | None = None
    cause: str | None = None

    @property
    def usable(self) -> bool:
        """Whether it is, or may well be, the environment's server."""
        return self.status in ("up", "slow")


class _Health(msgspec.Struct):
    """The part of our own servers' ``/health`` that is of interest."""

    open: int | None = None
    n_tasks: int | None = None


def probe_servers(addresses: Mapping[str, ServerAddress], within_s: float = PROBE_TIMEOUT_S) -> dict[str, ServerState]:
    """The state of each environment's server; the caller waits at most ``within_s`` seconds for all of them.

    Args:
        addresses: environment -> where its server should be.
        within_s: seconds.
    """
    deadline = time.monotonic() + within_s
    late = f"there was no answer within {within_s:g} s"
    states = {env: ServerState(status="down", address=place, cause=late) for env, place in addresses.items()}
    found: queue.SimpleQueue[tuple[str, ServerState]] = queue.SimpleQueue()
    for env, address in addresses.items():
        threading.Thread(target=_report, args=(found, env, address, deadline), name="probe", daemon=True).start()
    for _ in addresses:
        try:
            env, state = found.get(timeout=max(deadline - time.monotonic(), 0.0))
        except queue.Empty:
            break
        states[env] = state
    return states


def _report(
    found: queue.SimpleQueue[tuple[str, ServerState]], env: str, address: ServerAddress, deadline: float
) -> None:
    problems: list[BaseException] = []
    with catch_foreign(problems.append):
        found.put((env, _look(env, address, deadline)))
    for problem in problems:
        found.put((env, ServerState(status="down", address=address, cause=_cause(problem))))


def _cause(problem: BaseException) -> str:
    if isinstance(problem, ConnectionRefusedError):
        return NOT_LISTENING
    if isinstance(problem, TimeoutError):
        return "it did not answer in time"
    return one_line(mask(getattr(problem, "strerror", None) or f"{type(problem).__name__}: {problem}"))


def _look(env: str, address: ServerAddress, deadline: float) -> ServerState:
    started = time.monotonic()
    status, body = _get(address, "/", deadline)
    latency_s = time.monotonic() - started
    said = identify_server(env, _decoded(body)) if status == 200 else ServerIdentity("unknown" if status == 404 else "wrong")
    if said.kind == "unknown" and _get(address, "/createEnv", deadline)[0] == METHOD_NOT_ALLOWED:
        address = msgspec.structs.replace(address, dialect="createEnv")
    elif status != 200 or said.kind == "wrong":
        shown = one_line(mask(body[:200].decode(errors="replace")), 120)
        cause = f"GET / was answered with HTTP {status}: {shown}"
        return ServerState(
            status="wrong", address=address, greeting=said, latency_s=latency_s, http_status=status, cause=cause
        )
    health = _health(address, deadline) if said.kind == "console" else _Health()
    return ServerState(
        status="slow" if latency_s > SLOW_AFTER_S else "up",
        address=msgspec.structs.replace(address, n_tasks=health.n_tasks, lists_actions=said.kind == "console"),
        greeting=said,
        latency_s=latency_s,
        http_status=status,
        open=health.open,
    )


def _decoded(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _health(address: ServerAddress, deadline: float) -> _Health:
    """Empty where it cannot be told; the server may be well all the same."""
    found: list[_Health] = []
    ignored: list[BaseException] = []
    with catch_foreign(ignored.append):
        _, body = _get(address, "/health", deadline)
        found.append(msgspec.json.decode(body, type=_Health))
    return found[0] if found else _Health()


def _get(address: ServerAddress, path: str, deadline: float) -> tuple[int, bytes]:
    from http.client import HTTPResponse  # only where something may listen

    parts = urlsplit(address.base)
    with _connected(parts, deadline) as connection:
        connection.sendall(_request(parts, path, address.authorization))
        response = HTTPResponse(cast(socket.socket, _Reply(connection, deadline)), method="GET")
        response.begin()
        return response.status, response.read()


def _connected(parts: SplitResult, deadline: float) -> socket.socket:
    secure = parts.scheme == "https"
    host = parts.hostname or ""
    connection = socket.create_connection((host, parts.port or (443 if secure else 80)), timeout=_left_s(deadline))
    if not secure:
        return connection
    import ssl

    return ssl.create_default_context().wrap_socket(connection, server_hostname=host)


def _request(parts: SplitResult, path: str, authorization: str | None) -> bytes:
    lines = [f"GET {parts.path}{path} HTTP/1.1", f"Host: {parts.netloc}", "Connection: close", "Accept: */*"]
    if authorization:
        lines.append(f"Authorization: {authorization}")
    return "\r\n".join([*lines, "", ""]).encode("ascii")


def _left_s(deadline: float) -> float:
    if (left_s := deadline - time.monotonic()) <= 0:
        raise TimeoutError
    return left_s


class _Reply(io.RawIOBase):
    """What a server sends, up to a moment and a number of bytes; ``HTTPResponse`` reads it in place of the socket."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline
        self._left = MAX_RESPONSE_BYTES

    def makefile(self, mode: str) -> io.BufferedReader:
        """The stream to read, as of a socket."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # what a BufferedReader gives
        """Some bytes; none at the end, and where there were enough."""
        if not self._left:
            return 0
        self._connection.settimeout(_left_s(self._deadline))
        count = self._connection.recv_into(buffer, min(len(buffer), self._left))
        self._left -= count
        return count
