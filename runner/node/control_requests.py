"""Parsing of control requests, and error replies to them: bounded, masked and safe to display."""

from __future__ import annotations

import logging

import msgspec

from runner.errors import RunnerError, log_failure
from runner.events.control import ARGS, Args, ControlError, Op
from runner.util.display_text import mask, one_line

logger = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 64 * 1024
MAX_ECHO_CHARS = 200
"""Maximum length of a request id and of an error message, which may both repeat text from the request."""


class RequestRejected(RunnerError):
    """A control request that the node rejects, with the error code, message and hint of the reply."""

    published_error_type = "refused"

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        """Store the code, message and hint of the reply."""
        super().__init__(message)
        self.code = code
        self.hint = hint


class _RequestId(msgspec.Struct):
    """The id alone, which a reply needs even if the rest of the request is invalid."""

    id: str = ""


def parse_request_id(payload: bytes) -> str:
    """Return the id of a request.

    Raises:
        RequestRejected: if the request is too large.
        msgspec.MsgspecError: if it is not a JSON object.
    """
    if len(payload) > MAX_REQUEST_BYTES:
        raise RequestRejected(
            "bad_request", f"a request may have at most {MAX_REQUEST_BYTES} bytes; this one has {len(payload)}"
        )
    return msgspec.json.decode(payload, type=_RequestId).id


def check_request_id(request_id: str) -> None:
    """Raise ``RequestRejected`` if the id is too long, or a reply would have to mask or escape it."""
    if safe_echo(request_id) != request_id:
        raise RequestRejected(
            "bad_request", f"an id must have at most {MAX_ECHO_CHARS} characters, all of them visible"
        )


def parse_args(op: Op, args: msgspec.Raw) -> Args:
    """Return the arguments of a request; raise ``msgspec.MsgspecError`` if they do not fit the operation."""
    return msgspec.json.decode(args, type=ARGS[op])


def to_control_error(exc: BaseException) -> ControlError:
    """Return the error of a reply; an unexpected exception is logged as well."""
    match exc:
        case RequestRejected():
            return ControlError(code=exc.code, message=safe_echo(str(exc)), hint=exc.hint)
        case RunnerError():
            return ControlError(code="refused", message=safe_echo(str(exc)))
        case msgspec.MsgspecError() | UnicodeDecodeError() | RecursionError():
            message = safe_echo(f"the request cannot be read: {exc}")
            return ControlError(code="bad_request", message=message, hint="see docs/events.md")
    log_failure(logger, "answering a request")(exc)
    return ControlError(code="internal", message=safe_echo(f"{type(exc).__name__}: {exc}"), hint="see the node's log")


def safe_echo(text: str) -> str:
    """Return an untrusted text for use in a reply: masked, on one line, of limited length."""
    return one_line(mask(text), MAX_ECHO_CHARS)
