"""Runs the benchmarks of this folder and prints one table; exits with 1 if a bound is missed.

python -m tests.benchmarks [--full] [NAME…]; ``--full`` selects those that are slow by nature.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console

from tests.benchmarks.measure import Row, table

PREFIX, FULL = "bench_", "full_"
progress = Console(stderr=True, highlight=False)


def available(prefix: str) -> list[str]:
    return sorted(path.stem.removeprefix(prefix) for path in Path(__file__).parent.glob(f"{prefix}*.py"))


def run_all(prefix: str, names: Iterable[str]) -> list[Row]:
    rows: list[Row] = []
    started = time.perf_counter()
    for name in names:
        progress.print(f"{name} ...")
        before = time.perf_counter()
        rows += importlib.import_module(f"tests.benchmarks.{prefix}{name}").run()
        progress.print(f"{name}: {time.perf_counter() - before:.0f} s")
    progress.print(f"all: {time.perf_counter() - started:.0f} s")
    return rows


def main(arguments: Sequence[str]) -> int:
    prefix = FULL if "--full" in arguments else PREFIX
    known = available(prefix)
    names = [argument.removeprefix(prefix) for argument in arguments if argument != "--full"] or known
    if unknown := set(names) - set(known):
        progress.print(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(known)}")
        return 2
    rows = run_all(prefix, names)
    Console().print(table(rows))
    return 1 if any(row.ok is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
