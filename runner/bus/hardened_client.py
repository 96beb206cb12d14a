"""Client of one connection to one server, on nats-py, and its options; ``runner.bus.connection`` replaces lost ones.

nats-py reconnects by itself, too, but it forgets why a connection was lost, keeps keys that have been replaced, and may
wait for a dead socket. So that is switched off, by the options and by the private methods that are overridden here.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from nats.aio.client import Client, RawCredentials
from nats.errors import Error, ProtocolError, UnexpectedEOF
from nats.errors import TimeoutError as NatsTimeoutError

from runner.bus.address import BusAddress, TlsSettings
from runner.bus.errors import BusError, PlaintextRefused, bus_error
from runner.errors import ConfigError, catch_foreign
from runner.util.files import read_secret

logger = logging.getLogger(__name__)

OPTIONS: Final[dict[str, Any]] = {
    "allow_reconnect": False,
    "ping_interval": 5,
    "max_outstanding_pings": 2,
    "connect_timeout": 2,
    "pending_size": -1,
}
CLOSE_TIMEOUT_S = 2.0
MAX_DENIED_SUBJECTS = 100
MAX_ANNOUNCED = 100
"""Maximum number of other servers that a server can make known."""
UNADVERTISED_TIMEOUT_S = 0.5
"""Seconds to wait for JetStream when the server does not advertise it.

A subscriber to ``>`` receives the API request too, so the server sends no immediate "no responders" reply.
"""

_JWT = re.compile(r"-+BEGIN NATS USER JWT-+\s+(\S+)\s")
_SEED = re.compile(r"-+BEGIN USER NKEY SEED-+\s+(\S+)\s")
_CREDENTIALS = """-----BEGIN NATS USER JWT-----
{}
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
{}
------END USER NKEY SEED------
"""


class Server(NamedTuple):
    """URL of a server, and the host name that its certificate must have, if that is not the URL's."""

    url: str
    tls_name: str | None = None


class HardenedNatsClient(Client):
    """nats-py client with fixes for stalled read loops, plaintext downgrades and lost error causes.

    Attributes:
        lost: set when the connection has ended.
        denied: errors about denied subjects, which nats-py lowercases.
    """

    def __init__(self, address: BusAddress, server: Server) -> None:
        super().__init__()
        self.lost = asyncio.Event()
        self.denied: dict[str, BusError] = {}
        self._address = address
        self._server = server
        self._cause: BaseException = UnexpectedEOF()
        self._n_messages = 0
        self._is_open = False

    async def open(self, name: str, options: dict[str, Any], timeout_s: float) -> None:
        """Connect within ``timeout_s`` seconds; raises ``BusError``, and then the client is closed."""
        problems: list[BaseException] = []
        connecting = self.connect(
            [self._server.url], name=name, error_cb=_log, tls_hostname=self._server.tls_name, **options
        )
        attempt = asyncio.create_task(connecting)  # a task of its own, because nats-py may swallow a cancellation
        try:
            done, _ = await asyncio.wait({attempt}, timeout=timeout_s)
            with catch_foreign(problems.append):  # a foreign server may send any greeting, which may raise anything
                if not done:
                    raise TimeoutError
                attempt.result()
            if not self.is_connected:  # nats-py accepts any reply as a greeting
                raise _rejection(problems[0] if problems else ConnectionResetError(), self._address)
            self._is_open = True
        finally:
            if not self._is_open:
                attempt.cancel()
                await asyncio.wait({attempt}, timeout=CLOSE_TIMEOUT_S)
                await self.shut()

    async def shut(self) -> None:
        """Close the client; waits at most ``CLOSE_TIMEOUT_S`` for a hanging server."""
        # In its own task: a future it awaits may be cancelled, which must not look like a cancellation of this one.
        closing = asyncio.create_task(self.close())
        await asyncio.wait({closing}, timeout=CLOSE_TIMEOUT_S)
        if self._transport is not None:
            self._transport.close()  # type: ignore[no-untyped-call]
        if not closing.cancel() and not closing.cancelled() and (exc := closing.exception()) is not None:
            logger.debug("closing a client: %s", exc)

    @property
    def loss(self) -> BusError:
        """Why the connection has ended."""
        return bus_error(self._cause, self._address.display_url)

    @property
    def known_servers(self) -> list[Server]:
        """The server of this client, and those that it has announced as the others of its cluster."""
        if not self._address.follows_announced:
            return [self._server]
        host = self._server.tls_name or urlsplit(self._server.url).hostname
        tls_name = None if self._host_is_ip(host) else host  # certificates rarely name the announced IP addresses
        others = [
            Server(uri.geturl(), tls_name if self._host_is_ip(uri.hostname) else None)
            for uri in self.discovered_servers[:MAX_ANNOUNCED]
        ]
        return [self._server, *others]

    async def is_responsive(self, timeout_s: int) -> bool:
        """Whether the server answers a ping within ``timeout_s`` seconds, or the connection has ended.

        A message since the last call counts as an answer, so that a busy or idle subscriber sends no pings.
        """
        if self._reading_task is None or self._reading_task.done():
            await self._process_op_err(ProtocolError())
        before, self._n_messages = self._n_messages, self.stats["in_msgs"]
        if self._n_messages != before:
            return True
        try:
            await self.flush(timeout_s)
        except NatsTimeoutError:
            return self.lost.is_set()
        except (Error, OSError):
            pass
        return True

    async def _select_next_server(self) -> None:
        # One attempt, whose error is raised. nats-py repeats it, and reports the error only to a callback.
        (self._current_server,) = self._server_pool
        await self._connect_to_server(self._current_server)

    def _connect_command(self) -> bytes:
        # The CONNECT line has the credentials. nats-py follows the server's offer even with ``tls://`` or TLS settings,
        # so a server in the middle could downgrade the connection.
        if self._address.tls_required:
            writer = getattr(self._transport, "_io_writer", None)
            if writer is None or writer.get_extra_info("ssl_object") is None:
                raise PlaintextRefused
        return super()._connect_command()

    async def _process_pong(self) -> None:
        # Replace the future of an abandoned ping; setting a cancelled future would end the read loop.
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        # Ignore malformed headers; their exception would silently end the read loop.
        try:
            return await super()._process_headers(headers)
        except (UnicodeDecodeError, IndexError):
            return None

    async def _send_ping(self, future: asyncio.Future[Any] | None = None) -> None:
        # Queue the ping behind earlier data; nats-py's own ping overtakes it, so ``flush`` would prove nothing.
        self._pongs.append(future or asyncio.get_running_loop().create_future())
        await self._send_command(b"PING\r\n")
        await self._flush_pending()

    async def _process_op_err(self, e: Exception) -> None:
        # Only note the loss: closing the client may take long, and data that is left would wait for a dead socket.
        if self.is_connected:
            self._cause = UnexpectedEOF() if isinstance(e, ConnectionResetError | BrokenPipeError) else e  # unread data
            self._process_disconnect()
            self._pending, self._pending_data_size = [], 0
            self.lost.set()

    async def _process_err(self, err_msg: str) -> None:
        error = Error(err_msg.strip("'"))
        if "permissions violation" not in err_msg:
            await self._process_op_err(error)
        elif len(self.denied) < MAX_DENIED_SUBJECTS:
            denial = bus_error(error, self._address.display_url)
            self.denied[denial.subject.lower()] = denial


