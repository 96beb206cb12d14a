"""The server of an environment: its address, and probes of whether it is up and who it is."""

from __future__ import annotations

import asyncio
import re
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Literal, TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from runner.errors import ConfigError
from runner.types import Mode
from runner.util.display_text import masker, one_line
from runner.util.json_accessors import decode_json


class ServerAddress(msgspec.Struct, frozen=True):
    """Address and capabilities of one environment's server.

    The URL is untrusted text. It is in a struct because the config tree that environments are built from would
    interpolate ``${…}`` in a plain string.

    Attributes:
        url: ``http://HOST:PORT`` with an optional path. A user and password in the URL are sent but never shown;
            ``http://:TOKEN@HOST`` sends a bearer token.
        timeout_s: seconds for one request, from connecting to the last byte of the response.
        n_tasks: number of tasks that the server reports; None if it reports none.
        places: maximum number of episodes on the server, from the profile or from the server; None if it is unknown.
        lists_actions: whether the server has the paths ``/admissible`` and ``/world``, as this project's servers do.
        secrets: values that no text about the server shows, such as those of the variables it was started with.
        dialect: ``env`` for the dialect of AgentGym's server of the environment, ``createEnv`` for the dialect of
            servers with the path ``/createEnv``.
    """

    url: str
    timeout_s: float = 30.0
    n_tasks: int | None = None
    lists_actions: bool = False
    secrets: tuple[str, ...] = ()
    dialect: Literal["env", "createEnv"] = "env"
    places: int | None = None

    def __repr__(self) -> str:
        """Masks user and password, since it may appear in tracebacks and logs."""
        return f"ServerAddress({self.mask(self.url)!r}, timeout_s={self.timeout_s:g})"

    def mask(self, text: str) -> str:
        return masker(secrets=self.secrets)(text)

    @property
    def base(self) -> str:
        """URL to which request paths are appended, without a login; raises ``ConfigError`` if it is invalid."""
        parts = self._parts()
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"

    @property
    def login(self) -> dict[str, str]:
        """Header with a user and password, or a bearer token; raises ``ConfigError`` if it cannot be sent."""
        parts = self._parts()
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        if user:
            pair = f"{user}:{password}".encode("utf-8", "replace")
            return {"Authorization": f"Basic {b64encode(pair).decode('ascii')}"}
        if not all("!" <= letter <= "~" for letter in password):
            raise ConfigError("The token in an environment server's base_url must consist of visible ASCII characters")
        return {"Authorization": f"Bearer {password}"} if password else {}

    def _parts(self) -> SplitResult:
        problem = "must be http://HOST:PORT or https://HOST, optionally with a path"
        try:
            parts = urlsplit(self.url)
            if parts.scheme in ("http", "https") and parts.hostname and not (parts.query or parts.fragment):
                _ = parts.port
                return parts
        except ValueError as exc:
            problem = one_line(str(exc))
        raise ConfigError(f"Invalid address of an environment server: {problem}. Correct its base_url")


_Get: TypeAlias = Callable[[str], Awaitable[tuple[int, bytes]]]
ServerKind: TypeAlias = Literal["console", "agentgym", "wrong", "unknown"]

PROBE_TIMEOUT_S = 2.0
"""Default time limit for probing all servers together, in seconds."""
SLOW_AFTER_S = 0.5
"""Seconds until the greeting from which on a server counts as slow; a healthy server takes a few milliseconds."""
MAX_RESPONSE_BYTES = 64 * 1024
"""Bytes of a body that are read."""
NOT_LISTENING = "nothing listens there"
BUSY = "busy: it accepts connections, but does not reply in time"
UNAUTHORIZED, METHOD_NOT_ALLOWED = 401, 405
"""HTTP status if a login is required, and HTTP status of a GET on a path that accepts only POST."""

_AGENTGYM_GREETING = re.compile(r"This is environment (?P<env>[^\n]{1,100})\.")
_CONSOLE_GREETING = re.compile(
    r"AgentGym Console [^\s:]{1,50}: (?P<env>[^\n]{1,100}) \((?P<mode>strict|compat), (?P<label>[^\n]{1,200})\)"
)


class ServerIdentity(msgspec.Struct, frozen=True):
    """Identity of a server, read from its greeting.

    Attributes:
        kind: ``console`` for this project's server of the expected environment, ``agentgym`` for AgentGym's server of
            it, ``wrong`` for a server of something else, ``unknown`` for a server that may be the right one.
    """

    kind: ServerKind
    env: str = ""
    mode: Mode | None = None
    label: str = ""


