"""Bus errors and states. ``bus_error`` classifies errors, so that a wrong password is not reported as a time-out."""

from __future__ import annotations

import os
import re
import ssl
from typing import Final, Literal, TypeAlias

import msgspec
import nats.errors

from runner.errors import RunnerError
from runner.util.display_text import mask, one_line

BUS_ERRORS: Final = (nats.errors.Error, OSError)
"""Errors of a client operation on the bus, including time-outs."""

BusErrorKind: TypeAlias = Literal["auth", "tls", "refused", "timeout", "permission", "other"]

_AUTH = re.compile(r"(?i)authori[sz]ation|authentication|credentials|nkey|seed")
_PERMISSION = re.compile(r"(?i)permissions violation for (publish|subscription) to \"([^\"]*)\"")
_CLIENT_CERTIFICATE = re.compile(r"(?i)alert.*(certificate|unknown ca)")
_GREETING_HINT = "check that it is a NATS server and that NATS_TLS_FIRST matches its settings"


class BusError(RunnerError):
    """Failed operation on the bus.

    Args:
        kind: ``auth`` and ``tls`` need other settings, ``permission`` needs another right on the server; ``refused``
            and ``timeout`` may be temporary; ``other`` is any other error that the server reports or causes.
        message: text without secrets.
        subject: the denied subject of a ``permission`` error.
    """

    def __init__(self, kind: BusErrorKind, message: str, *, subject: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.subject = subject


BusStatus: TypeAlias = Literal["connecting", "connected", "stalled", "disconnected", "closed"]


class BusState(msgspec.Struct, frozen=True):
    """State of a connection and its reason; ``stalled`` means connected to a server that does not answer."""

    status: BusStatus
    kind: BusErrorKind | None = None
    reason: str = ""


class PlaintextRefused(ConnectionError):
    """TLS is required, but the server offers none; no credentials were sent."""


def bus_error(exc: BaseException, servers: str) -> BusError:
    """Classify an error of a connection; ``servers`` are the URLs for the message, without user information."""
    # PlaintextRefused, SSLError and TimeoutError are kinds of OSError, so they precede it.
    if isinstance(exc, BusError):
        return exc
    if isinstance(exc, PlaintextRefused):
        return BusError(
            "tls", f"{servers} offers no TLS, but TLS is required; no credentials were sent; check its TLS settings"
        )
    if isinstance(exc, ssl.SSLError):
        return BusError("tls", _tls_message(exc, servers))
    if isinstance(exc, TimeoutError):
        return BusError("timeout", f"{servers} does not answer; {_GREETING_HINT}")
    if isinstance(exc, OSError):
        number = exc.errno or 0  # asyncio replaces the system's words by its own; those of a name have none above 0
        reason = os.strerror(number) if number > 0 else error_text(exc, exc.strerror)
        return BusError("refused", f"{servers} cannot be reached: {reason}; check that it is running")
    return _server_error(exc, servers)


def error_text(exc: BaseException, text: str | None = None) -> str:
    """Describe an error on one line without secrets, by ``text`` if given; by its class if it has no text."""
    return one_line(mask((text or str(exc)).removeprefix("nats: "))) or type(exc).__name__


def _server_error(exc: BaseException, servers: str) -> BusError:
    text = str(exc)
    if (denied := _PERMISSION.search(text)) is not None:
        operation = "publish to" if denied[1].lower() == "publish" else "subscribe to"
        text = f"not allowed to {operation} {one_line(denied[2])} on {servers}; grant it on the server"
        return BusError("permission", text, subject=denied[2])
    if _AUTH.search(text):
        return BusError("auth", f"{servers} does not accept the credentials: {error_text(exc)}; check them")
    if "expecting INFO" in text:
        return BusError("other", f"{servers} sends no NATS greeting; {_GREETING_HINT}")
    if "unexpected EOF" in text:
        reason = "it is stopping, or this client was too slow"
        return BusError("other", f"{servers} closed the connection: {reason}; check the server's log")
    if "stale connection" in text:
        reason = "pings were not answered in time"
        return BusError("timeout", f"the connection to {servers} was closed: {reason}; check the network")
    return BusError("other", f"{servers}: {error_text(exc)}; check the server's log")


def _tls_message(exc: ssl.SSLError, servers: str) -> str:
    if isinstance(exc, ssl.SSLCertVerificationError):
        cause = error_text(exc, exc.verify_message)
        return f"the certificate of {servers} was rejected: {cause}; check NATS_CA and the host name"
    reason = error_text(exc, exc.reason).replace("_", " ").lower()
    if _CLIENT_CERTIFICATE.search(reason):
        return f"{servers} does not accept this client's certificate: {reason}; set NATS_CERT and NATS_KEY"
    return f"no TLS connection to {servers}: {reason}; check that the server offers TLS on this port"
