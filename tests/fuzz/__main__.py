"""Command line of the fuzz targets: ``python -m tests.fuzz run|replay|keep|choose``; see CONTRIBUTING.md."""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz.campaign import HEADING, STATE, run_campaign, write_seeds
from tests.fuzz.target import ROOT, append_to_corpus, load_target, target_names


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz the decoders.")
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="fuzz for a while; needs atheris")
    run.add_argument("--seconds", type=float, default=600, help="seconds, shared among the targets")
    run.add_argument("--jobs", type=int, default=2, help="number of processes")
    run.add_argument("--target", choices=target_names(), action="append", help="a target; by default all")
    run.set_defaults(handle=_run)
    for command, handle, description in (
        ("replay", _replay, "check inputs, such as a crash, without atheris"),
        ("keep", _keep, "add inputs to the corpus in the repository"),
    ):
        each = commands.add_parser(command, help=description)
        each.add_argument("target", choices=target_names())
        each.add_argument("files", type=Path, nargs="+")
        each.set_defaults(handle=handle)
    choose = commands.add_parser("choose", help="add grown inputs that reach new code to the corpus; needs atheris")
    choose.add_argument("target", choices=target_names())
    choose.add_argument("--max-bytes", type=int, default=1_500, help="size of all added inputs")
    choose.set_defaults(handle=_choose)
    args = parser.parse_args()
    status: int = args.handle(args)
    return status


def _run(args: argparse.Namespace) -> int:
    if find_spec("atheris") is None:
        sys.stderr.write("atheris is not installed; it exists for Python 3.11 to 3.13 on Linux: run make fuzz there\n")
        return 2
    names = args.target or target_names()
    results = run_campaign(names, args.seconds, args.jobs)
    lines = [HEADING, *(result.row for result in results)]
    for result in results:
        for crash in result.crashes:
            command = f"{sys.executable} -m tests.fuzz replay {result.name}"
            lines.append(f"found: {command} {crash.relative_to(ROOT)}")
    report = "\n".join(lines) + "\n"
    sys.stdout.write(report)
    with (STATE / "history.txt").open("a") as history:
        history.write(report)
    return any(result.crashes or result.error for result in results)


def _replay(args: argparse.Namespace) -> int:
    target = load_target(args.target)
    for path in args.files:
        sys.stdout.write(f"{path}: {path.read_bytes()!r}\n")
        target.check(path.read_bytes())
    return 0


def _keep(args: argparse.Namespace) -> int:
    n_new = append_to_corpus(args.target, (path.read_bytes() for path in args.files))
    sys.stdout.write(f"{n_new} added to the corpus of {args.target}\n")
    return 0


def _choose(args: argparse.Namespace) -> int:
    with TemporaryDirectory() as merged:
        write_seeds(args.target, Path(merged))
        kept = {*Path(merged).iterdir()}
        options = ["-merge=1", "-use_counters=0", merged, str(STATE / "corpus" / args.target)]
        subprocess.run([sys.executable, "-m", "tests.fuzz.worker", args.target, *options], check=True)
        added = sorted((path.read_bytes() for path in Path(merged).iterdir() if path not in kept), key=len)
    sizes = accumulate(map(len, added))
    chosen = [data for data, size in zip(added, sizes, strict=True) if size <= args.max_bytes]
    n_new = append_to_corpus(args.target, chosen)
    sys.stdout.write(f"{n_new} of {len(added)} added to the corpus of {args.target}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
