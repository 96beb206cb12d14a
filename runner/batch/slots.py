"""How many episodes of a batch fit the limit of open files of this process."""

from __future__ import annotations

from typing import Final

import msgspec

from runner.batch.spec import BatchSpec
from runner.errors import ConfigError
from runner.pool.protocol import MAX_THREADS
from runner.util.resources import open_file_limit

RUN_FILES: Final = 32
"""Estimated number of open files of ``agentgym-runner --run`` without its episodes, with a margin.

They are standard streams, index, logs, trace and a bus, and the ``SPARE_FILES``.
"""
NODE_FILES: Final = 64
"""Estimated number of open files of a node without its episodes, with a margin.

They are those of a run (``RUN_FILES``), queue, locks, broker, and health checks of models and servers.
"""
SPARE_FILES: Final = 8
"""Open files that a batch keeps spare, so that it can store its episodes if files run out."""
SPARE_BYTES: Final = 8 << 20
"""Memory that a batch keeps spare for the same purpose."""
SLOT_FILES: Final = 6
"""Open files of one episode.

Three belong to its event loop, one is its journal, one the file that it writes, one the connection to its server.
"""
MAX_STORING: Final = MAX_THREADS
"""Maximum number of episodes that are stored while their slots play the next ones."""
STORED_FILES: Final = 2
"""Those of them that the process of the run or node opens for an episode of a worker: its journal, and its file."""
MODEL_FILES: Final = 2
"""Further open files of an episode with a model: the connections to an endpoint and to the next one."""
CHANNEL_FILES: Final = 3
"""Open files of the process of the run or node for each worker process: its channel, its bell and its log."""
WORKER_FILES: Final = 16
"""Estimated number of open files of a worker process without its episodes, with a margin."""


def slot_files(spec: BatchSpec, env_files: int = 0) -> int:
    """Return the number of open files of one episode in all processes; ``env_files`` are its environment's own."""
    return SLOT_FILES + (0 if spec.model is None else MODEL_FILES) + env_files


def fit_concurrency(spec: BatchSpec, own_files: int, env_files: int = 0) -> tuple[BatchSpec, str | None]:
    """Lower the concurrency of a batch to what the limit of open files allows; return also a text about that, or None.

    ``own_files`` are those of the process without its episodes, ``RUN_FILES`` or ``NODE_FILES``.

    Raises:
        ConfigError: the limit allows no episode.
    """
    limit, advice = open_file_limit(), "raise it with ulimit -n"
    n_slots, share = min(_bounds(spec, own_files, slot_files(spec, env_files), limit))
    if n_slots < 1:
        raise ConfigError(f"No episode of {spec.env} fits the limit of {limit} open files: {share}; {advice}")
    if min(spec.concurrency, spec.n_planned) <= n_slots:
        return spec, None
    lowered = f"concurrency lowered from {spec.concurrency} to {n_slots}"
    note = f"{lowered}: the limit of open files is {limit}, {share}; {advice}"
    return msgspec.structs.replace(spec, concurrency=n_slots), note


def _bounds(spec: BatchSpec, own_files: int, per_episode: int, limit: int) -> list[tuple[int, str]]:
    n_planned, workers = min(spec.concurrency, spec.n_planned), spec.chosen_workers
    if workers == "ray" or not workers:
        return [_bound("the process", own_files, per_episode, limit)]
    n_workers, in_worker = min(workers, n_planned), per_episode - STORED_FILES
    driver = _bound("the process", own_files + MAX_STORING + MAX_THREADS + n_workers * CHANNEL_FILES, 1, limit)
    n_slots, share = _bound("a worker process", WORKER_FILES, in_worker, limit)
    return [driver, (n_slots * n_workers, share)]


def _bound(process: str, own_files: int, per_episode: int, limit: int) -> tuple[int, str]:
    return (limit - own_files) // per_episode, f"{process} needs {own_files} and each episode {per_episode}"
