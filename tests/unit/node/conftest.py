from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from runner.batch.workspace import Workspace
from runner.events.control import NodeHealth
from runner.node.handlers import ControlHandler
from tests.support.control_handler import control_handler

Send = Callable[..., Any]
"""Sends a request to the handler and returns its reply."""
HOSTILE = "\x1b[2J\u202e\u2066\x9b\x00\n"


@pytest.fixture
def handler(workspace: Workspace) -> ControlHandler:
    """Handler of a node with one environment, whose health check fails; it starts no batches."""

    def fail() -> NodeHealth:
        raise RuntimeError(f"no {HOSTILE} health {'x' * 5000}")

    return control_handler(workspace, fail)


@pytest.fixture
def send(handler: ControlHandler) -> Send:
    """Send requests to the handler."""

    def send(op: str, request_id: object = "1", **args: object) -> Any:  # noqa: ANN401
        payload = json.dumps({"id": request_id, "op": op, "args": args}).encode()
        return json.loads(handler.handle(payload))

    return send
