"""Episodes over worker processes: the rate of model calls with many episodes at once."""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from runner.batch.batch import Batch
from runner.batch.spec import ResolvedBatch
from runner.batch.workspace import Workspace
from runner.config import AgentSettings
from runner.config.profile import EndpointConfig
from runner.inference.profile_models import Models
from runner.pool.choose import open_pool
from runner.store import EpisodeRecord
from runner.types import Limits
from tests.benchmarks.delayed_model import DelayedModel, run_delayed_model
from tests.benchmarks.measure import PAIRS, Row, quartiles
from tests.support.batches import resolved_batch

DELAY_S: Final = 0.2
WINDOW_S: Final = 0.8
WARM_UP_S: Final = 2.5
"""Seconds until the workers play and a first wave of answers has passed."""
N_WORKERS: Final = 2
N_EPISODES: Final = 64
MIN_SHARES: Final = {1: 0.80, 20: 0.75}
"""Bounds of the share of the ideal rate, by pieces of an answer."""


def run() -> list[Row]:
    return [_rate_row(pieces, bound) for pieces, bound in MIN_SHARES.items()]


def _rate_row(pieces: int, bound: float) -> Row:
    how = "plain" if pieces == 1 else f"streamed in {pieces} pieces"
    name = f"{N_EPISODES} episodes at once, answers of {DELAY_S * 1e3:.0f} ms, {how}"
    with run_delayed_model(DELAY_S, pieces=pieces) as model:
        shares, cpu = _measure(model, N_EPISODES, stream=pieces > 1)
    q1, share, q3 = quartiles(shares)
    value = f"{share:.2f} ({q1:.2f}-{q3:.2f}), endpoint {cpu:.0%} of a core"
    return Row(f"share of the ideal rate, {name}", value, f">= {bound:g}", share >= bound)


def _measure(model: DelayedModel, n_episodes: int, *, stream: bool) -> tuple[list[float], float]:
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
                return _windows(model, n_episodes)
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


def _windows(model: DelayedModel, n_episodes: int) -> tuple[list[float], float]:
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
