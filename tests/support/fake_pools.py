"""Batches over a pool of scripted workers."""

from __future__ import annotations

import threading
from typing import Any

from runner.batch.batch import Batch
from runner.batch.observers import BatchItem
from runner.batch.result import BatchResult
from runner.batch.spec import ResolvedBatch
from runner.batch.workspace import Workspace
from runner.envs.http.places import PlaceTable
from runner.pool.process_pool import ProcessPool, WorkerTimings
from runner.pool.services import BatchServices
from runner.store import EpisodeRecord
from runner.worker.frames import Configure
from tests.support.batches import resolved_batch
from tests.support.episodes import stored_files
from tests.support.fake_worker import FakeProcesses, Script

TIMINGS = WorkerTimings(retry_s=(0.01, 0.01, 0.01), tick_s=0.02)
DEADLINE_S = 60.0


def make_spec(**fields: Any) -> ResolvedBatch:  # noqa: ANN401
    return resolved_batch(**{"env": "Counter", "agent": "up", "repeat": 4, "concurrency": 2, **fields})


def make_pool(
    spec: ResolvedBatch,
    *scripts: Script,
    n_workers: int = 1,
    timings: WorkerTimings = TIMINGS,
    **services: Any,  # noqa: ANN401
) -> tuple[ProcessPool, FakeProcesses]:
    processes = FakeProcesses(*scripts)
    places = services.get("places", PlaceTable())
    configure = Configure(setup=spec.setup)
    return ProcessPool(n_workers, configure, BatchServices(places, None), processes, timings), processes


class PooledBatch:
    """A batch whose workers run scripts; ``items`` and ``reported`` have what it published."""

    def __init__(
        self,
        workspace: Workspace,
        *scripts: Script,
        n_workers: int = 1,
        timings: WorkerTimings = TIMINGS,
        grace_s: float = 5.0,
        **fields: Any,  # noqa: ANN401 - of the spec
    ) -> None:
        spec = make_spec(**fields)
        self.workspace = workspace
        self.items: list[BatchItem] = []
        self.reported: list[EpisodeRecord] = []
        self.pool, self.processes = make_pool(spec, *scripts, n_workers=n_workers, timings=timings)
        self.batch = Batch(
            spec,
            workspace,
            observers=[self.items.append],
            on_record=self.reported.append,
            pool=self.pool,
            grace_s=grace_s,
            step_grace_s=0.1,
        )
        self._results: list[BatchResult] = []
        self._thread = threading.Thread(target=lambda: self._results.append(self.batch.run()), daemon=True)

    def start(self) -> None:
        self._thread.start()

    def result(self) -> BatchResult:
        if not self._thread.is_alive() and not self._results:
            self.start()
        self._thread.join(DEADLINE_S)
        assert self._results, "the batch did not end"
        return self._results[0]

    def stored(self) -> list[EpisodeRecord]:
        """All episodes on the disk, in the order of their ids."""
        store = self.workspace.store
        assert list(store.runs.rglob("*.journal.jsonl")) == []
        return sorted((store.load(file.episode_id) for file in stored_files(store)), key=lambda each: each.episode_id)
