"""Runs the benchmarks beside this file and prints one table; exit status 1 when a bound is missed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console

from tests.benchmarks.measure import Row, table

PREFIX = "bench_"
progress = Console(stderr=True, highlight=False)


def available() -> list[str]:
    return sorted(path.stem.removeprefix(PREFIX) for path in Path(__file__).parent.glob(f"{PREFIX}*.py"))


def run_all(names: Iterable[str]) -> list[Row]:
    rows: list[Row] = []
    for name in names:
        progress.print(f"{name} ...")
        rows += importlib.import_module(f"tests.benchmarks.{PREFIX}{name}").run()
    return rows


def main(arguments: Sequence[str]) -> int:
    names = [argument.removeprefix(PREFIX) for argument in arguments] or available()
    if unknown := set(names) - set(available()):
        progress.print(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(available())}")
        return 2
    rows = run_all(names)
    Console().print(table(rows))
    return 1 if any(row.ok is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
