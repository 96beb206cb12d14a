"""Choice of the workers of a batch: this process, local processes, or a Ray cluster."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Final, Protocol

from runner.config import RaySettings
from runner.errors import ConfigError
from runner.inference.profile_models import Models
from runner.pool.local import LocalPool
from runner.pool.protocol import WorkerPool
from runner.types import Workers
from runner.util.clock import Clock
from runner.util.display_text import secret_variables
from runner.worker.runner_setup import RunnerSetup

HUMAN_AGENT = "human"
"""Agent whose actions come from a person, through this process."""
WORKER_LOG: Final = "runner.worker.output"
"""Name of the logger of lines that worker processes write; they go to the log file, not to standard error."""

_output = logging.getLogger(WORKER_LOG)
_output.setLevel(logging.INFO)


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
    log: Callable[[str], None] = _output.info,
    *,
    ray: RaySettings | None = None,
    clock: Clock | None = None,
) -> WorkerPool:
    """Return the workers of a batch; ``Batch.run`` starts and closes them.

    ``log`` receives each line that a worker writes, with the worker's name; by default the log file.

    Raises:
        ConfigError: the agent uses a model and ``models`` is None, or the Ray cluster cannot be used.
    """
    if setup.models is not None and models is None:
        raise ConfigError(f"The agent {setup.agent.name} needs a model, and none is configured")
    if workers == 0:
        manager = None if models is None or setup.models is None else models.manager
        return LocalPool(setup.build_factory(manager), clock)
    if workers == "ray":
        from runner.pool.ray_pool import open_ray_pool  # imported late: few commands use Ray

        return open_ray_pool(ray or RaySettings(), setup, models)
    return _process_pool(min(workers, spec.concurrency, spec.n_planned), setup, models, log)


def _process_pool(n_workers: int, setup: RunnerSetup, models: Models | None, log: Callable[[str], None]) -> WorkerPool:
    # imported late: most commands start no processes
    from runner.pool.fork_server import open_client
    from runner.pool.process_pool import ProcessPool
    from runner.pool.services import batch_services
    from runner.worker.frames import Configure

    key_names = frozenset[str]() if models is None else models.settings.key_names
    client = open_client(key_names)
    return ProcessPool(
        n_workers,
        Configure(setup=setup, secrets=secret_variables(os.environ, key_names)),
        batch_services(setup, models if setup.models is not None else None),
        lambda name: client.start_worker(name, log),
    )


def default_workers(n_slots: int, agent: str) -> int:
    """Return the number of worker processes, at most one per CPU; 0 for one episode at a time, and for a human's."""
    if n_slots <= 1 or agent == HUMAN_AGENT:
        return 0
    return min(n_slots, usable_cpus())


def usable_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
