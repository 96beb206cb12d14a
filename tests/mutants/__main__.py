"""``python -m tests.mutants [WORD]``: plant each fault in a copy, run its tests, and print which survived.

Two copies are used at a time. A fault is caught if a test fails; the code is 1 if a fault survives that users would
suffer as lost, doubled, miscounted, unsanitised or secret.
"""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, TypeAlias

from rich.console import Console
from rich.table import Table

from tests.mutants.catalogue import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
N_COPIES = max(1, (os.cpu_count() or 1))
TIME_LIMIT_S = 600
Verdict: TypeAlias = Literal["caught", "survived", "no test ran", "time limit"]


def main(words: list[str]) -> int:
    """Run the faults whose module or kind has one of the words, or all of them."""
    chosen = [each for each in MUTANTS if not words or any(word in f"{each.kind} {each.name}" for word in words)]
    console, copies = Console(), queue.Queue[Path]()
    with TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(N_COPIES) as executor:
        for number in range(N_COPIES):
            copies.put(copy_to(Path(folder, str(number))))

        def judge(mutant: Mutant) -> Verdict:
            copy = copies.get()
            try:
                return verdict_of(mutant, copy)
            finally:
                copies.put(copy)

        verdicts = dict(zip(chosen, executor.map(judge, chosen), strict=True))
    survivors = [mutant for mutant, verdict in verdicts.items() if verdict != "caught"]
    table = Table(title=f"{len(chosen) - len(survivors)} of {len(chosen)} faults are caught; the others")
    for column in ("kind", "place", "verdict"):
        table.add_column(column)
    for mutant in survivors:
        table.add_row(mutant.kind, mutant.name, verdicts[mutant])
    console.print(table)
    return 1 if any(mutant.kind != "broken" for mutant in survivors) else 0


def copy_to(folder: Path) -> Path:
    """Copy the tracked files, so that the faulty modules are imported in place of the installed ones."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        source, target = ROOT / name, folder / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    return folder


def verdict_of(mutant: Mutant, copy: Path) -> Verdict:
    """Plant a fault in a copy, run its tests that ``make test`` runs, and repair the copy."""
    path = copy / mutant.path
    original = path.read_text(encoding="utf-8")
    path.write_text(original.replace(mutant.before, mutant.after), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not long", "-p", "no:cacheprovider", *mutant.tests]
    environ = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=copy, env=environ, capture_output=True, timeout=TIME_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return "time limit"
    finally:
        path.write_text(original, encoding="utf-8")
    verdicts: dict[int, Verdict] = {0: "survived", 5: "no test ran"}
    return verdicts.get(done.returncode, "caught")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
