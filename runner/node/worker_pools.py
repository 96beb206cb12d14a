"""The workers of a run: which ones its options mean, the fork server that starts them, and the log of their output."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final

from runner.batch.spec import BatchSpec
from runner.config import AgentSettings, Profile, RaySettings
from runner.envs.placement import Placement
from runner.inference.profile_models import Models
from runner.pool.choose import default_workers, open_pool
from runner.pool.protocol import WorkerPool
from runner.types import Workers

WORKER_LOG: Final = "runner.worker.output"
"""Name of the logger of lines that worker processes write; they go to the log file, not to standard error."""

_output = logging.getLogger(WORKER_LOG)
_output.setLevel(logging.INFO)


def choose_workers(profile: Profile, requested: Workers | None, n_slots: int, agent: str) -> Workers:
    """Return the workers of a run: those of its options, else those of the profile, else the default.

    Args:
        profile: the profile.
        requested: workers in the options, or None.
        n_slots: number of episodes at a time.
        agent: name of the agent.
    """
    workers = profile.episode.workers if requested is None else requested
    return default_workers(n_slots, agent) if workers is None else workers


def preload_fork_server(settings: AgentSettings) -> None:
    """Start the process that starts worker processes; it imports what they need while this process does other work.

    Args:
        settings: the profile's ``agent`` section, which names the variables with API keys.
    """
    from runner.pool.fork_server import open_client

    with suppress(OSError):  # the start of the first worker fails with the same error, and reports it
        open_client(settings.key_names)
    import runner.pool.process_pool  # noqa: F401 - loads while the server starts, and not with the first batch


def open_workers(spec: BatchSpec, placement: Placement, models: Models | None, ray: RaySettings) -> WorkerPool:
    """Return the workers of a batch; ``Batch.run`` starts and closes them.

    Args:
        spec: the batch.
        placement: where its environment runs.
        models: the profile's models.
        ray: the profile's Ray cluster.

    Raises:
        ConfigError: the agent uses a model and there are no ``models``, or Ray cannot be used.
    """
    return open_pool(spec.workers, spec, spec.runner_setup(placement, models), models, _log_output, ray)


def _log_output(line: str) -> None:
    _output.info("%s", line)
