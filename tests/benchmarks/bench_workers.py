"""Episodes over worker processes: the rate of model calls, the gain of a second worker, and what a worker takes."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from runner.batch.batch import Batch
from runner.batch.resolve import ResolvedBatch
from runner.batch.workspace import Workspace
from runner.config.profile import AgentSettings, EndpointConfig
from runner.envs.babyai import BabyAI
from runner.inference.profile_models import Models
from runner.pool.choose import open_pool
from runner.pool.fork_server import ForkServerClient
from runner.store import EpisodeRecord
from runner.types import Limits
from tests.benchmarks.bench_episode_cpu import N_WARM, bare_cpu_s, tree_cpu_s
from tests.benchmarks.delayed_model import DelayedModel, run_delayed_model
from tests.benchmarks.measure import PAIRS, Ratio, Row, environ_with_compiled_modules, quartiles, ratio_of
from tests.support.batches import resolved_batch
from tests.support.worker_frames import ChannelDriver

DELAY_S: Final = 0.2
WINDOW_S: Final = 0.8
WARM_UP_S: Final = 2.5
"""Seconds until the workers play and a first wave of answers has passed."""
N_WORKERS: Final = 2
MIN_SHARES: Final = {1: {8: 0.97, 32: 0.92, 64: 0.80}, 20: {8: 0.95, 32: 0.88, 64: 0.75}}
"""Bounds of the share of the ideal rate, by pieces of an answer and episodes at once."""
MIN_OF_BARE: Final = 0.90
MIN_GAIN: Final = 1.7
MAX_DRIVER_SHARE: Final = 0.18
"""CPU of the driver per CPU of a worker with which two workers on two cores can reach ``MIN_GAIN``."""
BABYAI_EPISODES: Final = 80
"""Episodes of one measurement, after the ``N_WARM`` that pay for imports and for the start of the workers."""
MAX_WARM_START: Final = 1.5
MAX_COLD_START: Final = 2.0
MAX_IDLE_MB: Final = 40.0


def run() -> list[Row]:
    """Measure rates against an endpoint in its own process, the gain of a second worker, starts and memory."""
    rows: list[Row] = []
    for pieces, bounds in MIN_SHARES.items():
        for n_episodes, bound in bounds.items():
            rows += _rate_rows(pieces, n_episodes, bound)
    return [*rows, *_gain_rows(), *_start_rows(), *_memory_rows()]


def _rate_rows(pieces: int, n_episodes: int, bound: float) -> list[Row]:
    how = "plain" if pieces == 1 else f"streamed in {pieces} pieces"
    name = f"{n_episodes} episodes at once, answers of {DELAY_S * 1e3:.0f} ms, {how}"
    rows: list[Row] = []
    with run_delayed_model(DELAY_S, pieces=pieces) as model:
        shares, cpu = measure(model, n_episodes, stream=pieces > 1)
        q1, share, q3 = quartiles(shares)
        value = f"{share:.2f} ({q1:.2f}-{q3:.2f}), endpoint {cpu:.0%} of a core"
        rows.append(Row(f"share of the ideal rate, {name}", value, f">= {bound:g}", share >= bound))
    if n_episodes == max(MIN_SHARES[pieces]):
        with run_delayed_model(DELAY_S, pieces=pieces, staggered=False) as model:
            _, together, _ = quartiles(measure(model, n_episodes, stream=pieces > 1)[0])
        rows.append(Row(f"the same, {n_episodes} starts together", f"{together:.2f}"))
        with run_delayed_model(DELAY_S, pieces=pieces) as model, run_bare_clients(model, n_episodes, pieces > 1):
            _, bare, _ = quartiles(windows(model, n_episodes)[0])
        rows.append(
            Row(
                f"the same, against {N_WORKERS} bare processes ({bare:.2f})",
                f"{share / bare:.2f}",
                f">= {MIN_OF_BARE:g}",
                share / bare >= MIN_OF_BARE,
            )
        )
    return rows


def measure(model: DelayedModel, n_episodes: int, *, stream: bool) -> tuple[list[float], float]:
    """Play a batch until the windows are over; return the shares of the ideal rate and the endpoint's CPU share."""
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(Path(folder), node="bench", profile="bench")
        with closing(workspace):
            settings = AgentSettings(
                mode="local",
                local_fallback=None,
                endpoints=(EndpointConfig(url=model.url, kind="openai", model="m"),),
                stream=stream,
                format="react",
            )
            models = Models(settings, {})
            planned = resolved_batch(
                models=models,
                env="Maze",
                agent="react",
                model="m",
                repeat=4000,
                concurrency=n_episodes,
                limits=Limits(15, 300),
            )
            batch = open_batch(planned, workspace, models)
            player = threading.Thread(target=batch.run)
            player.start()
            try:
                return windows(model, n_episodes)
            finally:
                batch.command("abort")
                player.join(60)


