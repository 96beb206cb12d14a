"""A second viewer of the node: ``agentgym-runner watch``, and the durable events that it prints."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from runner.events.subjects import BATCH_COMPLETED, BATTERY_COMPLETED, DURABLE, EPISODE_COMPLETED
from tests.history.cluster import Cluster, client_environ
from tests.history.processes import ManagedProcess
from tests.history.records import Recorder, Shown
from tests.support.command import COMMAND

NAME: Final = "viewer"
READ_S: Final = 0.3
_EPISODE_FIELDS: Final = ("env", "outcome", "success", "reward", "rounds", "task_index", "batch_id")
_BATCH_FIELDS: Final = ("status", "n_episodes", "mean_reward", "success_rate")


class EventViewer:
    """Runs one viewer from the beginning to the end of a history, and records what it prints.

    Attributes:
        process: the viewer.
    """

    def __init__(self, cluster: Cluster, main: Recorder, recorder: Recorder) -> None:
        self._cluster = cluster
        self._output = cluster.folder / f"{NAME}.log"
        self._recorder = recorder
        self._n_read = 0
        subjects = [part for subject in DURABLE for part in ("--subject", subject)]
        options = ("--json", "--since", "all", "--data-dir", str(cluster.data_dir), *subjects)
        self.process = ManagedProcess(
            NAME, lambda: [COMMAND, "watch", *options], main, log=self._output, env=client_environ(), cwd=cluster.folder
        )

    async def run(self) -> None:
        """Run the viewer until cancelled."""
        node_file = self._cluster.data_dir / "node.json"
        while not (self._cluster.is_node_alive and node_file.exists()):  # noqa: ASYNC110 - another process
            await asyncio.sleep(READ_S)
        try:
            self.process.start()
            while True:
                self.read()
                await asyncio.sleep(READ_S)
        finally:
            await self.process.close()

    def read(self) -> None:
        """Record the complete lines that were printed since the last call."""
        with self._output.open("rb") as file:
            file.seek(self._n_read)
            new = file.read()
        complete = new[: new.rfind(b"\n") + 1]
        self._n_read += len(complete)
        for line in complete.splitlines():
            if line.startswith(b"{"):  # else a notice
                self._record(json.loads(line))

    def _record(self, document: dict[str, Any]) -> None:
        data = document.get("data") or {}
        match document.get("type"):
            case t if t == EPISODE_COMPLETED:
                fields = {name: data.get(name) for name in _EPISODE_FIELDS}
                self._recorder.write(Shown(console=NAME, what="episode", id=data["episode_id"], fields=fields))
            case t if t == BATCH_COMPLETED:
                fields = {name: data.get(name) for name in _BATCH_FIELDS}
                self._recorder.write(Shown(console=NAME, what="batch", id=data["batch_id"], fields=fields))
            case t if t == BATTERY_COMPLETED:
                fields = {name: data.get(name) for name in ("n_episodes", "mean_reward")}
                self._recorder.write(Shown(console=NAME, what="battery", id=data["battery_id"], fields=fields))
