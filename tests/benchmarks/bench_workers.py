"""Episodes over worker processes: the rate of model calls, the gain of a second worker, and what a worker takes."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from runner.batch.batch import Batch
from runner.batch.spec import BatchSpec
from runner.batch.workspace import Workspace
from runner.config.profile import AgentSettings, EndpointConfig
from runner.envs.placement import embedded_placement
from runner.inference.profile_models import Models
from runner.pool.choose import open_pool
from runner.types import Limits
from tests.benchmarks.delayed_model import DelayedModel, run_delayed_model
from tests.benchmarks.measure import PAIRS, Row, quartiles, ratio_of

DELAY_S: Final = 0.2
WINDOW_S: Final = 0.8
WARM_UP_S: Final = 2.5
"""Seconds until the workers play and a first wave of answers has passed."""
N_WORKERS: Final = 2
MIN_SHARES: Final = {1: {8: 0.97, 32: 0.92, 64: 0.80}, 20: {8: 0.95, 32: 0.88, 64: 0.75}}
"""Bounds of the share of the ideal rate, by pieces of an answer and episodes at once."""
MIN_OF_BARE: Final = 0.90
MIN_GAIN: Final = 1.7
BABYAI_EPISODES: Final = 80


def run() -> list[Row]:
    """Measure rates against an endpoint in its own process, then the gain of a second worker."""
    rows: list[Row] = []
    for pieces, bounds in MIN_SHARES.items():
        for n_episodes, bound in bounds.items():
            rows += _rate_rows(pieces, n_episodes, bound)
    return [*rows, _gain_row()]


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
            spec = BatchSpec(
                env="Maze", agent="react", model="m", repeat=4000, concurrency=n_episodes, limits=Limits(15, 300)
            ).validated()
            batch = open_batch(spec, workspace, Models.from_settings(settings, {}))
            player = threading.Thread(target=batch.run)
            player.start()
            try:
                return windows(model, n_episodes)
            finally:
                batch.command("abort")
                player.join(60)


def open_batch(
    spec: BatchSpec, workspace: Workspace, models: Models | None = None, n_workers: int = N_WORKERS
) -> Batch:
    """Return a batch over ``n_workers`` local processes."""
    setup = spec.runner_setup(embedded_placement(spec.env, spec.mode), models)
    return Batch(spec, workspace, models=models, pool=open_pool(n_workers, spec, setup, models, log=print))


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


def _gain_row() -> Row:
    """Measure BabyAI with one worker against two, in interleaved pairs of wall time."""
    timed = [(babyai_seconds(1), babyai_seconds(2)) for _ in range(PAIRS + 1)][1:]
    gain = ratio_of(*zip(*timed, strict=True))
    name = f"BabyAI oracle, rate with 2 workers / with 1 ({os.cpu_count()} cores)"
    return Row(name, str(gain), f">= {MIN_GAIN:g}x", gain.median >= MIN_GAIN)


def babyai_seconds(n_workers: int) -> float:
    """Return the wall seconds of a batch of BabyAI with as many episodes at once as workers."""
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(Path(folder), node="bench", profile="bench")
        with closing(workspace):
            spec = BatchSpec(env="BabyAI", agent="oracle", repeat=BABYAI_EPISODES, concurrency=n_workers).validated()
            batch = open_batch(spec, workspace, n_workers=n_workers)
            started = time.perf_counter()
            batch.run()
            return time.perf_counter() - started