def open_batch(
    planned: ResolvedBatch,
    workspace: Workspace,
    models: Models | None = None,
    n_workers: int = N_WORKERS,
    on_record: Callable[[EpisodeRecord], None] | None = None,
) -> Batch:
    """Return a batch over ``n_workers`` local processes."""
    pool = open_pool(n_workers, planned.spec, planned.setup, models, log=print)
    return Batch(planned, workspace, models=models, pool=pool, on_record=on_record)


def windows(model: DelayedModel, n_episodes: int) -> tuple[list[float], float]:
    """Return the rate of answers in consecutive windows, as a share of the ideal rate, and the endpoint's CPU share."""
    time.sleep(WARM_UP_S)
    counts = [model.read_count()]
    for _ in range(PAIRS):
        time.sleep(WINDOW_S)
        counts.append(model.read_count())
    ideal = n_episodes / model.delay_s
    rates = [(after.answers - before.answers) / (after.at - before.at) for before, after in itertools.pairwise(counts)]
    cpu = (counts[-1].cpu_s - counts[0].cpu_s) / (counts[-1].at - counts[0].at)
    return [rate / ideal for rate in rates], cpu


@contextmanager
def run_bare_clients(model: DelayedModel, n_episodes: int, stream: bool) -> Iterator[None]:
    """Run ``N_WORKERS`` processes that only send requests and read answers."""
    options = [model.url, str(n_episodes // N_WORKERS), str(int(stream))]
    command = [sys.executable, "-m", "tests.benchmarks.bare_client", *options]
    clients = [subprocess.Popen(command) for _ in range(N_WORKERS)]
    try:
        yield
    finally:
        for client in clients:
            client.kill()
            client.wait()


def _gain_rows() -> list[Row]:
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


def _start_rows() -> list[Row]:
    """Measure the wall time until the first step of a pool of two against one embedded episode, in fresh processes."""
    name = "Maze until the first step, two workers / one embedded episode"
    with tempfile.TemporaryDirectory() as folder:
        environ = environ_with_compiled_modules(folder)

        def ratio_of_starts(how: str, embedded: str) -> Ratio:
            pairs = [(first_step_s(how, environ), first_step_s(embedded, environ)) for _ in range(PAIRS + 1)][1:]
            return ratio_of(*zip(*pairs, strict=True))

        warm = ratio_of_starts("warm", "embedded")
        cold = ratio_of_starts("cold", "embedded")
        command = ratio_of_starts("command 2", "command 0")
    return [
        Row.of_ratio(f"{name}, from the start of the batch, warm fork server", warm, at_most=MAX_WARM_START),
        Row(f"{name}, the same, a fork server that starts with the batch", str(cold)),
        Row.of_ratio(f"{name}, from the start of the command", command, at_most=MAX_COLD_START),
    ]


def first_step_s(how: str, environ: Mapping[str, str]) -> float:
    """Return what ``tests.benchmarks.first_step`` measures."""
    command = [sys.executable, "-m", "tests.benchmarks.first_step", *how.split()]
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    return float(done.stdout.split()[0])


def _memory_rows() -> list[Row]:
    """Measure the proportional memory of a worker that waits, before and after its first episode."""
    client, found = ForkServerClient(), dict[str, list[float]]()
    for env in ("Maze", "BabyAI"):
        for _ in range(PAIRS):
            worker = client.start_worker("worker", log=print)
            driver = ChannelDriver(worker.sock)
            driver.configure(env)
            found.setdefault("that has played nothing", []).append(proportional_mb(worker.pid))
            driver.play()
            found.setdefault(f"after an episode of {env}", []).append(proportional_mb(worker.pid))
            worker.sock.close()
            worker.end_reason(10)
    client.close()
    rows: list[Row] = []
    for name, values in found.items():
        q1, median, q3 = quartiles(values)
        row = Row(f"proportional memory of a worker {name}", f"{median:.0f} MB ({q1:.0f}-{q3:.0f})")
        is_idle = name == "that has played nothing"
        rows.append(replace(row, bound=f"<= {MAX_IDLE_MB:g} MB", ok=median <= MAX_IDLE_MB) if is_idle else row)
    return rows


def proportional_mb(pid: int) -> float:
    """Return the memory of a process, with its part of the memory that it shares."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
