"""``agentgym-runner prune``: archive or delete old episodes, by their age and by the size of all."""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

from runner.cli.arguments import add_state_options, at_least, subcommand_parser
from runner.cli.reports import log_to_stderr, report_damaged
from runner.cli.run_session import read_state
from runner.cli.terminal import print_json, print_stderr, print_table
from runner.config.profile import AGE_EXPECTED, AGE_PATTERN, RetentionSettings
from runner.errors import ConfigError, StoreError
from runner.events.subjects import DurableNames
from runner.node.retention import (
    ARCHIVED,
    RECENT,
    TAGGED,
    UNDELIVERED,
    UNFINISHED,
    Policy,
    Pruner,
    PruneReport,
    exceeds_quota,
    pruning_lock,
)
from runner.node.storage import storage_problem
from runner.publish.outbox import Outbox
from runner.store import EpisodeStore, open_index
from runner.util.display_text import one_line, pluralize

_BYTES = re.compile(r"([0-9]{1,15})([KMGT]?)i?B?", re.ASCII)
_ADVICE: Final = {
    UNDELIVERED: "A running node delivers events; --undelivered prunes these episodes, too",
    RECENT: "Prune again in ten minutes, or with --undelivered: a broker that fails may lose events so new",
    TAGGED: "--keep none prunes tagged episodes, too",
    UNFINISHED: "Episodes of a batch can be pruned after it has ended; finish or cancel it",
    ARCHIVED: "--delete deletes archives, too",
}


def main_prune(argv: Sequence[str]) -> int:
    """Print what was done; return 0, or 1 if a batch could not be pruned or a file could not be read."""
    options = build_parser().parse_args(argv)
    log_to_stderr()
    profile, data_dir = read_state(options)
    policy = _policy(options, profile.retention)
    if not policy.prunes:
        raise ConfigError("give --older or --max-bytes, or set retention.older or retention.max_bytes in the profile")
    if not (data_dir / "runs").is_dir():
        print_stderr(f"No episodes in {data_dir} yet")
        return _print_report(PruneReport(), options)
    with _openable(data_dir) as folder:
        store = EpisodeStore(folder)
        with closing(open_index(store)) as index, closing(Outbox(index, DurableNames.of(profile.nats))) as outbox:
            report = Pruner(store, index, outbox).prune(policy, dry_run=options.dry_run)
        code = report_damaged(index.damaged)
        report.problems = [problem.replace(str(folder), str(data_dir)) for problem in report.problems]
    return _print_report(report, options, policy.max_bytes if exceeds_quota(policy, report) else None) or code


@contextmanager
def _openable(data_dir: Path) -> Iterator[Path]:
    """Yield the folder; on a full disk, where no database can be opened, one elsewhere with copies of its databases.

    The next start updates the index of ``data_dir`` from the episode files.

    Raises:
        StoreError: another process prunes the folder, or there is no room for the copies.
    """
    if (problem := storage_problem(data_dir)) is None:
        yield data_dir
        return
    with pruning_lock(data_dir), TemporaryDirectory(prefix="agentgym-prune-") as folder:
        try:
            for path in [*data_dir.glob("*.sqlite*"), *data_dir.glob("batches.jsonl")]:
                shutil.copy(path, folder)
            for name in ("runs", "traces"):
                (Path(folder) / name).symlink_to(data_dir.absolute() / name)
        except OSError as exc:
            raise StoreError(f"{problem.text}, and {folder} has no room for its index: {exc}; set TMPDIR") from exc
        yield Path(folder)


def build_parser() -> argparse.ArgumentParser:
    parser = subcommand_parser(
        "prune",
        "Archive or delete old episodes. An archive is a zip file beside the other episodes of its batch, "
        "which --results and agentgym-tui read. Batches that run, wait or can be resumed are kept, and so are episodes "
        "whose events are not delivered yet.",
    )
    parser.add_argument("--older", type=_age, metavar="AGE", help="prune episodes that ended before, e.g. 12h, 30d, 8w")
    parser.add_argument(
        "--max-bytes",
        type=_size,
        metavar="SIZE",
        help="prune the oldest episodes until all files and archives take at most as much, e.g. 20G",
    )
    parser.add_argument("--keep", choices=["tagged", "none"], help="episodes to keep (default: from the profile)")
    parser.add_argument("--delete", action="store_true", help="delete the episodes, and old archives, for good")
    parser.add_argument(
        "--undelivered", action="store_true", help="also prune episodes whose events were not delivered to every broker"
    )
    parser.add_argument("--dry-run", action="store_true", help="show what would be pruned; change nothing")
    add_state_options(parser, json="print JSON on standard output")
    return parser


def _policy(options: argparse.Namespace, settings: RetentionSettings) -> Policy:
    if options.older is not None or options.max_bytes is not None:
        settings = msgspec.structs.replace(settings, older=options.older, max_bytes=options.max_bytes)
    if options.keep is not None:
        settings = msgspec.structs.replace(settings, keep=options.keep)
    if options.delete:
        settings = msgspec.structs.replace(settings, archive=False)
    elif options.older is not None or options.max_bytes is not None:
        settings = msgspec.structs.replace(settings, archive=True)
    return msgspec.structs.replace(Policy.from_profile(settings), undelivered=options.undelivered)


def _print_report(report: PruneReport, options: argparse.Namespace, exceeded: int | None = None) -> int:
    for problem in report.problems:
        print_stderr(f"agentgym-runner: {one_line(problem, 1000)}")
    if options.json:
        print_json({"dry_run": options.dry_run, **msgspec.structs.asdict(report)})
        return 1 if report.problems else 0
    done = [(name, n) for name, n in (("archived", report.n_archived), ("deleted", report.n_deleted)) if n]
    would = "would be " if options.dry_run else ""
    rows = [(would + name, pluralize(n, "episode")) for name, n in done] or [(would + "pruned", "0 episodes")]
    rows.append((f"{would}freed", f"{'about ' if options.dry_run else ''}{_mib(report.n_freed)}"))
    rows += [(f"kept: {reason}", pluralize(n, "episode")) for reason, n in report.kept.items()]
    rows.append(("left on the disk", _mib(report.n_bytes)))
    print_table("Pruning", ("", ""), rows)
    if exceeded is not None:
        print_stderr(
            f"{_mib(report.n_bytes)} are left, more than the limit of {_mib(exceeded)}, and nothing more can be pruned"
        )
    if report.problems and not options.delete:
        print_stderr("An archive needs room until its episodes are deleted; --delete needs none")
    advised = (UNDELIVERED, RECENT) if exceeded is None else _ADVICE.keys()
    for reason in [each for each in report.kept if each in advised]:
        print_stderr(_ADVICE[reason])
    return 1 if report.problems else 0


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / (1 << 20):,.1f} MiB"


def _age(text: str) -> str:
    if re.fullmatch(AGE_PATTERN, text, re.ASCII) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not {AGE_EXPECTED}")
    return text


def _size(text: str) -> int:
    if (match := _BYTES.fullmatch(text)) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 500M or 20G")
    n_bytes = int(match[1]) << 10 * " KMGT".index(match[2] or " ")
    return at_least(1)(str(n_bytes))
