"""Keys that find episodes in a console on a state directory, each timed until its result is shown."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from tests.benchmarks.full_open import CONSOLE, peak_mb
from tests.benchmarks.full_results import stop_node
from tests.benchmarks.measure import Row, quartiles
from tests.support.command import REPOSITORY
from tests.support.terminal import ESCAPE, Terminal, terminal_environ

N_TIMES: Final = 9
IDLE_S: Final = 1.0
"""Seconds between two keys, in which the console gets idle."""


class KeyBounds(NamedTuple):
    """Milliseconds from key to result of a filter or sort, a comparison and the clusters; MB that stay resident."""

    rows_ms: float
    compare_ms: float
    clusters_ms: float
    megabytes: float


BOUNDS: Final = {10_000: KeyBounds(200, 200, 1_000, 150), 100_000: KeyBounds(600, 600, 3_000, 250)}
"""Bounds by the number of episodes."""


class _Job(NamedTuple):
    """What is timed: keys before it, the timed keys, a pattern of what is shown then, and keys that leave it."""

    before: str
    keys: str
    shows: str
    after: str


JOBS: Final[Mapping[str, _Job]] = {
    "filter by fields": _Job("/outcome:failure -agent:oracle reward<0.", "5", r"[\d,]+ match .*0\.5", ESCAPE),
    "filter by words": _Job("/textcraf", "t", r"[\d,]+ match .*textcraft\b", ESCAPE),
    "sort": _Job("", "o", r"by \w+ [▲▼]", ""),
    "compare": _Job("gcjj", "c", r"the first is step \d+|no difference", ESCAPE),
    "clusters": _Job("", "f", r"[1-9][\d,]* failed episodes?", ESCAPE),
}


def rows(data_dir: Path, n_episodes: int) -> Iterator[Row]:
    """Yield a row for each job, and one for the memory of the console after all of them."""
    bounds, name = BOUNDS[n_episodes], f"{n_episodes:,} stored episodes"
    limits_ms = {"compare": bounds.compare_ms, "clusters": bounds.clusters_ms}
    with _console(data_dir, n_episodes) as terminal:
        for title, job in JOBS.items():
            low, median, high = quartiles([1000 * _time(terminal, job) for _ in range(N_TIMES + 1)][1:])
            limit = limits_ms.get(title, bounds.rows_ms)
            spread = f"{name}: {title}, key to result ({low:.0f}-{high:.0f}), wall"
            yield Row(spread, f"{median:.0f} ms", f"<= {limit:.0f} ms", median <= limit)
        resident, peak = psutil.Process(terminal.process.pid).memory_info().rss / 2**20, peak_mb(terminal.process.pid)
    memory = f"{resident:.0f} MB, at most {peak:.0f} MB"
    limit = bounds.megabytes
    yield Row(f"{name}: resident memory of the console", memory, f"<= {limit:.0f} MB", resident <= limit)


@contextmanager
def _console(data_dir: Path, n_episodes: int) -> Iterator[Terminal]:
    """Start a console and its node, list the episodes, and stop both."""
    environ = terminal_environ(PYTHONPATH=str(REPOSITORY))
    with Terminal(CONSOLE, "launch", "--data-dir", str(data_dir), columns=200, rows=50, env=environ) as terminal:
        try:
            terminal.wait_for(lambda: any("idle" in line for line in terminal.lines), 240)
            terminal.send("2")
            terminal.wait_for(lambda: any(f"{n_episodes:,} episodes" in line for line in terminal.lines), 240)
            terminal.wait_until_absent("reading …", 60)
            yield terminal
        finally:
            stop_node(data_dir)


def _time(terminal: Terminal, job: _Job) -> float:
    """Return the seconds from the keys until the screen shows what they lead to."""
    terminal.send(job.before)
    if typed := job.before.partition("/")[2]:  # each key filters: the last one is handled after those before it
        terminal.wait_for(typed, 60)
    terminal.wait_until_quiet()
    time.sleep(IDLE_S)
    before, started = _shown(terminal, job), time.perf_counter()
    terminal.send(job.keys)
    terminal.wait_for(lambda: _shown(terminal, job) not in ("", before), 60)
    elapsed = time.perf_counter() - started
    terminal.send(job.after)
    terminal.wait_until_quiet()
    return elapsed


def _shown(terminal: Terminal, job: _Job) -> str:
    found = re.search(job.shows, terminal.text)
    return found[0] if found else ""


if __name__ == "__main__":
    sys.stdout.writelines(f"{row}\n" for row in rows(Path(sys.argv[1]), int(sys.argv[2])))
