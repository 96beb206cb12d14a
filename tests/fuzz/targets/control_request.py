"""Requests on the control subject, as a node reads and rejects them."""

from __future__ import annotations

import msgspec

from runner.events.control import ARGS, ERRORS, Args, ControlReply, ControlRequest
from runner.node.handlers import (
    MAX_ECHO_CHARS,
    MAX_HINT_CHARS,
    RequestRejected,
    find_problem,
    parse_args,
    parse_request,
    reject,
)
from tests.fuzz.oracles import SECRET, check_displayable, check_masked, outcome, secret_environment

TOKENS = (*(f'"op":"{op}"'.encode() for op in ARGS), b'"args":{"batch_id":', b'"envs":["Maze"]', SECRET.encode())
DECODE_ERRORS = (RequestRejected, msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def check(data: bytes) -> None:
    with secret_environment():
        problem = find_problem(data)
        request = outcome(lambda: _parse(data), *DECODE_ERRORS)
        if problem is not None:
            assert isinstance(request, Exception), request
            _check_rejection(data, problem)
        elif isinstance(request, Exception):
            assert isinstance(request, RequestRejected), request
            _check_rejection(data, request)
        else:
            _check_rejection(data, None)
            assert _parse(_encode(request)) == request


def _parse(data: bytes) -> tuple[ControlRequest, Args]:
    request = parse_request(data)
    return msgspec.structs.replace(request, args=msgspec.Raw()), parse_args(request.op, request.args)


def _encode(parsed: tuple[ControlRequest, Args]) -> bytes:
    request, args = parsed
    return msgspec.json.encode(msgspec.structs.replace(request, args=msgspec.Raw(msgspec.json.encode(args))))


def _check_rejection(data: bytes, problem: BaseException | None) -> None:
    reply = msgspec.json.decode(reject(data, problem), type=ControlReply)
    assert not reply.ok and reply.error is not msgspec.UNSET and reply.result is msgspec.UNSET
    assert reply.error.code in ERRORS and reply.error.code != "internal", reply
    for text, limit in (
        (reply.id, MAX_ECHO_CHARS),
        (reply.error.message, MAX_ECHO_CHARS),
        (reply.error.hint, MAX_HINT_CHARS),
    ):
        check_displayable(text)
        check_masked(text)
        assert len(text) <= limit
