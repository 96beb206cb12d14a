"""The handler of a node's control requests, without a bus and without batches that run."""

from __future__ import annotations

from collections.abc import Callable

from runner.batch.workspace import Workspace
from runner.config import EnvironmentEntry, Environments, Profile
from runner.events.control import NodeHealth
from runner.inference.profile_models import Models
from runner.node.batch_player import BatchCallbacks, BatchPlayer
from runner.node.batch_queue import BatchQueue
from runner.node.env_servers import EnvServerManager
from runner.node.file_chunks import EpisodeFiles
from runner.node.handlers import ControlHandler
from runner.store.notes import Notes
from tests.support.batches import place_spec


def control_handler(workspace: Workspace, health: Callable[[], NodeHealth]) -> ControlHandler:
    """Return the handler of a node with one environment; it starts no batches."""
    queue = BatchQueue(workspace.data_dir)

    def ignore(_: object) -> None: ...

    profile = Profile(id="p", environments=Environments(lightweight=(EnvironmentEntry(name="Maze"),)))
    return ControlHandler(
        profile=profile,
        files=EpisodeFiles(workspace.store, workspace.index),
        notes=Notes(workspace.data_dir),
        queue=queue,
        batch_player=BatchPlayer(
            workspace, queue, BatchCallbacks(on_item=ignore, on_result=ignore, on_busy=ignore), place=place_spec
        ),
        servers=EnvServerManager(profile, workspace.data_dir / "logs"),
        models=Models(profile.agent, {}),
        health=health,
        stopping=lambda: False,
        send_history=lambda: None,
        shutdown=ignore,
    )
