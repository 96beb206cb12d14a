"""What can be wrong with a bus, by kind, so that a wrong password is never shown as a time-out."""

from __future__ import annotations

import re
import ssl
from typing import Literal, TypeAlias

import msgspec

from runner.errors import RunnerError
from runner.util.text import mask, one_line

BusErrorKind: TypeAlias = Literal["auth", "tls", "refused", "timeout", "permission", "other"]

_AUTH = re.compile(r"(?i)authori[sz]ation|authentication|credentials|nkey|seed")
_PERMISSION = re.compile(r"(?i)permissions violation for (publish|subscription) to \"([^\"]*)\"")
_CLIENT_CERTIFICATE = re.compile(r"(?i)alert.*(certificate|unknown ca)")
_GREETING_HINT = "is it a NATS server, and is NATS_TLS_FIRST as it wants it?"


class BusError(RunnerError):
    """The bus did not do what was asked.

    Args:
        kind: ``auth`` and ``tls`` need another setting, ``permission`` another right on the server; ``refused`` and
            ``timeout`` may pass by themselves.
        message: safe to show; secrets have no way into it.
        subject: what may not be published or subscribed, of a ``permission`` error.
    """

    def __init__(self, kind: BusErrorKind, message: str, *, subject: str = "") -> None:
        """Keep kind and subject beside the message."""
        super().__init__(message)
        self.kind = kind
        self.subject = subject


BusStatus: TypeAlias = Literal["connecting", "connected", "stalled", "disconnected", "closed"]


class BusState(msgspec.Struct, frozen=True):
    """How a connection is, and why: ``stalled`` is connected to a server that does not answer."""

    status: BusStatus
    kind: BusErrorKind | None = None
    reason: str = ""


class PlaintextRefused(ConnectionError):
    """The server offered no TLS although TLS is required; nothing was sent."""


def bus_error(exc: BaseException, servers: str) -> BusError:
    """What an error of the connection means.

    Args:
        exc: from the client, the system or the TLS library.
        servers: shown; without user information.
    """
    if isinstance(exc, BusError):
        return exc
    if isinstance(exc, PlaintextRefused):
        return BusError("tls", f"{servers} offers no TLS, which is required here; nothing was sent to it")
    if isinstance(exc, ssl.SSLError):
        return BusError("tls", _tls_message(exc, servers))
    if isinstance(exc, TimeoutError):
        return BusError("timeout", f"{servers} does not answer; {_GREETING_HINT}")
    if isinstance(exc, OSError):
        return BusError("refused", f"{servers} cannot be reached: {_shown(exc.strerror or str(exc))}; is it running?")
    return _server_error(str(exc), servers)


def _server_error(text: str, servers: str) -> BusError:
    if (denied := _PERMISSION.search(text)) is not None:
        what = "publish to" if denied[1].lower() == "publish" else "subscribe to"
        return BusError("permission", f"not allowed to {what} {one_line(denied[2])} on {servers}", subject=denied[2])
    if _AUTH.search(text):
        return BusError("auth", f"{servers} does not accept the credentials: {_shown(text)}")
    if "expecting INFO" in text:
        return BusError("other", f"{servers} does not greet; {_GREETING_HINT}")
    if "unexpected EOF" in text:
        return BusError("other", f"{servers} ended the connection: it stops, or we were too slow for it")
    if "stale connection" in text:
        return BusError("timeout", f"the connection with {servers} was cut: pings were not answered in time")
    return BusError("other", f"{servers}: {_shown(text)}")


def _tls_message(exc: ssl.SSLError, servers: str) -> str:
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"the certificate of {servers} is not accepted: {_shown(exc.verify_message)}; check NATS_CA and the host"
    reason = _shown(exc.reason or str(exc)).replace("_", " ").lower()
    if _CLIENT_CERTIFICATE.search(reason):
        return f"{servers} does not accept this client's certificate: {reason}; set NATS_CERT and NATS_KEY"
    return f"no TLS connection with {servers}: {reason}"


def _shown(text: str) -> str:
    return one_line(mask(text.removeprefix("nats: ")))
