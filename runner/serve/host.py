"""Host ASGI applications on local ports with uvicorn: connection limits, tokens, readiness and shutdown."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import resource
import signal
import socket
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from runner.errors import ConfigError
from runner.serve.request_guard import MAX_BODY_BYTES, guard_app, is_loopback
from runner.util.display_text import one_line

__all__ = [
    "MAX_BODY_BYTES",
    "ReadyCallback",
    "ServerLimits",
    "Site",
    "check_exposure",
    "guard_app",
    "read_token",
    "run_apps",
    "serve_apps",
]

ReadyCallback = Callable[[str], object]
"""Receives ``<url> <description>`` of a site that accepts requests."""

SHUTDOWN_TIMEOUT_S = 2
"""Seconds running requests have to finish once the server stops."""
KEEP_ALIVE_TIMEOUT_S = 120
"""Seconds after which an idle connection is closed; longer than most replies of a model take."""

HEADER_TIMEOUT_S = 10.0
"""Seconds a client has to send the request headers, from its connection or the first byte of the headers."""
MAX_CONNECTIONS = 512
"""Per site; further connections are closed immediately."""
_OTHER_OPEN_FILES = 256
"""Open files of the process other than connections."""

_TOKEN = re.compile(r"[\x21-\x7e]{16,512}")
_MAX_TOKEN_FILE = 4096


@dataclass(frozen=True)
class ServerLimits:
    """Limits of one server: seconds for headers and for shutdown, and the number of connections."""

    header_timeout_s: float = HEADER_TIMEOUT_S
    max_connections: int = MAX_CONNECTIONS
    shutdown_timeout_s: int = SHUTDOWN_TIMEOUT_S


DEFAULT_LIMITS = ServerLimits()


class Site(NamedTuple):
    """An application and its address; port 0 selects a free port. ``description`` is one line."""

    app: ASGIApp
    host: str
    port: int
    description: str


def check_exposure(host: str, token: str | None) -> None:
    """Reject an address that other machines can reach if there is no token.

    Raises:
        ConfigError: with what to do.
    """
    if token is None and not is_loopback(host):
        raise ConfigError(f"Other machines can reach the host '{one_line(host)}'; give --token, or listen on 127.0.0.1")


def read_token(source: str | None, environ: Mapping[str, str]) -> str | None:
    """Read the token from an environment variable, or from ``@`` and the path of a private file.

    The option never contains the token itself, because every user of the machine can see command lines.

    Raises:
        ConfigError: the token is missing or weak, or other users can read the file; the message never quotes it.
    """
    if source is None:
        return None
    if source.startswith("@"):
        token, where = _read_token_file(Path(source[1:])), f"the file {one_line(source[1:])}"
    elif source in environ:
        token, where = environ[source].strip(), f"the variable {one_line(source)}"
    else:
        raise ConfigError("--token must be the name of a variable that is set, or @ and the path of a file")
    if not _TOKEN.fullmatch(token):
        raise ConfigError(f"The token in {where} must be 16 to 512 visible ASCII characters")
    return token


def run_apps(sites: Sequence[Site], *, on_ready: ReadyCallback) -> None:
    """Serve until SIGTERM or SIGINT; see :func:`serve_apps`."""

    async def run() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        _raise_open_file_limit(len(sites) * MAX_CONNECTIONS + _OTHER_OPEN_FILES)
        await serve_apps(sites, on_ready=on_ready, stop=stop)

    asyncio.run(run())


async def serve_apps(
    sites: Sequence[Site], *, on_ready: ReadyCallback, stop: asyncio.Event, limits: ServerLimits = DEFAULT_LIMITS
) -> None:
    """Serve all sites, or none if one cannot listen, until ``stop`` is set.

    Args:
        sites: applications, each already guarded.
        on_ready: called with ``<url> <description>`` of each site once it accepts requests.
        stop: ends serving; running requests then have ``limits.shutdown_timeout_s`` seconds to finish.
        limits: of each site's server.

    Raises:
        ConfigError: naming the address that cannot be used.
    """
    _silence_uvicorn()
    with ExitStack() as stack:
        listeners = [stack.enter_context(closing(_bind(site.host, site.port))) for site in sites]
        servers = [
            _Server(site.app, _report_ready(site, listener, on_ready), limits)
            for site, listener in zip(sites, listeners, strict=True)
        ]
        async with asyncio.TaskGroup() as group:
            for server, listener in zip(servers, listeners, strict=True):
                group.create_task(server.serve(sockets=[listener]))
            await stop.wait()
            for server in servers:
                server.should_exit = True


class _Config(uvicorn.Config):
    """Configuration that carries the limits to the protocol."""

    limits: ServerLimits


class _Protocol(H11Protocol):
    """HTTP/1.1 with a header timeout and a limit on connections, neither of which uvicorn has."""

    _header_timer: asyncio.TimerHandle | None = None

    @property
    def _limits(self) -> ServerLimits:
        return cast(_Config, self.config).limits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the base class
        super().connection_made(transport)
        if len(self.connections) > self._limits.max_connections:
            transport.abort()
        else:
            self._start_header_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._cancel_header_timer()
        elif self._header_timer is None:
            self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_header_timer()
        super().connection_lost(exc)

    def _start_header_timer(self) -> None:
        self._header_timer = self.loop.call_later(self._limits.header_timeout_s, self.transport.abort)

    def _cancel_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None


class _Server(uvicorn.Server):
    """Uvicorn without signal handlers, as several servers share a process, and with a readiness callback."""

    def __init__(self, app: ASGIApp, on_ready: Callable[[], object], limits: ServerLimits) -> None:
        config = _Config(
            app,
            loop="asyncio",
            http=_Protocol,
            ws="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_TIMEOUT_S,
            timeout_graceful_shutdown=limits.shutdown_timeout_s,
        )
        config.limits = limits
        super().__init__(config)
        self._on_ready = on_ready

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._on_ready()


def _report_ready(site: Site, listener: socket.socket, on_ready: ReadyCallback) -> Callable[[], object]:
    host, port = f"[{site.host}]" if ":" in site.host else site.host, listener.getsockname()[1]
    return lambda: on_ready(f"http://{host}:{port} {site.description}")


def _silence_uvicorn() -> None:
    # Uvicorn logs malformed requests; their clients get a response, and the output stays readable.
    library = logging.getLogger("uvicorn")
    library.handlers, library.propagate = [logging.NullHandler()], False


def _raise_open_file_limit(n_files: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = n_files if hard == resource.RLIM_INFINITY else min(n_files, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def _bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; with its protocol named, asyncio sets TCP_NODELAY on the connections."""
    shown = f"{one_line(host)}, port {port}"
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
        listener = socket.socket(family, kind, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen()
        except OSError:
            listener.close()
            raise
    except (OSError, UnicodeError) as exc:
        if getattr(exc, "errno", None) == errno.EADDRINUSE:
            raise ConfigError(f"The address {shown} is in use; stop the other server or choose another port") from exc
        raise ConfigError(f"Cannot listen on {shown}: {getattr(exc, 'strerror', None) or exc}") from exc
    return listener


def _read_token_file(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a named pipe would block
        with os.fdopen(descriptor, "rb") as stream:
            status = os.fstat(descriptor)
            content = stream.read(_MAX_TOKEN_FILE) if stat.S_ISREG(status.st_mode) else b""
    except (OSError, ValueError) as exc:
        raise ConfigError(
            f"The token file {one_line(str(path))} cannot be read: {getattr(exc, 'strerror', exc)}"
        ) from exc
    if status.st_mode & 0o077:
        raise ConfigError(f"Other users can read the token file {one_line(str(path))}; run chmod 600 on it")
    return content.decode("ascii", "replace").strip()
