"""Requests as they come in, and errors as they go out: bounded, and safe to show whoever sent what."""

from __future__ import annotations

import logging

import msgspec

from runner.errors import RunnerError, log_failure
from runner.events.control import ARGS, Args, ControlError, Op
from runner.util.text import mask, one_line

logger = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 64 * 1024
MAX_ECHOED = 200
"""Characters of an id, and of an error's message: both may repeat what was sent."""


class Refused(RunnerError):
    """A request that is not obeyed, and why."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        """Take what the reply will say."""
        super().__init__(message)
        self.code = code
        self.hint = hint


class _WithId(msgspec.Struct):
    """What a reply needs of a request that cannot be read otherwise."""

    id: str = ""


def id_of(payload: bytes) -> str:
    """The id of a request.

    Raises:
        Refused: when the request is too large.
        msgspec.MsgspecError: when it is none.
    """
    if len(payload) > MAX_REQUEST_BYTES:
        raise Refused("bad_request", f"a request may have {MAX_REQUEST_BYTES} bytes, this one has {len(payload)}")
    return msgspec.json.decode(payload, type=_WithId).id


def check_id(request_id: str) -> None:
    """Raise ``Refused`` for an id that a reply does not repeat as it is."""
    if shown(request_id) != request_id:
        raise Refused("bad_request", f"an id has at most {MAX_ECHOED} characters, all of them visible")


def arguments(op: Op, args: msgspec.Raw) -> Args:
    """The arguments of a request; raises a ``msgspec.MsgspecError`` when they do not fit the operation."""
    return msgspec.json.decode(args, type=ARGS[op])


def error_of(exc: BaseException) -> ControlError:
    """What a reply says of what went wrong; what should not have is logged, too."""
    match exc:
        case Refused():
            return ControlError(code=exc.code, message=shown(str(exc)), hint=exc.hint)
        case RunnerError():
            return ControlError(code="refused", message=shown(str(exc)))
        case msgspec.MsgspecError() | UnicodeDecodeError() | RecursionError():
            message = shown(f"the request cannot be read: {exc}")
            return ControlError(code="bad_request", message=message, hint="see docs/events.md")
    log_failure(logger, "answering a request")(exc)
    return ControlError(code="internal", message=shown(f"{type(exc).__name__}: {exc}"), hint="see the node's log")


def shown(text: str) -> str:
    """A text that may come from anywhere, for a reply."""
    return one_line(mask(text), MAX_ECHOED)
