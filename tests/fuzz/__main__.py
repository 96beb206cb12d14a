"""Command line of the fuzz targets: ``python -m tests.fuzz run|replay|keep|choose``; see CONTRIBUTING.md."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

from tests.fuzz.campaign import HEADING, STATE, run_campaign
from tests.fuzz.choose import choose_inputs
from tests.fuzz.target import ROOT, append_to_corpus, load_corpus, load_target, target_names


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
    choose = commands.add_parser("choose", help="add the grown inputs that reach the most new lines to the corpus")
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
    grown = sorted((STATE / "corpus" / args.target).iterdir())
    inputs = [path.read_bytes() for path in grown]
    target = load_target(args.target)
    chosen = choose_inputs(target, load_corpus(args.target), inputs, args.max_bytes)
    n_new = append_to_corpus(args.target, chosen)
    sys.stdout.write(f"{n_new} of {len(inputs)} added to the corpus of {args.target}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
