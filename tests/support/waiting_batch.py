"""A Maze batch on a server that tests kill, on a thread of its own."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from runner.batch.batch import Batch
from runner.batch.observers import BatchItem
from runner.batch.result import BatchResult
from runner.batch.workspace import Workspace
from runner.config import EnvironmentEntry
from runner.envs.placement import choose_placement, find_environment
from runner.types import BatchProgress, Limits
from tests.support.batches import resolved_batch

CHECK_INTERVAL_S = 0.05
DEADLINE_S = 60.0


class MazeBatch:
    """A batch on a thread of its own, with the items that it emitted."""

    def __init__(
        self,
        workspace: Workspace,
        port: int,
        *,
        wait_s: float = 60.0,
        repeat: int = 20,
        concurrency: int = 1,
        timeout_sec: float = 10.0,
        max_duration_s: float = 1e6,
        workers: int = 0,
        **options: Any,  # noqa: ANN401 - of ``Batch``
    ) -> None:
        self.items: list[BatchItem] = []
        entry = EnvironmentEntry(name="Maze", port=port, transport="http", timeout_sec=timeout_sec)
        limits = Limits(max_rounds=3, max_duration_s=max_duration_s)
        placement = choose_placement(entry, find_environment("Maze"), "strict", wait_s=wait_s)
        planned = resolved_batch(
            placement,
            env="Maze",
            agent="hooked",
            repeat=repeat,
            concurrency=concurrency,
            limits=limits,
            workers=workers,
        )
        self.batch = Batch(
            planned, workspace, observers=[self.items.append], check_interval_s=CHECK_INTERVAL_S, **options
        )
        self._results: queue.SimpleQueue[BatchResult] = queue.SimpleQueue()
        threading.Thread(target=lambda: self._results.put(self.batch.run()), daemon=True).start()

    def result(self, timeout_s: float = DEADLINE_S) -> BatchResult:
        return self._results.get(timeout=timeout_s)

    def wait_until_waiting(self) -> None:
        wait_until(lambda: self.batch.waiting is not None)

    @property
    def progress(self) -> list[BatchProgress]:
        return [item for item in self.items if isinstance(item, BatchProgress)]


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition was never true"
        time.sleep(0.01)


def played_tasks(result: BatchResult) -> Counter[int]:
    return Counter(episode.task_index for episode in result.episodes)


def check_stored(workspace: Workspace, result: BatchResult) -> None:
    """Check that the episode files are those of the result, and that no journal is left."""
    stored = sorted(path.name for path in (workspace.data_dir / "runs" / result.batch_id).iterdir())
    assert stored == sorted(f"{episode.episode_id}.json" for episode in result.episodes)
