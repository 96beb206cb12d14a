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
from typing import NamedTuple, TypeAlias

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

ReadyCallback: TypeAlias = Callable[[str], object]
"""Called with ``<url> <description>`` of each site when the site accepts requests."""

KEEP_ALIVE_TIMEOUT_S = 120
"""Seconds after which an idle connection is closed; most models reply faster, so an agent need not reconnect."""
OWN_FILES = 32
"""Estimated number of open files of the process that are not connections, with a margin."""
MIN_CONNECTIONS = 8
"""Number of connections that the limit of open files must allow for each site."""

_TOKEN = re.compile(r"[\x21-\x7e]{16,512}")


class ServerLimits(msgspec.Struct, frozen=True):
    """Limits of one server.

    Attributes:
        header_timeout_s: seconds that a client has to send the headers of a request.
        max_connections: maximum number of connections; one more replaces the oldest without a complete request, or is
            closed.
        shutdown_timeout_s: seconds that running requests have to finish when the server stops.
    """

    header_timeout_s: float = 10.0
    max_connections: int = 512
    shutdown_timeout_s: int = 2


DEFAULT_LIMITS = ServerLimits()


class Site(NamedTuple):
    """An application, its address and a description in one line; port 0 selects a free port.

    ``headers`` are added to each response of the application.
    """

    app: ASGIApp
    host: str
    port: int
    description: str
    headers: tuple[tuple[str, str], ...] = ()


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
    # Uvicorn logs malformed requests; their clients get a response, and the output stays readable.
    library = logging.getLogger("uvicorn")
    library.handlers, library.propagate = [logging.NullHandler()], False
    with ExitStack() as stack:
        listeners = [stack.enter_context(closing(_bind(site.host, site.port))) for site in sites]
        servers = []
        async with asyncio.TaskGroup() as group:
            for site, listener in zip(sites, listeners, strict=True):
                servers.append(_Server(site, listener.getsockname()[1], on_ready, limits))
                group.create_task(servers[-1].serve(sockets=[listener]))
            await stop.wait()
            for server in servers:
                server.should_exit = True


class _Server(uvicorn.Server):
    """Uvicorn's server, plus a readiness callback, minus the signal handlers: several servers share a process."""

    def __init__(self, site: Site, port: int, on_ready: ReadyCallback, limits: ServerLimits) -> None:
        config = uvicorn.Config(
            site.app,
            loop="asyncio",
            http=_limited_protocol(limits),
            ws="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            headers=list(site.headers),
            timeout_keep_alive=KEEP_ALIVE_TIMEOUT_S,
            timeout_graceful_shutdown=limits.shutdown_timeout_s,
            backlog=limits.max_connections,
        )
        super().__init__(config)
        host = f"[{site.host}]" if ":" in site.host else site.host
        self._announcement = f"http://{host}:{port} {site.description}"
        self._on_ready = on_ready

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._on_ready(self._announcement)


def _limited_protocol(limits: ServerLimits) -> type[H11Protocol]:
    """Return uvicorn's protocol with a time limit for the headers of a request and a limit for connections.

    Uvicorn itself waits for headers without end, and its ``limit_concurrency`` rejects requests on old connections,
    too. Here the oldest connection without a complete request makes room for a new one, so a client that opens many
    and never completes its headers or bodies cannot lock out the others.
    """
    incomplete: dict[LimitedProtocol, None] = {}

    class LimitedProtocol(H11Protocol):
        header_timer: asyncio.TimerHandle

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the base
            super().connection_made(transport)
            self.start_header_timer()
            incomplete[self] = None
            if len(self.connections) > limits.max_connections:
                oldest = next(iter(incomplete))  # perhaps this one
                del incomplete[oldest]
                oldest.transport.abort()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            state = self.conn.their_state
            if state is not h11.IDLE:
                self.header_timer.cancel()
            elif self.header_timer.cancelled():
                self.start_header_timer()
            if state in (h11.IDLE, h11.SEND_BODY):
                incomplete.setdefault(self)
            else:
                incomplete.pop(self, None)

        def connection_lost(self, exc: Exception | None) -> None:
            self.header_timer.cancel()
            incomplete.pop(self, None)
            super().connection_lost(exc)

        def start_header_timer(self) -> None:
            self.header_timer = self.loop.call_later(limits.header_timeout_s, self.transport.abort)

    return LimitedProtocol


def _fitting_limits(n_sites: int) -> ServerLimits:
    # Twice: a site has accepted as many connections as its backlog holds before it closes those above its limit.
    sites = "1 site" if n_sites == 1 else f"{n_sites} sites"
    limit = require_open_files(OWN_FILES + 2 * n_sites * MIN_CONNECTIONS, f"Serving {sites}")
    n_connections, most = (limit - OWN_FILES) // (2 * n_sites), DEFAULT_LIMITS.max_connections
    if n_connections >= most:
        return DEFAULT_LIMITS
    logger.warning(
        "connections lowered from %d to %d (%s): the limit of open files is %d, the process needs %d, and a connection "
        "2 while many clients connect; raise it with ulimit -n",
        *(most, n_connections, sites, limit, OWN_FILES),
    )
    return ServerLimits(max_connections=n_connections)


def _bind(host: str, port: int) -> socket.socket:
    """Return a listening socket with an explicit TCP protocol, so that asyncio sets TCP_NODELAY on connections."""
    shown = f"{one_line(host)}, port {port}"
    try:
        resolved = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM, socket.IPPROTO_TCP, socket.AI_PASSIVE)
        family, kind, protocol, _, address = resolved[0]
        with ExitStack() as stack:
            listener = stack.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen()
            stack.pop_all()
            return listener
    except (OSError, UnicodeError) as exc:
        if getattr(exc, "errno", None) == errno.EADDRINUSE:
            raise ConfigError(f"The address {shown} is in use; stop the other server or choose another port") from exc
        raise ConfigError(f"Cannot listen on {shown}: {getattr(exc, 'strerror', None) or exc}") from exc
