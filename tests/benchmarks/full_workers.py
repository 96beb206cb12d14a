"""Episodes over worker processes: the gain of a second worker, and the CPU of the driver."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import tempfile
import time
from concurrent.futures import Executor, ProcessPoolExecutor, wait
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from runner.batch.workspace import Workspace
from runner.envs.babyai import BabyAI
from runner.store import EpisodeRecord
from tests.benchmarks.bench_episode_cpu import N_WARM, bare_cpu_s, tree_cpu_s
from tests.benchmarks.bench_workers import N_WORKERS, open_batch
from tests.benchmarks.measure import PAIRS, Row, quartiles, ratio_of
from tests.support.batches import resolved_batch

MIN_GAIN: Final = 1.6
MAX_DRIVER_SHARE: Final = 0.18
"""CPU of the driver per CPU of a worker with which two workers on two cores can reach ``MIN_GAIN``."""
BABYAI_EPISODES: Final = 80
"""Episodes of one measurement, after the ``N_WARM`` that pay for imports and for the start of the workers."""


def run() -> list[Row]:
    """Measure BabyAI with one worker against two, and the same of bare processes, in interleaved pairs."""
    one: list[Played] = []
    two: list[Played] = []
    bare: list[tuple[float, float]] = []
    with ProcessPoolExecutor(N_WORKERS, multiprocessing.get_context("spawn")) as processes:
        bare_rate(processes, N_WORKERS)  # imports
        for _ in range(PAIRS):
            one.append(play_babyai(1))
            two.append(play_babyai(N_WORKERS))
            bare.append((bare_rate(processes, N_WORKERS), bare_rate(processes, 1)))
    gain = ratio_of([played.rate for played in two], [played.rate for played in one])
    anchor = ratio_of(*zip(*bare, strict=True))
    cpu = ratio_of([played.driver_s for played in two], [played.worker_s for played in two])
    _, start_s, _ = quartiles([played.start_s for played in two])
    cores = f"{os.cpu_count()} cores"
    per_episode = f"{cpu.a_median * 1e3:.1f} / {cpu.b_median * 1e3:.1f} ms"
    return [
        Row(
            f"BabyAI oracle, rate with 2 workers / with 1 ({cores})",
            f"{gain}",
            f">= {MIN_GAIN:g}x",
            gain.median >= MIN_GAIN,
        ),
        Row("the same episodes, rate of 2 bare processes / of 1", f"{anchor}"),
        Row.of_ratio(f"CPU per episode, driver / worker ({per_episode})", cpu, at_most=MAX_DRIVER_SHARE),
        Row(f"start of 2 workers until {N_WARM} episodes are stored, not part of the rate", f"{start_s:.2f} s"),
    ]


class Played(NamedTuple):
    """Episodes per second of a batch after its warm-up, CPU seconds per episode, and seconds of the warm-up."""

    rate: float
    driver_s: float
    worker_s: float
    start_s: float


def play_babyai(n_workers: int) -> Played:
    """Play BabyAI with as many episodes at once as workers; measure while all workers play."""
    marks: list[tuple[float, float, float]] = []
    n_stored, last = itertools.count(1), N_WARM + BABYAI_EPISODES

    def mark(record: EpisodeRecord) -> None:
        if next(n_stored) in (N_WARM, last):
            marks.append((time.perf_counter(), time.process_time(), tree_cpu_s()))

    with tempfile.TemporaryDirectory() as folder, closing(Workspace(Path(folder), node="b", profile="b")) as workspace:
        planned = resolved_batch(env="BabyAI", agent="oracle", repeat=last + n_workers, concurrency=n_workers)
        batch = open_batch(planned, workspace, n_workers=n_workers, on_record=mark)
        started = time.perf_counter()
        batch.run()
    (at, driver_s, all_s), (end_at, end_driver_s, end_all_s) = marks
    driver_s = end_driver_s - driver_s
    worker_s = end_all_s - all_s - driver_s
    per_episode = (driver_s / BABYAI_EPISODES, worker_s / BABYAI_EPISODES)
    return Played(BABYAI_EPISODES / (end_at - at), *per_episode, at - started)


def bare_rate(processes: Executor, n_processes: int) -> float:
    """Return the episodes per second of bare loops, one in each process, over the same tasks as ``play_babyai``."""
    started = time.perf_counter()
    loops = [processes.submit(bare_cpu_s, BabyAI, BABYAI_EPISODES, 100) for _ in range(n_processes)]
    wait(loops)
    return n_processes * BABYAI_EPISODES / (time.perf_counter() - started)
