"""A NATS client that keeps to its address: keys as the files say now, never plaintext where TLS is required."""

from __future__ import annotations

import asyncio
import re
import ssl
from pathlib import Path
from typing import Any

from nats.aio.client import Client, RawCredentials
from nats.errors import UnexpectedEOF

from runner.bus.address import BusAddress, TlsSettings
from runner.bus.errors import BusError, PlaintextRefused
from runner.errors import ConfigError
from runner.util.files import read_secret

OPTIONS: dict[str, Any] = {
    "max_reconnect_attempts": -1,
    "reconnect_time_wait": 0.1,
    "ping_interval": 5,
    "max_outstanding_pings": 2,
    "connect_timeout": 2,
    "pending_size": -1,
}
"""The options that held against every outage; the defaults hang for minutes and hide the cause."""

UNADVERTISED_TIMEOUT_S = 0.5
"""Seconds to wait for JetStream where the server says that it has none: one who listens to all takes the question."""

_JWT = re.compile(r"-+BEGIN NATS USER JWT-+\s+(\S+)\s")
_SEED = re.compile(r"-+BEGIN USER NKEY SEED-+\s+(\S+)\s")
_CREDENTIALS = """-----BEGIN NATS USER JWT-----
{}
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
{}
------END USER NKEY SEED------
"""


class HardenedNatsClient(Client):
    """The client of nats-py with some of its traps closed.

    Args:
        tls_required: refuse to log in over plaintext. With ``tls://`` or TLS settings alone the client follows what
            the server offers, and a server in the middle offers none.

    Attributes:
        disconnect_cause: what ended the last connection.
    """

    def __init__(self, *, tls_required: bool) -> None:
        """Not connected yet."""
        super().__init__()
        self._tls_required = tls_required
        self.disconnect_cause: Exception | None = None

    def drop_socket(self) -> None:
        """Close what a failed attempt to reconnect has opened, which the next one would only forget."""
        if self._transport is not None:
            self._transport.close()  # type: ignore[no-untyped-call]

    def _connect_command(self) -> bytes:
        """What is sent first, with the credentials in it; at every reconnect, too."""
        if self._tls_required:
            writer = getattr(self._transport, "_io_writer", None)
            if writer is None or writer.get_extra_info("ssl_object") is None:
                raise PlaintextRefused
        return super()._connect_command()

    async def _process_pong(self) -> None:
        """A pong for a ping nobody waits for any more: setting its cancelled future would end the read loop."""
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        """Bytes that are no headers count as none: what they raise would end the read loop, for ever unnoticed."""
        try:
            return await super()._process_headers(headers)
        except (UnicodeDecodeError, IndexError):
            return None

    async def _send_ping(self, future: asyncio.Future[Any] | None = None) -> None:
        """A ping behind what was sent before it; the client's own overtakes that, and ``flush`` would prove nothing."""
        self._pongs.append(future or asyncio.get_running_loop().create_future())
        await self._send_command(b"PING\r\n")
        await self._flush_pending()

    async def _process_op_err(self, e: Exception) -> None:
        """The connection breaks; the client forgets the cause before it tells of it."""
        if self.is_connected:  # a reset is an end that came before everything was read
            self.disconnect_cause = UnexpectedEOF() if isinstance(e, ConnectionResetError | BrokenPipeError) else e
        await super()._process_op_err(e)

    @property
    def is_reading(self) -> bool:
        """Whether it still listens to the server."""
        return self._reading_task is not None and not self._reading_task.done()


def advertises_jetstream(client: Client) -> bool:
    """Whether the server itself has JetStream; without, another one may still answer for it (cluster, leaf node)."""
    return bool(client._server_info.get("jetstream"))


def connect_options(address: BusAddress) -> dict[str, Any]:
    """What ``Client.connect`` needs for an address, whose secret files are read now.

    Raises:
        BusError: for files that hold no usable key or certificate.
        ConfigError: for a bad URL, and for secret files that are missing or open to others.
    """
    address = address.with_split_login()
    options = {**OPTIONS, "servers": address.servers, **_login(address)}
    if address.tls_required:
        tls = address.tls or TlsSettings()
        options |= {"tls": _tls_context(tls), "tls_handshake_first": tls.handshake_first}
    return options


def _login(address: BusAddress) -> dict[str, Any]:
    if address.creds_file:
        return {"user_credentials": _credentials(read_secret(Path(address.creds_file), "NATS_CREDS"))}
    if address.nkey_file:
        return {"nkeys_seed_str": _checked_seed(read_secret(Path(address.nkey_file), "NATS_NKEY").strip())}
    return {"user": address.user, "password": address.password, "token": address.token}


def _credentials(text: str) -> RawCredentials:
    """Only well-formed ones are handed on: the client would look for a missing part for ever."""
    jwt, seed = _JWT.search(text), _SEED.search(text)
    if jwt is None or seed is None:
        raise BusError("auth", "the file of NATS_CREDS holds no user JWT with its key; download it again")
    return RawCredentials(_CREDENTIALS.format(jwt[1], _checked_seed(seed[1])))


def _checked_seed(seed: str) -> str:
    import nkeys  # type: ignore[import-untyped]  # has no types, and is rarely needed

    try:
        nkeys.from_seed(bytearray(seed.encode())).wipe()
    except (nkeys.NkeysError, ValueError):
        # The cause may quote the key.
        raise BusError("auth", "the key file of the bus holds no nkey seed; it begins with SU") from None
    return seed


def _tls_context(tls: TlsSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.cert:
            # Without a password OpenSSL would ask for one at the terminal.
            context.load_cert_chain(tls.cert, tls.key, password="")
    except ssl.SSLError as exc:
        reason = (exc.reason or "not in PEM format").replace("_", " ").lower()
        raise BusError("tls", f"the files of NATS_CA, NATS_CERT or NATS_KEY cannot be used: {reason}") from exc
    except OSError as exc:
        raise ConfigError(f"the files of NATS_CA, NATS_CERT or NATS_KEY cannot be read: {exc.strerror}") from exc
    return context
