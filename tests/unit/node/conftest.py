from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.batch.workspace import Workspace
from runner.config import EnvironmentEntry, Environments, Profile
from runner.events.control import NodeHealth
from runner.inference.profile_models import Models
from runner.node.batch_queue import BatchQueue
from runner.node.batch_runner import BatchCallbacks, BatchRunner
from runner.node.env_servers.manager import EnvServerManager
from runner.node.file_chunks import EpisodeFiles
from runner.node.handlers import ControlHandler

HOSTILE = "\x1b[2J\u202e\u2066\x9b\x00\n"


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    workspace = Workspace(tmp_path, node="n", profile="p")
    yield workspace
    workspace.close()


@pytest.fixture
def handler(workspace: Workspace) -> Iterator[ControlHandler]:
    """Handler of a node with one environment, whose health check fails; it starts no batches."""
    queue = BatchQueue(workspace.data_dir / "queue.sqlite")

    def ignore(_: object) -> None: ...

    def fail() -> NodeHealth:
        raise RuntimeError(f"no {HOSTILE} health {'x' * 5000}")

    profile = Profile(id="p", environments=Environments(lightweight=(EnvironmentEntry(name="Maze"),)))
    yield ControlHandler(
        profile=profile,
        files=EpisodeFiles(workspace.store, workspace.index),
        queue=queue,
        batch_runner=BatchRunner(
            workspace, queue, BatchCallbacks(on_item=ignore, on_record=ignore, on_result=ignore, on_busy=ignore)
        ),
        servers=EnvServerManager(profile, workspace.data_dir / "logs"),
        models=Models.from_settings(profile.agent, {}),
        health=fail,
        stopping=lambda: False,
        shutdown=ignore,
    )
    queue.close()


@pytest.fixture
def send_request(handler: ControlHandler) -> Callable[..., Any]:
    """Send requests to the handler."""

    def send_request(op: str, request_id: object = "1", **args: object) -> Any:  # noqa: ANN401
        payload = json.dumps({"id": request_id, "op": op, "args": args}).encode()
        return json.loads(handler.handle(payload))

    return send_request
