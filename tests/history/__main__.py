"""Records a history under faults and checks it: python -m tests.history [--seed N] [--seconds S]."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.history.checker import check
from tests.history.records import read_history
from tests.history.report import report, silent_observers
from tests.history.schedule import make_schedule
from tests.history.soak import record_history

IN_OWN_MOUNTS = "AGENTGYM_SOAK_MOUNTS"


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    folder = options.history
    if folder is None:
        _use_own_mounts(arguments)
        seed = secrets.randbelow(10**6) if options.seed is None else options.seed
        if options.folder is not None:
            options.folder.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"agentgym-soak-{seed}-", dir=options.folder)).resolve()
        sys.stdout.write(f"seed {seed}, {options.seconds:g} s, history in {folder}\n")
        sys.stdout.flush()
        asyncio.run(record_history(folder, make_schedule(seed, options.seconds), mutation=options.mutation))
    return _check(folder)


def _check(folder: Path) -> int:
    """Print the figures and violations of a history; return 1 if there are violations, or an observer saw nothing."""
    records = read_history(sorted(folder.glob("*.jsonl")))
    violations = check(records)
    silent = [f"nothing was recorded of {name}" for name in silent_observers(records)]
    lines = [*report(records), *silent, *map(str, violations), f"{len(violations)} violations; history in {folder}"]
    (folder / "report.txt").write_text("\n".join(lines) + "\n")
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if violations or silent else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.history", description=__doc__)
    parser.add_argument("--seed", type=int, help="seed of the schedule (default: drawn)")
    parser.add_argument("--seconds", type=float, default=600.0, help="duration of the schedule (default 600)")
    parser.add_argument("--mutation", metavar="NAME", help="run a node with this mutation, which the checker must find")
    parser.add_argument("--history", type=Path, metavar="DIR", help="only check a history that was recorded before")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="folder for the history (default: temporary files)")
    return parser


def _use_own_mounts(arguments: Sequence[str]) -> None:
    """Start this program again in a mount namespace, whose file systems vanish with it, where that is allowed."""
    if os.geteuid() != 0 or IN_OWN_MOUNTS in os.environ or sys.platform != "linux":
        return
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-m", "tests.history", *arguments]
    os.execvpe(command[0], command, os.environ | {IN_OWN_MOUNTS: "1"})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
