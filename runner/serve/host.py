"""Hosting of ASGI applications with uvicorn: ports, connection limits, tokens, readiness and shutdown."""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple, cast

import h11
import msgspec
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from runner.errors import ConfigError
from runner.serve.request_guard import is_loopback
from runner.util.display_text import one_line
from runner.util.files import read_secret
from runner.util.resources import require_open_files

logger = logging.getLogger(__name__)

ReadyCallback = Callable[[str], object]
"""Called with ``<url> <description>`` of each site when the site accepts requests."""

SHUTDOWN_TIMEOUT_S = 2
"""Seconds that running requests have to finish when the server stops."""
KEEP_ALIVE_TIMEOUT_S = 120
"""Seconds after which an idle connection is closed; most models reply faster, so an agent need not reconnect."""

HEADER_TIMEOUT_S = 10.0
"""Seconds that a client has to send the headers of a request."""
MAX_CONNECTIONS = 512
"""Maximum number of connections of a site; a further one replaces the oldest that has sent no complete request."""
OWN_FILES = 32
"""Estimated number of open files of the process that are not connections, with a margin."""
MIN_CONNECTIONS = 8
"""Number of connections that the limit of open files must allow for each site."""

_BACKLOG = 2048
"""Uvicorn's default for connections that wait to be accepted."""
_TOKEN = re.compile(r"[\x21-\x7e]{16,512}")


class ServerLimits(msgspec.Struct, frozen=True):
    """Limits of one server: seconds for request headers, number of connections, and seconds for the shutdown."""

    header_timeout_s: float = HEADER_TIMEOUT_S
    max_connections: int = MAX_CONNECTIONS
    shutdown_timeout_s: int = SHUTDOWN_TIMEOUT_S


DEFAULT_LIMITS = ServerLimits()


class Site(NamedTuple):
    """An application, its address and a description in one line; port 0 selects a free port."""

    app: ASGIApp
    host: str
    port: int
    description: str


def check_exposure(host: str, token: str | None) -> None:
    """The message of the ``ConfigError`` contains a remedy."""
    if token is None and not is_loopback(host):
        raise ConfigError(f"Other machines can reach the host '{one_line(host)}'; give --token, or listen on 127.0.0.1")


def read_token(source: str | None, environ: Mapping[str, str]) -> str | None:
    """Read the token: ``source`` is the name of an environment variable, or ``@`` and the path of a private file.

    The command line option does not contain the token, because all users of a machine can see command lines. The
    ``ConfigError`` for a missing or weak token, or one that other users can read, contains no token.
    """
    if source is None:
        return None
    if source.startswith("@"):
        token, where = read_secret(Path(source[1:]), "the token").strip(), f"the file {one_line(source[1:])}"
    elif source in environ:
        token, where = environ[source].strip(), f"the variable {one_line(source)}"
    else:
        raise ConfigError("--token must be the name of a variable that is set, or @ and the path of a file")
    if not _TOKEN.fullmatch(token):
        raise ConfigError(f"The token in {where} must be 16 to 512 visible ASCII characters")
    return token


def run_apps(sites: Sequence[Site], *, on_ready: ReadyCallback) -> None:
    """Serve all sites until SIGTERM or SIGINT; see ``serve_apps``."""
    limits = _fitting_limits(len(sites))

    async def run() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await serve_apps(sites, on_ready=on_ready, stop=stop, limits=limits)

    asyncio.run(run())


async def serve_apps(
    sites: Sequence[Site], *, on_ready: ReadyCallback, stop: asyncio.Event, limits: ServerLimits = DEFAULT_LIMITS
) -> None:
    """Serve all sites until ``stop`` is set; if one address cannot be used, serve no site."""
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
    """Uvicorn's configuration, with the server limits for ``_Protocol``."""

    limits: ServerLimits
    incomplete: dict[_Protocol, None]
    """Connections that are new or have sent a part of their next request, the oldest first."""


class _Protocol(H11Protocol):
    """Uvicorn's HTTP/1.1 protocol, plus a timeout for request headers and a limit for connections."""

    _header_timer: asyncio.TimerHandle | None = None

    @property
    def _config(self) -> _Config:
        return cast(_Config, self.config)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the base class
        super().connection_made(transport)
        if len(self.connections) > self._config.limits.max_connections and not self._replace_oldest():
            transport.abort()
        else:
            self._start_header_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._cancel_header_timer()
        elif self._header_timer is None:
            self._start_header_timer()
        if self.conn.their_state is h11.SEND_BODY:
            self._config.incomplete[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_header_timer()
        super().connection_lost(exc)

    def _replace_oldest(self) -> bool:
        """Close the oldest connection without a complete request; return whether there was one.

        Otherwise, a client that opens many connections and never completes its headers or bodies would lock out all
        others until the timeout.
        """
        oldest = next(iter(self._config.incomplete), None)
        if oldest is None:
            return False
        oldest._cancel_header_timer()
        oldest.transport.abort()
        return True

    def _start_header_timer(self) -> None:
        self._header_timer = self.loop.call_later(self._config.limits.header_timeout_s, self.transport.abort)
        self._config.incomplete[self] = None

    def _cancel_header_timer(self) -> None:
        self._config.incomplete.pop(self, None)
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None


class _Server(uvicorn.Server):
    """Uvicorn's server, plus a readiness callback, minus the signal handlers: several servers share a process."""

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
            backlog=min(_BACKLOG, limits.max_connections),
        )
        config.limits, config.incomplete = limits, {}
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


def _fitting_limits(n_sites: int) -> ServerLimits:
    """Return limits whose connections fit the limit of open files; log what was lowered."""
    # Twice: a site has accepted as many connections as its backlog holds before it closes those above its limit.
    sites = "1 site" if n_sites == 1 else f"{n_sites} sites"
    limit = require_open_files(OWN_FILES + 2 * n_sites * MIN_CONNECTIONS, f"Serving {sites}")
    n_connections = (limit - OWN_FILES) // (2 * n_sites)
    if n_connections >= MAX_CONNECTIONS:
        return DEFAULT_LIMITS
    lowered = f"connections lowered from {MAX_CONNECTIONS} to {n_connections} ({sites})"
    share = f"the process needs {OWN_FILES}, and a connection 2 while many clients connect"
    logger.warning("%s: the limit of open files is %d, %s; raise it with ulimit -n", lowered, limit, share)
    return ServerLimits(max_connections=n_connections)


def _bind(host: str, port: int) -> socket.socket:
    """Return a listening socket with an explicit TCP protocol, so that asyncio sets TCP_NODELAY on connections."""
    shown = f"{one_line(host)}, port {port}"
    try:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, _, _, address = resolved[0]
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