def _rejection(exc: BaseException, address: BusAddress) -> BusError:
    if not isinstance(exc, ConnectionResetError | BrokenPipeError):
        return bus_error(exc, address.display_url)
    text = f"{address.display_url} closed the connection; "
    if address.tls_required:
        return BusError("tls", text + "it may require NATS_CERT and NATS_KEY")
    return BusError("other", text + "is it a NATS server?")


async def _log(exc: Exception) -> None:
    logger.debug("an error of the client: %s", type(exc).__name__)  # such as a slow consumer


def advertises_jetstream(client: Client) -> bool:
    """Whether the server advertises JetStream; if not, another server (cluster or leaf node) may still provide it."""
    return bool(client._server_info.get("jetstream"))


def connect_options(address: BusAddress) -> dict[str, Any]:
    """Return the arguments of ``Client.connect`` for any server of an address; reads the secret files.

    Raises:
        BusError: a file holds no usable key or certificate.
        ConfigError: the URL is invalid, or a secret file is missing or readable by others.
    """
    address = address.with_split_login()
    options = {**OPTIONS, **_login(address)}
    if address.tls_required:
        tls = address.tls or TlsSettings()
        options |= {"tls": _tls_context(tls), "tls_handshake_first": tls.handshake_first}
    return options


def _login(address: BusAddress) -> dict[str, Any]:
    if address.creds_file:
        return {"user_credentials": _credentials(read_secret(Path(address.creds_file), "NATS_CREDS"))}
    if address.nkey_file:
        return {"nkeys_seed_str": _checked_seed(read_secret(Path(address.nkey_file), "NATS_NKEY").strip(), "NATS_NKEY")}
    return {"user": address.user, "password": address.password, "token": address.token}


def _credentials(text: str) -> RawCredentials:
    # Rebuilt from their parts, because nats-py loops forever when one is missing.
    jwt, seed = _JWT.search(text), _SEED.search(text)
    if jwt is None or seed is None:
        raise BusError("auth", "the NATS_CREDS file has no user JWT and key; download it again")
    return RawCredentials(_CREDENTIALS.format(jwt[1], _checked_seed(seed[1], "NATS_CREDS")))


def _checked_seed(seed: str, variable: str) -> str:
    import nkeys  # type: ignore[import-untyped]  # untyped, and rarely needed

    try:
        nkeys.from_seed(bytearray(seed.encode())).wipe()
    except (nkeys.NkeysError, ValueError):
        # The cause may contain the key.
        raise BusError("auth", f"the {variable} file has no valid nkey seed; a user seed starts with SU") from None
    return seed


def _tls_context(tls: TlsSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.cert:
            # Without a password, OpenSSL prompts for one at the terminal.
            context.load_cert_chain(tls.cert, tls.key, password="")
    except ssl.SSLError as exc:
        reason = (exc.reason or "not in PEM format").replace("_", " ").lower()
        raise BusError("tls", f"the NATS_CA, NATS_CERT or NATS_KEY file is invalid: {reason}") from exc
    except OSError as exc:
        raise ConfigError(f"the NATS_CA, NATS_CERT or NATS_KEY file cannot be read: {exc.strerror}") from exc
    return context
