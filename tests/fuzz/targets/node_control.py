"""Control requests that a node answers, one per line of the input."""

from __future__ import annotations

import atexit
from functools import cache

import msgspec

from runner.batch.workspace import Workspace
from runner.events.control import ERRORS, ControlReply, ControlRequest, NodeHealth
from runner.node.batch_queue import FILE_NAME
from scripts.event_texts import RESULTS
from tests.fuzz.oracles import check_displayable, check_masked, scratch_folder, secret_environment
from tests.fuzz.targets.control_request import TOKENS as REQUEST_TOKENS
from tests.support.control_handler import control_handler

TOKENS = (*REQUEST_TOKENS, b'"agent":"oracle"', b'"agent":"random"', b'"concurrency":1', b'"max_rounds":1')
MAX_REQUESTS = 4


def check(data: bytes) -> None:
    workspace = _workspace()
    with secret_environment():
        handler = control_handler(workspace, _health)
        for payload in data.split(b"\n")[:MAX_REQUESTS]:
            _check_reply(payload, handler.handle(payload))
    (workspace.data_dir / FILE_NAME).unlink()


@cache
def _workspace() -> Workspace:
    workspace = Workspace(scratch_folder("node_control"), node="n", profile="p")
    atexit.register(workspace.close)
    return workspace


def _health() -> NodeHealth:
    return NodeHealth(
        node="n", boot="b", pid=1, profile="p", version="1", status="idle", uptime_s=1.0, data_dir="/x", egress=None
    )


def _check_reply(payload: bytes, data: bytes) -> None:
    reply = msgspec.json.decode(data, type=ControlReply)
    if reply.ok:
        request = msgspec.json.decode(payload, type=ControlRequest)
        assert reply.id == request.id and isinstance(reply.result, msgspec.Raw)
        msgspec.json.decode(reply.result, type=RESULTS[request.op])
        return
    assert reply.error is not msgspec.UNSET and reply.error.code in ERRORS
    assert reply.error.code != "internal", reply.error
    for text in (reply.id, reply.error.message, reply.error.hint):
        check_displayable(text)
        check_masked(text)
