"""Measurement and report: ratios of interleaved pairs, because absolute times vary between runs; stored episodes."""

from __future__ import annotations

import gc
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from runner.batch.batch import Batch
from runner.batch.workspace import Workspace
from runner.types import Limits
from tests.support.batches import resolved_batch
from tests.support.episodes import new_id

CONSOLE = str(Path(sys.executable).with_name("agentgym-tui"))
PAIRS = 9
"""Minimum number of pairs of a ratio."""


@dataclass(frozen=True)
class Ratio:
    """Time of ``a`` divided by that of ``b``: quartiles over the pairs, and the median seconds of each side."""

    median: float
    q1: float
    q3: float
    a_median: float
    b_median: float

    def __str__(self) -> str:
        return f"{self.median:.2f}x ({self.q1:.2f}-{self.q3:.2f})"


@dataclass(frozen=True)
class Row:
    """A row of the report; ``ok`` is None without a bound."""

    name: str
    value: str
    bound: str = ""
    ok: bool | None = None

    @classmethod
    def of_ratio(cls, name: str, measured: Ratio, *, at_most: float) -> Row:
        """Return the row of a ratio; the bound applies to the median."""
        return cls(name, str(measured), f"<= {at_most:g}x", measured.median <= at_most)


def row(name: str, value: float, bound: float | None, template: str) -> Row:
    """Return the row of a value, with the share of its bound that it takes."""
    shown = template.format(value)
    if bound is None:
        return Row(name, shown)
    return Row(name, shown, f"<= {template.format(bound)} ({value / bound:.0%} of it)", value <= bound)


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    """Return the seconds of one call, after a garbage collection."""
    gc.collect()
    started = clock()
    work()
    return clock() - started


def ratio(
    a: Callable[[], object],
    b: Callable[[], object],
    *,
    pairs: int = PAIRS,
    clock: Callable[[], float] = time.process_time,
) -> Ratio:
    """Time ``a`` against ``b`` in interleaved pairs with alternating order, after one warm-up call of each.

    Args:
        a: function to measure; a call must take some milliseconds.
        b: function to compare with.
        pairs: number of pairs, at least ``PAIRS``.
        clock: ``time.process_time`` for CPU, ``time.perf_counter`` for wall time, both in seconds.
    """
    if pairs < PAIRS:
        raise ValueError(f"{pairs} pairs are too few; use at least {PAIRS}")
    a()
    b()
    timed: list[tuple[float, float]] = []
    for number in range(pairs):
        if number % 2:
            b_seconds = seconds(b, clock)
            timed.append((seconds(a, clock), b_seconds))
        else:
            timed.append((seconds(a, clock), seconds(b, clock)))
    return ratio_of(*zip(*timed, strict=True))


def ratio_of(a: Sequence[float], b: Sequence[float]) -> Ratio:
    """Return the ratio of two sides that were measured in interleaved pairs."""
    q1, median, q3 = quartiles([one / other for one, other in zip(a, b, strict=True)])
    return Ratio(median, q1, q3, statistics.median(a), statistics.median(b))


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the first quartile, the median and the third quartile."""
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return q1, median, q3


def peak_mb(pid: int) -> float:
    """Return the peak memory of a process in MB."""
    (line,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(line) / 1024


def store_copies(data_dir: Path, n_episodes: int, n_bytes: int = 0) -> Path:
    """Store an episode and copies of it with at least about ``n_bytes`` each; return their folder."""
    workspace = Workspace(data_dir, node="bench", profile="bench")
    Batch(resolved_batch(env="Maze", agent="oracle", limits=Limits(max_rounds=15), tracing="off"), workspace).run()
    workspace.close()
    (episode_file,) = data_dir.glob("runs/*/*.json")
    content = episode_file.read_bytes()
    observation = b'"reset_observation":[{"role":"user","content":"'
    content = content.replace(observation, observation + b"a maze " * max((n_bytes - len(content)) // 7, 0), 1)
    for episode_id in {new_id() for _ in range(n_episodes - 1)}:
        episode_file.with_stem(episode_id).write_bytes(content.replace(episode_file.stem.encode(), episode_id.encode()))
    return episode_file.parent


def table(rows: Sequence[Row]) -> Table:
    result = Table("benchmark", "measured", "bound", "")
    for row in rows:
        status = {None: "", True: "[green]ok[/]", False: "[bold red]MISSED[/]"}[row.ok]
        result.add_row(row.name, row.value, row.bound, status)
    return result
