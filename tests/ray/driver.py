"""A driver whose episodes hang: ``python driver.py FOLDER [ADDRESS]`` writes the pids of its workers as they play.

If the batch ends, its status and the reason follow.
"""

from __future__ import annotations

import sys
from pathlib import Path

from runner.batch.batch import Batch
from runner.batch.observers import BatchItem
from runner.batch.workspace import Workspace
from runner.config import RaySettings
from runner.pool.ray_pool import RayTimings, open_ray_pool
from runner.types import WorkerState
from tests.support.batches import resolved_batch


def write_pid(item: BatchItem) -> None:
    if isinstance(item, WorkerState) and item.state == "playing":
        print(item.pid, flush=True)  # noqa: T201


def main(folder: str, address: str = "") -> None:
    batch = resolved_batch(env="Stuck", agent="UpAgent", repeat=2, concurrency=2)
    timings = RayTimings(head_check_s=0.2, head_s=1.0)
    workspace = Workspace(Path(folder), node="n", profile="p")
    settings = RaySettings(address=address, num_cpus=0.5)
    pool = open_ray_pool(settings, batch.setup, None, workspace.store.runs, timings=timings)
    result = Batch(batch, workspace, pool=pool, observers=[write_pid], grace_s=0.5, step_grace_s=0.5).run()
    print(result.status, result.interruption, flush=True)  # noqa: T201


main(*sys.argv[1:])
