"""Time to open folders of ten and a hundred thousand episodes."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.benchmarks.measure import CONSOLE, Row, peak_mb, quartiles, row, store_copies
from tests.support.command import REPOSITORY
from tests.support.terminal import Terminal, terminal_environ

EPISODE_BYTES: Final = 11_400
N_FOLDERS: Final = 5
MAX_USABLE_S: Final = 1.0


class FolderBounds(NamedTuple):
    """Seconds until a folder that is opened again shows its first rows and all rows, and the peak memory in MB."""

    first_s: float
    all_s: float
    megabytes: float


BOUNDS: Final = {10_000: FolderBounds(0.3, 1.0, 80), 100_000: FolderBounds(0.4, 8.0, 150)}
"""Bounds by the number of episodes."""


class FolderTimes(NamedTuple):
    """Seconds until the first rows were shown, a key moved the cursor, and all rows were read; peak memory in MB."""

    first_s: float
    usable_s: float
    all_s: float
    megabytes: float


def run() -> list[Row]:
    rows: list[Row] = []
    for n_episodes in BOUNDS:
        with tempfile.TemporaryDirectory() as folder:
            rows += _folder(Path(folder), n_episodes)
    return rows


def _folder(folder: Path, n_episodes: int) -> list[Row]:
    runs, bounds = store_copies(folder / "state", n_episodes, EPISODE_BYTES), BOUNDS[n_episodes]
    name = f"open of {n_episodes:,} episodes, {n_episodes * EPISODE_BYTES / 1e6:.0f} MB"
    opened = [_open_folder(runs, n_episodes, folder / "cache") for _ in range(N_FOLDERS + 1)]
    new, again = opened[:1], opened[1:]
    if n_episodes == min(BOUNDS):
        new += [_open_folder(runs, n_episodes) for _ in range(N_FOLDERS - 1)]
    usable, first, every = ([each.usable_s for each in new], *zip(*((each[0], each[2]) for each in again), strict=True))
    again_name = f"{name}: opened again"
    return [
        row(f"{name}: usable ({_range(usable)}), wall", statistics.median(usable), MAX_USABLE_S, "{:.2f} s"),
        Row(f"{name}: all read, wall", f"{statistics.median(each.all_s for each in new):.2f} s"),
        row(f"{again_name}, first rows ({_range(first)}), wall", statistics.median(first), bounds.first_s, "{:.2f} s"),
        Row(f"{again_name}, usable, wall", f"{statistics.median(each.usable_s for each in again):.2f} s"),
        row(f"{again_name}, all rows ({_range(every)}), wall", statistics.median(every), bounds.all_s, "{:.2f} s"),
        row(f"{name}: memory at most", max(each.megabytes for each in (*new, *again)), bounds.megabytes, "{:.0f} MB"),
    ]


def _range(times_s: Sequence[float]) -> str:
    return "{:.2f}-{:.2f}".format(*quartiles(times_s)[::2]) if len(times_s) > 1 else "once"


def _terminal(*command: str, cache: Path | None = None) -> Terminal:
    variables = {"PYTHONPATH": str(REPOSITORY)} if command[0] == CONSOLE else {}
    if cache is not None:
        variables["XDG_CACHE_HOME"] = str(cache)
    return Terminal(*command, columns=200, rows=50, env=terminal_environ(**variables))


def _open_folder(runs: Path, n_episodes: int, cache: Path | None = None) -> FolderTimes:
    with _terminal(CONSOLE, "open", str(runs), cache=cache) as terminal:
        terminal.wait_for(lambda: b"Maze" in terminal.raw, 60)
        first_s = time.perf_counter() - terminal.started
        terminal.wait_for(lambda: _cursor(terminal) > 0, 60)
        before = _cursor(terminal)
        terminal.send("j")
        terminal.wait_for(lambda: _cursor(terminal) > before, 60)
        usable_s = time.perf_counter() - terminal.started
        terminal.wait_for(lambda: f"{n_episodes:,} episodes".encode() in terminal.raw, 240)
        all_s = time.perf_counter() - terminal.started
        terminal.wait_until_absent("reading", 60)
        return FolderTimes(first_s, usable_s, all_s, peak_mb(terminal.process.pid))


def _cursor(terminal: Terminal) -> int:
    return next((row for row, line in enumerate(terminal.lines) if line.startswith("▸")), 0)