def identify_server(env: str, payload: object) -> ServerIdentity:
    """``payload`` is the decoded JSON of the reply to ``GET /`` with status 200; None if the body is not JSON."""
    if not isinstance(payload, str) or len(payload) > 500:
        return ServerIdentity("wrong")
    kind: ServerKind
    if match := _CONSOLE_GREETING.fullmatch(payload):
        kind = "console" if match["env"].lower() == env.lower() else "wrong"
        mode: Mode = "strict" if match["mode"] == "strict" else "compat"
        return ServerIdentity(kind, one_line(match["env"]), mode, one_line(match["label"]))
    from runner.envs.http.dialects import dialect_for  # imported late: most probes find no server

    dialect = dialect_for(env)
    greeting = None if dialect is None else dialect.greeting
    if match := _AGENTGYM_GREETING.fullmatch(payload):
        kind = "agentgym" if match["env"].lower() == (greeting or env).lower() else "wrong"
        return ServerIdentity(kind, one_line(match["env"]), "compat")
    if payload != "ok" or dialect is None:
        return ServerIdentity("unknown")
    return ServerIdentity("wrong") if greeting else ServerIdentity("agentgym", mode="compat")


class ServerState(msgspec.Struct, frozen=True, kw_only=True):
    """Result of probing one address.

    Attributes:
        status: ``busy`` means that the connection was accepted, but no reply came in time.
        address: the probed address, with the number of tasks, places and dialect that the server reports.
        gone: whether nothing replies at all: the connection was refused or dropped, or no reply came in time.
    """

    status: Literal["up", "slow", "busy", "wrong", "down"]
    address: ServerAddress
    identity: ServerIdentity | None = None
    latency_s: float | None = None
    open: int | None = None
    http_status: int | None = None
    cause: str | None = None
    gone: bool = False

    @property
    def usable(self) -> bool:
        return self.status in ("up", "slow")


class _Health(msgspec.Struct):
    """Fields of the reply to ``/health``, a path that only this project's own servers have."""

    open: int | None = None
    n_tasks: int | None = None
    limit: int | None = None


def probe_servers(addresses: Mapping[str, ServerAddress], within_s: float = PROBE_TIMEOUT_S) -> dict[str, ServerState]:
    """Probe all servers at once; not for a thread that runs an event loop.

    A server that does not respond in time is ``busy`` if it accepted the connection, else ``down``.
    """

    async def probe_all() -> list[ServerState]:
        return await asyncio.gather(*(_probe(env, address, within_s) for env, address in addresses.items()))

    return dict(zip(addresses, asyncio.run(probe_all()), strict=True)) if addresses else {}


async def _probe(env: str, address: ServerAddress, within_s: float) -> ServerState:
    # imported late, because they are slow to import, and not within the time limit
    import httpx

    from runner.util.http import send_request

    connected = asyncio.Event()

    async def get(path: str) -> tuple[int, bytes]:
        url, login, body = address.base + path, address.login, bytearray()
        async with send_request("GET", url, None, login, keepalive_s=0.0, on_connected=connected.set) as response:
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) >= MAX_RESPONSE_BYTES:
                    break
            return response.status_code, bytes(body[:MAX_RESPONSE_BYTES])

    down = ServerState(status="down", address=address, cause=f"no answer within {within_s:g} s", gone=True)
    try:
        async with asyncio.timeout(within_s):
            return await _identify(env, address, get)
    except TimeoutError:
        return msgspec.structs.replace(down, status="busy", cause=BUSY) if connected.is_set() else down
    except httpx.TransportError as exc:
        # a server has replied whose certificate is rejected, which is a ValueError
        gone = not isinstance(exc, httpx.RemoteProtocolError) and not isinstance(exc.__cause__, ValueError)
        is_refused = isinstance(exc.__cause__, ConnectionRefusedError)
        cause = NOT_LISTENING if is_refused else one_line(address.mask(str(exc)))
        return msgspec.structs.replace(down, cause=cause, gone=gone)
    except (ConfigError, httpx.InvalidURL) as exc:
        return msgspec.structs.replace(down, cause=one_line(address.mask(str(exc))), gone=False)


async def _identify(env: str, address: ServerAddress, get: _Get) -> ServerState:
    import httpx

    started = time.monotonic()
    status, body = await get("/")
    latency_s = time.monotonic() - started
    identity = ServerIdentity("unknown" if status == 404 else "wrong")
    if status == 200:
        identity = identify_server(env, decode_json(body))
    known = partial(ServerState, identity=identity, latency_s=latency_s, http_status=status)
    if identity.kind == "unknown" and (await get("/createEnv"))[0] == METHOD_NOT_ALLOWED:
        address = msgspec.structs.replace(address, dialect="createEnv")
    elif status != 200 or identity.kind == "wrong":
        shown = one_line(address.mask(body[:200].decode(errors="replace")), 120)
        cause = f"GET / returned HTTP {status}: {shown}"
        return known(status="wrong", address=address, cause=cause, gone=status in (502, 503, 504))
    is_console, health = identity.kind == "console", _Health()
    if is_console:  # without its health, too, since the greeting alone shows that the server works
        with suppress(httpx.TransportError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            health = msgspec.json.decode((await get("/health"))[1], type=_Health)
    places = min((limit for limit in (address.places, health.limit) if limit is not None), default=None)
    address = msgspec.structs.replace(address, n_tasks=health.n_tasks, lists_actions=is_console, places=places)
    return known(status="slow" if latency_s > SLOW_AFTER_S else "up", address=address, open=health.open)
