"""Parsing of control requests, and the errors in replies: of limited length, masked and safe to display."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from runner.envs.names import UnplayableName
from runner.errors import RunnerError, catch_foreign, log_failure
from runner.events.control import ARGS, Args, ControlError, ControlReply, ControlRequest, Op
from runner.node.batch_queue import MAX_QUEUED, QueueFull
from runner.tracing import create_error_info
from runner.util.display_text import mask, one_line
from runner.util.resources import RESOURCES

logger = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 64 * 1024
QUICK_BYTES = 1024
"""Size up to which a request is checked for duplicate keys in microseconds; most requests are smaller."""
MAX_ECHO_CHARS = 200
"""Maximum characters of a request id or an error message in a reply; either may repeat text of the request."""
MAX_HINT_CHARS = 400
"""Maximum characters of a hint in a reply; a hint may list all endpoints or environments."""


_ARGS_DECODERS: dict[Op, msgspec.json.Decoder[Args]] = {op: msgspec.json.Decoder(kind) for op, kind in ARGS.items()}
_DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class RequestRejected(RunnerError):
    """Rejection of a control request, with the error code, message and hint for the reply."""

    published_error_type = "refused"

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint


class _RequestId(msgspec.Struct):
    """The id of a request, decoded separately because even the reply to an invalid request needs it."""

    id: str = ""


def parse_request_id(payload: bytes) -> str:
    """Raises ``RequestRejected`` if the request is too large, ``msgspec.MsgspecError`` if it is no object."""
    if len(payload) > MAX_REQUEST_BYTES:
        raise RequestRejected(
            "bad_request", f"a request may have at most {MAX_REQUEST_BYTES} bytes; this one has {len(payload)}"
        )
    return msgspec.json.decode(payload, type=_RequestId).id


def check_request_id(request_id: str) -> None:
    """Raise ``RequestRejected`` if the id is too long, or contains text that a reply must mask or escape."""
    if safe_echo(request_id) != request_id:
        raise _invalid_id()


def _invalid_id() -> RequestRejected:
    return RequestRejected("bad_request", f"an id must have at most {MAX_ECHO_CHARS} characters, all of them visible")


def find_problem(payload: bytes) -> BaseException | None:
    """Return why a request is invalid, or None; takes microseconds, so some checks are left to ``parse_request``."""
    try:
        if len(parse_request_id(payload)) > MAX_ECHO_CHARS:
            return _invalid_id()
        str(payload, "utf-8")  # msgspec does not read the texts of unknown fields
        request = msgspec.json.decode(payload, type=ControlRequest)
        parse_args(request.op, request.args)
        if len(payload) <= QUICK_BYTES:
            _check_keys(payload)
    except (RequestRejected, *_DECODE_ERRORS) as exc:
        return exc
    return None


def parse_request(payload: bytes) -> ControlRequest:
    """Return a request with a valid id and without duplicate keys; its arguments are not decoded.

    Raises:
        RequestRejected: if the request is too large, its id is invalid, or an object has a key twice.
        msgspec.MsgspecError, UnicodeDecodeError: if the request is not the JSON of a ``ControlRequest``.
    """
    check_request_id(parse_request_id(payload))
    request = msgspec.json.decode(payload, type=ControlRequest)
    _check_keys(payload)
    return request


def _check_keys(payload: bytes) -> None:
    # Parsers differ in which of two values they take, so a proxy and the node could read different requests.
    # Only the keys matter, and the longest numbers would be slow.
    json.loads(str(payload, "utf-8"), object_pairs_hook=_unique_keys, parse_int=len, parse_float=len)


def _unique_keys(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) == len(pairs):
        return
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise RequestRejected("bad_request", f"the request has the key {key!r} twice", "send each key once")
        seen.add(key)


def parse_args(op: Op, args: msgspec.Raw) -> Args:
    """Raises ``msgspec.MsgspecError`` if the arguments are invalid for the operation."""
    return _ARGS_DECODERS[op].decode(args)


def reject(payload: bytes, problem: BaseException | None) -> bytes:
    """Return the JSON reply to a request that is rejected; ``problem`` None: its sender has too many waiting."""
    problem = problem or RequestRejected(
        "busy", "too many of your requests are waiting", "wait for the replies, then send this request again"
    )
    request_id: list[str] = [""]
    with catch_foreign(lambda _: None):  # an unreadable id has been reported as the problem
        request_id.append(parse_request_id(payload))
    return msgspec.json.encode(ControlReply(id=safe_echo(request_id[-1]), ok=False, error=to_control_error(problem)))


def to_control_error(exc: BaseException) -> ControlError:
    """Logs the exception if it is unexpected."""
    match exc:
        case RequestRejected():
            return ControlError(code=exc.code, message=safe_echo(str(exc)), hint=exc.hint)
        case QueueFull():
            hint = f"wait until batches have ended, or cancel some; at most {MAX_QUEUED} can wait"
            return ControlError(code="queue_full", message=safe_echo(str(exc)), hint=hint)
        case UnplayableName():
            return ControlError(code="refused", message=safe_echo(exc.problem), hint=safe_hint(exc.hint))
        case RunnerError():
            return ControlError(code="refused", message=safe_echo(str(exc)))
        case _ if isinstance(exc, _DECODE_ERRORS):
            message = safe_echo(f"the request cannot be read: {exc}")
            return ControlError(code="bad_request", message=message, hint="see docs/events.md")
    log_failure(logger, "answering a request")(exc)
    return ControlError(code="internal", message=safe_echo(f"{type(exc).__name__}: {exc}"), hint="see the node's log")


def failure_text(exc: BaseException) -> str:
    info = create_error_info(exc)
    is_message = isinstance(exc, RunnerError) or info.type == RESOURCES
    return safe_hint(info.message if is_message else f"{info.type}: {info.message}")


def safe_hint(hint: str) -> str:
    return one_line(mask(hint), MAX_HINT_CHARS)


def names_hint(what: str, names: Sequence[str]) -> str:
    return safe_hint(f"its {what}: {', '.join(names)}" if names else f"it has no {what}")


def safe_echo(text: str) -> str:
    return one_line(mask(text), MAX_ECHO_CHARS)
