"""Rate of episodes over Ray, two nodes with two workers each on this machine, against as many local processes."""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.batch.batch import Batch
from runner.batch.observers import BatchItem, EpisodeStored
from runner.batch.workspace import Workspace
from runner.config import AgentSettings, RaySettings
from runner.config.profile import EndpointConfig
from runner.events.live import EpisodeEnded, EpisodeStarted
from runner.inference.profile_models import Models
from runner.pool.choose import open_pool
from runner.pool.worker import WorkerPool
from runner.types import Limits, Workers
from tests.benchmarks.measure import Row, quartiles
from tests.support.batches import resolved_batch

PAIRS = 9
N_EPISODES, N_WORKERS, N_STEPS = 48, 4, 3
LATENCY_S = 0.2
MIN_RATIO = 0.9
NAME = f"Ray with 2 x 2 workers / {N_WORKERS} local processes, {LATENCY_S * 1000:g} ms endpoint, episodes per second"
ENDPOINT = f"""
import sys
from runner.serve.mock_llm.script import Behavior
from tests.support.model_server import ModelServer
with ModelServer(behavior=Behavior(latency_s={LATENCY_S}), models=["m"]) as server:
    print(server.url, flush=True)
    sys.stdin.read()
"""


def run() -> list[Row]:
    """Measure interleaved pairs of batches.

    The bound applies to the rate of each worker from its first episode to its last. Actors start one after another; the
    rate from the first start to the last end is reported, too.
    """
    if importlib.util.find_spec("ray") is None:
        return [Row(NAME, "skipped: Ray is not installed; make test-ray installs it")]
    with tempfile.TemporaryDirectory(prefix="ray") as folder, run_endpoint() as url, run_cluster(Path(folder)):
        bench = Bench(Path(folder) / "data", url)
        pairs = [(bench.play(N_WORKERS), bench.play("ray")) for _ in range(PAIRS)]
    q1, median, q3 = quartiles([ray.rate / local.rate for local, ray in pairs])
    whole = statistics.median(ray.whole_rate / local.whole_rate for local, ray in pairs)
    ideal = N_WORKERS / (N_STEPS * LATENCY_S)
    local, ray = (statistics.median(each.rate for each in side) / ideal for side in zip(*pairs, strict=True))
    value = (
        f"{median:.2f}x ({q1:.2f}-{q3:.2f}), with the start {whole:.2f}x; of the ideal rate {ray:.2f} and {local:.2f}"
    )
    return [Row(NAME, value, f">= {MIN_RATIO:g}x", median >= MIN_RATIO)]


class Timeline:
    """Starts and ends of the episodes of a batch, by worker."""

    def __init__(self) -> None:
        self._workers: dict[str, str] = {}
        self._times: defaultdict[str, list[float]] = defaultdict(list)

    def observe(self, item: BatchItem) -> None:
        if isinstance(item, EpisodeStarted) and item.worker is not None:
            self._workers[item.episode_id] = item.worker.id
        event = item.end if isinstance(item, EpisodeStored) else item
        if isinstance(event, EpisodeStarted | EpisodeEnded):
            self._times[self._workers[event.episode_id]].append(time.perf_counter())

    @property
    def rate(self) -> float:
        """Episodes per second, summed over the workers."""
        return sum(len(times) / 2 / (max(times) - min(times)) for times in self._times.values())

    @property
    def whole_rate(self) -> float:
        """Episodes per second from the first start to the last end."""
        times = [each for times in self._times.values() for each in times]
        return len(times) / 2 / (max(times) - min(times))


class Bench:
    """Plays the same batch over different workers."""

    def __init__(self, folder: Path, url: str) -> None:
        endpoint = EndpointConfig(url=url, name="m", kind="openai")
        settings = AgentSettings(mode="local", local_fallback=None, model="m", endpoints=(endpoint,), stream=False)
        self._models = Models(settings, os.environ)
        self._folder = folder
        self._planned = resolved_batch(
            models=self._models,
            env="Maze",
            agent="react",
            model="m",
            repeat=N_EPISODES,
            concurrency=N_WORKERS,
            limits=Limits(max_rounds=N_STEPS),
        )

    def play(self, workers: Workers) -> Timeline:
        """Play the batch."""
        timeline = Timeline()
        workspace = Workspace(self._folder, node="n", profile="p")
        pool = self._pool(workers, workspace.store.runs)
        batch = Batch(self._planned, workspace, observers=[timeline.observe], models=self._models, pool=pool)
        result = batch.run()
        workspace.close()
        if result.status != "completed" or result.n_errors:
            raise RuntimeError(f"{result.status} with {result.n_errors} errors: {result.interruption}")
        return timeline

    def _pool(self, workers: Workers, runs: Path) -> WorkerPool:
        ray = RaySettings(address="auto")
        return open_pool(workers, self._planned.spec, self._planned.setup, self._models, runs, _ignore, ray=ray)


@contextmanager
def run_endpoint() -> Iterator[str]:
    """Run a model that answers after ``LATENCY_S`` in a process of its own; yield its URL."""
    command = [sys.executable, "-c", ENDPOINT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        yield process.stdout.readline().strip()
        process.stdin.close()


@contextmanager
def run_cluster(folder: Path) -> Iterator[None]:
    """Run a cluster of two nodes with two CPUs each, and connect to it."""
    os.environ.update({"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
    import ray

    from tests.ray.conftest import ClusterOfTwo

    cluster = ClusterOfTwo(folder)
    close: Callable[[], object] = cluster.close
    try:
        ray.init(address=cluster.address, log_to_driver=False)
        yield
    finally:
        ray.shutdown()
        close()


def _ignore(line: str) -> None:
    pass
