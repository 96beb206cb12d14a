"""Bus errors and states. ``bus_error`` classifies errors, so that a wrong password is not reported as a time-out."""

from __future__ import annotations

import re
import ssl
from typing import Literal, TypeAlias

import msgspec

from runner.errors import RunnerError
from runner.util.display_text import mask, one_line

BusErrorKind: TypeAlias = Literal["auth", "tls", "refused", "timeout", "permission", "other"]

_AUTH = re.compile(r"(?i)authori[sz]ation|authentication|credentials|nkey|seed")
_PERMISSION = re.compile(r"(?i)permissions violation for (publish|subscription) to \"([^\"]*)\"")
_CLIENT_CERTIFICATE = re.compile(r"(?i)alert.*(certificate|unknown ca)")
_GREETING_HINT = "check that it is a NATS server and that NATS_TLS_FIRST matches its settings"


class BusError(RunnerError):
    """Failed operation on the bus.

    Args:
        kind: ``auth`` and ``tls`` need other settings, ``permission`` needs another right on the server; ``refused``
            and ``timeout`` may be temporary.
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
    if isinstance(exc, BusError):
        return exc
    if isinstance(exc, PlaintextRefused):
        return BusError("tls", f"{servers} offers no TLS, but TLS is required; no credentials were sent")
    if isinstance(exc, ssl.SSLError):
        return BusError("tls", _tls_message(exc, servers))
    if isinstance(exc, TimeoutError):
        return BusError("timeout", f"{servers} does not answer; {_GREETING_HINT}")
    if isinstance(exc, OSError):
        reason = _masked(exc.strerror or str(exc))
        return BusError("refused", f"{servers} cannot be reached: {reason}; check that it is running")
    return _server_error(str(exc), servers)


def _server_error(text: str, servers: str) -> BusError:
    if (denied := _PERMISSION.search(text)) is not None:
        operation = "publish to" if denied[1].lower() == "publish" else "subscribe to"
        text = f"not allowed to {operation} {one_line(denied[2])} on {servers}"
        return BusError("permission", text, subject=denied[2])
    if _AUTH.search(text):
        return BusError("auth", f"{servers} does not accept the credentials: {_masked(text)}")
    if "expecting INFO" in text:
        return BusError("other", f"{servers} sends no NATS greeting; {_GREETING_HINT}")
    if "unexpected EOF" in text:
        return BusError("other", f"{servers} closed the connection: it is stopping, or this client was too slow")
    if "stale connection" in text:
        return BusError("timeout", f"the connection to {servers} was closed: pings were not answered in time")
    return BusError("other", f"{servers}: {_masked(text)}")


def _tls_message(exc: ssl.SSLError, servers: str) -> str:
    if isinstance(exc, ssl.SSLCertVerificationError):
        cause = _masked(exc.verify_message)
        return f"the certificate of {servers} was rejected: {cause}; check NATS_CA and the host name"
    reason = _masked(exc.reason or str(exc)).replace("_", " ").lower()
    if _CLIENT_CERTIFICATE.search(reason):
        return f"{servers} does not accept this client's certificate: {reason}; set NATS_CERT and NATS_KEY"
    return f"no TLS connection to {servers}: {reason}"


def _masked(text: str) -> str:
    return one_line(mask(text.removeprefix("nats: ")))
