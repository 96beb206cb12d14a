"""The full-text index of ten and a hundred thousand episodes: building, size, search and memory.

    python -m tests.benchmarks.full_text DATA_DIR

searches in a state directory and prints what it measured as JSON.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from agentgym_tui.sessions.library import StateDirLibrary, TextHits, text_values_of
from runner.store import EpisodeStore, open_index
from runner.store.text_index import FILE_NAME
from tests.benchmarks.full_results import play, store_copies
from tests.benchmarks.measure import Row, peak_mb, quartiles, row

N_SEARCHES: Final = 9
N_FIRST: Final = 20
"""Number of episodes whose lines are the first ones, more than a screen shows."""
QUERIES: Final = ("text:you", "text:planks", 'text:"invalid word"', "text:gr*")
"""Words of most episodes, of few, two words one after the other, and the beginning of many words."""
MAX_SHARE: Final = 0.5
"""Largest size of the index relative to the episodes."""


class Bounds(NamedTuple):
    """Milliseconds until the first lines and the whole count, MB of memory, and CPU seconds to build the index."""

    first_ms: float
    count_ms: float
    megabytes: float
    build_s: float | None


BOUNDS: Final = {10_000: Bounds(100, 1_000, 150, 10), 100_000: Bounds(300, 3_000, 250, None)}
"""Bounds by the number of episodes."""
MAX_GROWTH: Final = 12.0
"""Largest CPU to build the index of ten times the episodes, relative to that of the episodes."""


class Searched(msgspec.Struct):
    """What was measured: milliseconds of each search by query, and the peak memory in MB."""

    first_ms: dict[str, list[float]]
    count_ms: dict[str, list[float]]
    megabytes: float


def run() -> list[Row]:
    """Store the episodes, build the index as a node does, and search in a process of its own."""
    rows, builds_s = list[Row](), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        contents = play(Path(folder, "played"))
        for n_episodes in BOUNDS:
            data_dir = Path(folder, str(n_episodes))
            (data_dir / "runs").mkdir(parents=True)
            store_copies(data_dir, contents, n_episodes)
            open_index(EpisodeStore(data_dir)).close()
            builds_s.append(_build(data_dir))
            rows += _rows(data_dir, n_episodes, builds_s[-1])
    growth = builds_s[-1] / builds_s[0]
    return [*rows, row("full text of ten times the episodes: building, CPU", growth, MAX_GROWTH, "{:.1f}x")]


def _rows(data_dir: Path, n_episodes: int, build_s: float) -> list[Row]:
    bounds, name = BOUNDS[n_episodes], f"full text of {n_episodes:,} episodes"
    size = (data_dir / FILE_NAME).stat().st_size
    share = size / sum(path.stat().st_size for path in data_dir.glob("runs/*/*.json"))
    command = (sys.executable, "-m", __name__, str(data_dir))
    printed = subprocess.run(command, check=True, capture_output=True, timeout=300).stdout
    searched = msgspec.json.decode(printed, type=Searched)
    return [
        row(f"{name}: building, CPU", build_s, bounds.build_s, "{:.1f} s"),
        row(f"{name}: size of the index, {size / 1e6:.0f} MB, relative to the episodes", share, MAX_SHARE, "{:.2f}"),
        _slowest(f"{name}: first lines", searched.first_ms, bounds.first_ms),
        _slowest(f"{name}: whole count", searched.count_ms, bounds.count_ms),
        row(f"{name}: memory of a list and the searches", searched.megabytes, bounds.megabytes, "{:.0f} MB"),
    ]


def _build(data_dir: Path) -> float:
    """Build the index in the process of the node, without rests; return its CPU time in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = (sys.executable, "-P", "-m", "runner.node.text_indexing", str(data_dir), "0")
    subprocess.run(command, check=True, timeout=3_000)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _slowest(name: str, times_ms: dict[str, list[float]], bound: float) -> Row:
    query = max(times_ms, key=lambda each: quartiles(times_ms[each])[1])
    low, median, high = quartiles(times_ms[query])
    return row(f"{name}, {query} ({low:.0f}-{high:.0f}), wall", median, bound, "{:.0f} ms")


def _search(data_dir: Path) -> Searched:
    """Search as the console does, with the rows of its list in memory."""
    first: dict[str, list[float]] = {query: [] for query in QUERIES}
    count: dict[str, list[float]] = {query: [] for query in QUERIES}
    with closing(StateDirLibrary(lambda: data_dir)) as library:
        rows = library.rows()
        for _ in range(N_SEARCHES):
            for query in QUERIES:
                started = time.perf_counter()
                library.texts.find(query)
                found = {id for value in text_values_of(query) for id in library.texts.lookup(*value)}
                hits = TextHits(library.texts, query, [row.episode_id for row in rows if row.episode_id in found])
                hits.of_all(hits.episode_ids[:N_FIRST])
                first[query].append(1000 * (time.perf_counter() - started))
                hits.count()
                count[query].append(1000 * (time.perf_counter() - started))
    return Searched(first, count, peak_mb(os.getpid()))


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(_search(Path(sys.argv[1]))))
