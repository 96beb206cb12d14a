"""NATS client and its connect options: key files are read at connect, plaintext is refused where TLS is required."""

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
"""Options that recovered from every tested outage; nats-py's defaults hang for minutes and hide the cause."""
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


class HardenedNatsClient(Client):
    """nats-py client with fixes for stalled read loops, plaintext downgrades and lost error causes.

    Args:
        tls_required: refuse to log in over plaintext. nats-py alone follows the server's offer even with ``tls://``
            or TLS settings, so a server in the middle could downgrade the connection.

    Attributes:
        disconnect_cause: the error that ended the last connection.
    """

    def __init__(self, *, tls_required: bool) -> None:
        super().__init__()
        self._tls_required = tls_required
        self.disconnect_cause: Exception | None = None

    def drop_socket(self) -> None:
        """Close the socket of a failed reconnect attempt, which the next attempt would leak."""
        if self._transport is not None:
            self._transport.close()  # type: ignore[no-untyped-call]

    def _connect_command(self) -> bytes:
        # The CONNECT line has the credentials and is sent at each reconnect.
        if self._tls_required:
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
        # Store the cause of a disconnect, which nats-py discards before its callback runs.
        if self.is_connected:  # a reset is an EOF with unread data
            self.disconnect_cause = UnexpectedEOF() if isinstance(e, ConnectionResetError | BrokenPipeError) else e
        await super()._process_op_err(e)

    @property
    def is_reading(self) -> bool:
        return self._reading_task is not None and not self._reading_task.done()


def advertises_jetstream(client: Client) -> bool:
    """Whether the server advertises JetStream; if not, another server (cluster or leaf node) may still provide it."""
    return bool(client._server_info.get("jetstream"))


def connect_options(address: BusAddress) -> dict[str, Any]:
    """Return the arguments of ``Client.connect`` for an address; reads the secret files.

    Raises:
        BusError: a file holds no usable key or certificate.
        ConfigError: the URL is invalid, or a secret file is missing or readable by others.
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
