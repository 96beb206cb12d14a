"""Hosts ASGI applications on ports of this machine: quietly, behind their guard, and with an end."""

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
from pathlib import Path
from typing import NamedTuple

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from runner.errors import ConfigError
from runner.serve.guard import MAX_BODY, guarded, is_loopback
from runner.util.text import one_line

__all__ = ["MAX_BODY", "Say", "Site", "check_exposure", "guarded", "read_token", "run_apps", "serve_apps"]

Say = Callable[[str], object]

STOP_S = 2
"""Seconds that running requests have to finish once the server stops."""
IDLE_S = 120
"""Seconds after which an unused connection is closed; longer than most turns of a model."""

HEAD_S = 10.0
"""Seconds that a client has for the head of a request, from its connection or from the head's first byte on."""
MAX_CONNECTIONS = 512
"""Of one site; further ones are closed at once."""
_OTHER_FILES = 256
"""What a process has open beside its connections."""

_TOKEN = re.compile(r"[\x21-\x7e]{16,512}")
_MAX_TOKEN_FILE = 4096


class Site(NamedTuple):
    """An application and where it listens; port 0 is one that is free. ``about`` says what it is, on one line."""

    app: ASGIApp
    host: str
    port: int
    about: str


def check_exposure(host: str, token: str | None) -> None:
    """Refuse to be reached from other machines without a token.

    Raises:
        ConfigError: saying what to do.
    """
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"On the host '{one_line(host)}' other machines could reach this server; "
            "give --token, or listen on 127.0.0.1"
        )


def read_token(source: str | None, environ: Mapping[str, str]) -> str | None:
    """The token that an option names: a variable, or ``@`` and a file that only its owner can read.

    The token itself is no option, as every user of the machine sees the command lines that run.

    Raises:
        ConfigError: where there is none, or where it is too weak or too widely readable; without quoting it.
    """
    if source is None:
        return None
    if source.startswith("@"):
        token, where = _token_file(Path(source[1:])), f"the file {one_line(source[1:])}"
    elif source in environ:
        token, where = environ[source].strip(), f"the variable {one_line(source)}"
    else:
        raise ConfigError("--token takes the name of a variable that is set, or @ and the path of a file")
    if not _TOKEN.fullmatch(token):
        raise ConfigError(f"The token in {where} should be 16 to 512 visible ASCII characters")
    return token


def run_apps(sites: Sequence[Site], *, say: Say) -> None:
    """Serve until SIGTERM or SIGINT; see :func:`serve_apps`."""

    async def run() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        _allow_files(len(sites) * MAX_CONNECTIONS + _OTHER_FILES)
        await serve_apps(sites, say=say, stop=stop)

    asyncio.run(run())


async def serve_apps(sites: Sequence[Site], *, say: Say, stop: asyncio.Event) -> None:
    """Serve all of them or none, until ``stop`` is set.

    Args:
        sites: the applications, each already guarded.
        say: takes ``<url> <about>`` of each site once it answers.
        stop: running requests then have ``STOP_S`` seconds to finish.

    Raises:
        ConfigError: naming the address that cannot be listened on.
    """
    _silence()
    with ExitStack() as stack:
        listeners = [stack.enter_context(closing(_listener(site.host, site.port))) for site in sites]
        servers = [
            _Server(site.app, _ready(site, listener, say)) for site, listener in zip(sites, listeners, strict=True)
        ]
        async with asyncio.TaskGroup() as group:
            for server, listener in zip(servers, listeners, strict=True):
                group.create_task(server.serve(sockets=[listener]))
            await stop.wait()
            for server in servers:
                server.should_exit = True


class _Protocol(H11Protocol):
    """Keeps no connection whose client does not send the head of a request, and not too many of the others."""

    _due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the base class
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
        else:
            self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._due is None:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._due = self.loop.call_later(HEAD_S, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs it, as several of them share a process, and says when it answers."""

    def __init__(self, app: ASGIApp, on_ready: Callable[[], object]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="asyncio",
                http=_Protocol,
                ws="none",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=IDLE_S,
                timeout_graceful_shutdown=STOP_S,
            )
        )
        self._on_ready = on_ready

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets=sockets)
        self._on_ready()


def _ready(site: Site, listener: socket.socket, say: Say) -> Callable[[], object]:
    host, port = f"[{site.host}]" if ":" in site.host else site.host, listener.getsockname()[1]
    return lambda: say(f"http://{host}:{port} {site.about}")


def _silence() -> None:
    """What clients do wrong is answered to them; it is nothing to be printed here."""
    library = logging.getLogger("uvicorn")
    library.handlers, library.propagate = [logging.NullHandler()], False


def _allow_files(wanted: int) -> None:
    """Have as many files and connections open as are wanted, or as the system lets this process have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _listener(host: str, port: int) -> socket.socket:
    """A bound socket; asyncio sets TCP_NODELAY on its connections only where the protocol is named."""
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
            raise ConfigError(f"Something listens on {shown} already; stop it or choose another port") from exc
        raise ConfigError(f"Cannot listen on {shown}: {getattr(exc, 'strerror', None) or exc}") from exc
    return listener


def _token_file(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe there would be waited for
        with os.fdopen(descriptor, "rb") as stream:
            status = os.fstat(descriptor)
            content = stream.read(_MAX_TOKEN_FILE) if stat.S_ISREG(status.st_mode) else b""
    except (OSError, ValueError) as exc:
        raise ConfigError(
            f"The token file {one_line(str(path))} cannot be read: {getattr(exc, 'strerror', exc)}"
        ) from exc
    if status.st_mode & 0o077:
        raise ConfigError(f"Others can read the token file {one_line(str(path))}; chmod 600 it")
    return content.decode("ascii", "replace").strip()
