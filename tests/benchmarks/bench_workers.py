"""Episodes over worker processes: the rate of model calls with many episodes at once, and the memory of a worker."""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from runner.batch.batch import Batch
from runner.batch.spec import ResolvedBatch
from runner.batch.workspace import Workspace
from runner.config import AgentSettings
from runner.config.profile import EndpointConfig
from runner.inference.profile_models import Models
from runner.pool.choose import open_pool
from runner.pool.fork_server import ForkServerClient
from runner.store import EpisodeRecord
from runner.types import Limits
from tests.benchmarks.delayed_model import DelayedModel, run_delayed_model
from tests.benchmarks.measure import PAIRS, Row, quartiles
from tests.support.batches import resolved_batch
from tests.support.worker_frames import ChannelDriver

DELAY_S: Final = 0.2
WINDOW_S: Final = 0.8
WARM_UP_S: Final = 2.5
"""Seconds until the workers play and a first wave of answers has passed."""
N_WORKERS: Final = 2
N_EPISODES: Final = 64
MIN_SHARES: Final = {1: 0.80, 20: 0.75}
"""Bounds of the share of the ideal rate, by pieces of an answer."""
MIN_OF_BARE: Final = 0.90
MAX_IDLE_MB: Final = 40.0


def run() -> list[Row]:
    """Measure rates against an endpoint in its own process, and memory."""
    return [*(row for pieces, bound in MIN_SHARES.items() for row in _rate_rows(pieces, bound)), *_memory_rows()]


def _rate_rows(pieces: int, bound: float) -> list[Row]:
    """Return the rate of answers, and the same of processes that only send requests."""
    row, share = rate_row(pieces, N_EPISODES, bound)
    with run_delayed_model(DELAY_S, pieces=pieces) as model, run_bare_clients(model, N_EPISODES, pieces > 1):
        _, bare, _ = quartiles(windows(model, N_EPISODES)[0])
    of_bare = share / bare
    name = f"the same, against {N_WORKERS} bare processes ({bare:.2f})"
    return [row, Row(name, f"{of_bare:.2f}", f">= {MIN_OF_BARE:g}", of_bare >= MIN_OF_BARE)]


def rate_row(pieces: int, n_episodes: int, bound: float) -> tuple[Row, float]:
    """Return the row of the share of the ideal rate, and this share."""
    how = "plain" if pieces == 1 else f"streamed in {pieces} pieces"
    name = f"{n_episodes} episodes at once, answers of {DELAY_S * 1e3:.0f} ms, {how}"
    with run_delayed_model(DELAY_S, pieces=pieces) as model:
        shares, cpu = measure(model, n_episodes, stream=pieces > 1)
    q1, share, q3 = quartiles(shares)
    value = f"{share:.2f} ({q1:.2f}-{q3:.2f}), endpoint {cpu:.0%} of a core"
    return Row(f"share of the ideal rate, {name}", value, f">= {bound:g}", share >= bound), share


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
    pool = open_pool(n_workers, planned.spec, planned.setup, models, workspace.store.runs, print)
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
            worker.close()
    client.leave()
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
