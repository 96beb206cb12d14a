"""How many episodes of a batch fit the limit of open files of this process."""

from __future__ import annotations

from typing import Final

import msgspec

from runner import plugins
from runner.batch.spec import BatchSpec
from runner.errors import ConfigError
from runner.util.resources import open_file_limit

RUN_FILES: Final = 32
"""Estimated number of open files of ``agentgym-runner --run`` without its episodes, with a margin.

They are standard streams, index, outbox, logs, trace and a bus, and the ``SPARE_FILES``.
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
MODEL_FILES: Final = 2
"""Further open files of an episode with a model: the connections to an endpoint and to the next one."""


def slot_files(spec: BatchSpec) -> int:
    """Return the number of files that one episode of a batch keeps open.

    An environment that opens more files than its server's connection has their number in the attribute ``open_files``.
    """
    files = SLOT_FILES + (0 if spec.model is None else MODEL_FILES)
    if plugins.is_registered(plugins.ENVS, spec.env):
        files += int(getattr(plugins.load(plugins.ENVS, spec.env), "open_files", 0))
    return files


def fit_concurrency(spec: BatchSpec, own_files: int) -> tuple[BatchSpec, str | None]:
    """Lower the concurrency of a batch to what the limit of open files allows.

    Args:
        spec: the batch.
        own_files: open files of the process without its episodes, ``RUN_FILES`` or ``NODE_FILES``.

    Returns:
        The batch, and a text that names what was lowered; None if nothing was.

    Raises:
        ConfigError: the limit allows no episode.
    """
    limit, per_episode = open_file_limit(), slot_files(spec)
    n_slots = (limit - own_files) // per_episode
    share = f"the process needs {own_files} and each episode {per_episode}"
    advice = "raise it with ulimit -n"
    if n_slots < 1:
        raise ConfigError(f"No episode of {spec.env} fits the limit of {limit} open files: {share}; {advice}")
    if min(spec.concurrency, spec.n_planned) <= n_slots:
        return spec, None
    lowered = f"concurrency lowered from {spec.concurrency} to {n_slots}"
    note = f"{lowered}: the limit of open files is {limit}, {share}; {advice}"
    return msgspec.structs.replace(spec, concurrency=n_slots), note
