from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from runner.batch.batch import Batch
from runner.batch.result import BatchResult
from runner.batch.spec import BatchSpec
from runner.batch.workspace import Workspace
from runner.config import RaySettings
from runner.pool.protocol import WorkerPool
from runner.pool.ray_pool import open_ray_pool
from runner.types import Limits

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

SETTINGS = RaySettings(address="auto")


def play(folder: Path, spec: BatchSpec, pool: WorkerPool | None = None, **options: object) -> BatchResult:
    workspace = Workspace(folder, node="n", profile="p")
    try:
        return Batch(spec.validated(), workspace, pool=pool, **options).run()  # type: ignore[arg-type]
    finally:
        workspace.close()


def ray_pool(spec: BatchSpec, settings: RaySettings = SETTINGS) -> WorkerPool:
    return open_ray_pool(settings, spec.validated().runner_setup(), None)


def test_a_batch_over_ray_has_the_episodes_of_one_in_this_process(cluster: Cluster, tmp_path: Path) -> None:
    spec = BatchSpec(env="BabyAI", agent="oracle", repeat=12, concurrency=4, limits=Limits(max_rounds=20))
    remote = play(tmp_path / "ray", spec, ray_pool(spec))
    local = play(tmp_path / "local", spec)
    assert remote.status == "completed"
    assert remote.n_success == local.n_success and len(remote.episodes) == 12
