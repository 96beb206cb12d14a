"""Requests as they come in, and errors as they go out: bounded, and safe to show whoever sent what."""

from __future__ import annotations

import logging

import msgspec

from runner.errors import RunnerError, log_failure
from runner.events.control import ARGS, Args, ControlError, Op
from runner.util.text import mask, one_line

logger = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 64 * 1024
MAX_ECHO_CHARS = 200
"""Characters of an id, and of an error's message: both may repeat what was sent."""


class RequestRejected(RunnerError):
    """A request that is not obeyed, and why."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        """Take what the reply will say."""
        super().__init__(message)
        self.code = code
        self.hint = hint


class _RequestId(msgspec.Struct):
    """What a reply needs of a request that cannot be read otherwise."""

    id: str = ""


def parse_request_id(payload: bytes) -> str:
    """The id of a request.

    Raises:
        Refused: when the request is too large.
        msgspec.MsgspecError: when it is none.
    """
    if len(payload) > MAX_REQUEST_BYTES:
        raise RequestRejected(
            "bad_request", f"a request may have {MAX_REQUEST_BYTES} bytes, this one has {len(payload)}"
        )
    return msgspec.json.decode(payload, type=_RequestId).id


def check_request_id(request_id: str) -> None:
    """Raise ``RequestRejected`` for an id that a reply does not repeat as it is."""
    if safe_echo(request_id) != request_id:
        raise RequestRejected("bad_request", f"an id has at most {MAX_ECHO_CHARS} characters, all of them visible")


def parse_args(op: Op, args: msgspec.Raw) -> Args:
    """The arguments of a request; raises a ``msgspec.MsgspecError`` when they do not fit the operation."""
    return msgspec.json.decode(args, type=ARGS[op])


def to_control_error(exc: BaseException) -> ControlError:
    """What a reply says of what went wrong; what should not have is logged, too."""
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
    """A text that may come from anywhere, for a reply."""
    return one_line(mask(text), MAX_ECHO_CHARS)
