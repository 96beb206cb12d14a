"""Choice of the workers of a batch: this process, whose pool is here, too, local processes, or a Ray cluster."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from runner.config import AgentSettings, RaySettings
from runner.errors import ConfigError
from runner.inference.profile_models import Models
from runner.pool.fork_server import open_client
from runner.pool.process_pool import ProcessPool
from runner.pool.services import batch_services
from runner.pool.worker import Slot, Worker, WorkerPool
from runner.types import WorkerInfo, Workers
from runner.util.clock import Clock
from runner.util.display_text import secret_variables
from runner.util.resources import Resource
from runner.worker.driver_link import Link
from runner.worker.frames import Configure, Watch, WorkerFrame
from runner.worker.runner_setup import RunnerSetup
from runner.worker.worker_episodes import WorkerEpisodes

if TYPE_CHECKING:
    from runner.inference.manager import InferenceManager

WORKER_LOG: Final = "runner.worker.output"
"""Name of the logger of lines that worker processes write; they go to the log file, not to standard error."""

_output = logging.getLogger(WORKER_LOG)
_output.setLevel(logging.INFO)


class LocalPool(WorkerPool, Link):
    """The worker of this process; its link passes frames on as they are.

    Raises ``ConfigError`` if agent or environment cannot be loaded.
    """

    usable = True

    def __init__(self, configure: Configure, models: InferenceManager | None, clock: Clock | None = None) -> None:
        clock = clock or Clock()
        self._player = WorkerEpisodes(self, configure, clock, local_models=models, on_warm=self._freeze_objects)
        self._player.prepare()
        self.episodes = Worker("this process", self._player.handle, None, clock)
        self._host = socket.gethostname()
        self._numbers = itertools.count()
        self._has_frozen = False
        self._pid = os.getpid()

    def send(self, frame: WorkerFrame) -> None:
        """A process that an environment has forked ends here, because it must not go on with the episode."""
        if os.getpid() != self._pid:
            os._exit(0)
        self.episodes.receive(frame)

    def start_slots(self, n_slots: int) -> tuple[list[Slot], Resource | None]:
        """If the system does not allow all threads, a third is kept."""
        n_started, shortage = self._player.start_threads(n_slots)
        names = [f"slot {next(self._numbers)}" for _ in range(n_started)]
        return [Slot(name, WorkerInfo(host=self._host, id=name, kind="local"), self) for name in names], shortage

    def retire(self, episode_id: str) -> None:
        """Leave the thread of an episode that hangs to itself: it ends at its next ``await``."""
        if self.episodes.forget(episode_id):
            self._player.abandon(episode_id)

    def _send_watch(self, watch: Watch) -> None:
        self._player.handle(watch)

    def close(self) -> None:
        """End the threads, and let garbage collections look at all objects again; the episodes have ended."""
        self._player.close(timeout_s=0.0)
        if self._has_frozen:
            gc.unfreeze()

    def _freeze_objects(self) -> None:
        """Exempt what the first episode has imported from garbage collections: they would take 5% of the CPU.

        Counting the frozen objects visits each of them, so a pool counts them once.
        """
        if not gc.get_freeze_count():
            self._has_frozen = True
            gc.freeze()


class PlannedBatch(Protocol):
    @property
    def concurrency(self) -> int: ...

    @property
    def n_planned(self) -> int: ...


def open_pool(
    workers: Workers,
    spec: PlannedBatch,
    setup: RunnerSetup,
    models: Models | None,
    runs: Path,
    log: Callable[[str], None] = _output.info,
    *,
    agent: AgentSettings | None = None,
    ray: RaySettings | None = None,
    clock: Clock | None = None,
) -> WorkerPool:
    """Return the workers of a batch; ``Batch.run`` starts and closes them.

    ``runs`` is the folder of the batches, for the journals. ``log`` receives each line that a worker writes, with the
    worker's name; by default the log file. ``agent`` is the profile's section, whose keys no worker inherits, whether
    the agent of the batch uses a model or not. Raises ``ConfigError`` if the agent uses a model and ``models`` is None,
    or the Ray cluster cannot be used.
    """
    if setup.models is None:
        models = None
    elif models is None:
        raise ConfigError(f"The agent {setup.agent.name} needs a model, and none is configured")
    if workers == 0:
        manager = None if models is None else models.manager
        return LocalPool(Configure(setup=setup, runs=str(runs)), manager, clock)
    if workers == "ray":
        from runner.pool.ray_pool import open_ray_pool  # imported late: few commands use Ray

        return open_ray_pool(ray or RaySettings(), setup, models, runs, agent)
    key_names = frozenset[str]() if agent is None else agent.key_names
    client = open_client(key_names)
    return ProcessPool(
        min(workers, spec.concurrency, spec.n_planned),
        Configure(setup=setup, runs=str(runs), secrets=secret_variables(os.environ, key_names)),
        batch_services(setup, models),
        lambda name: client.start_worker(name, log),
    )
