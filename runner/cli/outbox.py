"""``agentgym-runner outbox``: what waits to be published, and what never can be."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from runner.bus.address import egress_reader
from runner.cli.logs import log_to_person
from runner.cli.terminal import console, err, print_json, safe
from runner.config import Profile, load_profile, resolve_data_dir
from runner.publish.outbox import LOCAL, DeadLetter, Outbox, SinkCounts

ALL = "all"


class SinkReport(SinkCounts, frozen=True, kw_only=True):
    """What the outbox holds for a sink, and whether anything is sent there as things are set now."""

    configured: bool


def main_outbox(argv: Sequence[str]) -> int:
    """Print the outbox of a state directory, after trying dead letters again where asked to.

    Returns:
        0, or 1 when there is no dead letter to try again.

    Raises:
        RunnerError: when the profile or the outbox cannot be used.
    """
    options = _parser().parse_args(argv)
    log_to_person()
    profile = load_profile(options.config, environ=os.environ, cwd=Path.cwd())
    path = resolve_data_dir(options.data_dir, os.environ, profile, Path.cwd()) / "outbox.sqlite"
    if not path.exists():
        err(f"There is no outbox in {path.parent}; nothing was played into it yet")
        return _report({}, [], as_json=options.json)
    outbox = Outbox(path)
    try:
        retried = _retry(outbox, options.retry)
        _report(_sinks(outbox, profile), outbox.dead_letters(), as_json=options.json)
    finally:
        outbox.close()
    return 0 if retried else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="agentgym-runner outbox",
        description="Show which events wait to be published, and which cannot be and why.",
        epilog="Events are sent by a running node, and by --run and --battery while they play.",
        allow_abbrev=False,
    )
    parser.add_argument("--data-dir", metavar="DIR", help="the state directory (default ./data)")
    parser.add_argument("--config", metavar="NAME|PATH", help="the profile (default field-runner-4090)")
    parser.add_argument("--retry", metavar="ID|all", help="let a dead letter, or all of them, wait to be sent again")
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")
    return parser


def _retry(outbox: Outbox, asked: str | None) -> bool:
    if asked is None:
        return True
    n = outbox.retry_dead(None if asked == ALL else asked)
    err(f"{n} dead letters wait to be sent again" if n else f"There is no dead letter to send again: {asked}")
    return n > 0


def _sinks(outbox: Outbox, profile: Profile) -> dict[str, SinkReport]:
    from runner.publish.sink import (
        Sink,
        sink_key,  # knows the client of the bus, which takes its time
    )

    configured = (LOCAL, sink_key(Sink("egress", egress_reader(profile))))
    return {
        sink: SinkReport(configured=sink in configured, **msgspec.structs.asdict(counts))
        for sink, counts in outbox.counts().items()
    }


def _report(sinks: Mapping[str, SinkReport], letters: Sequence[DeadLetter], *, as_json: bool) -> int:
    if as_json:
        print_json({"sinks": sinks, "dead_letters": letters})
        return 0
    _print_sinks(sinks)
    _print_letters(letters)
    return 0


def _print_sinks(sinks: Mapping[str, SinkReport]) -> None:
    from rich.table import Table

    table = Table("sink", "", "waiting", "arrived lately", "dead letters", title="Outbox")
    for name, sink in sinks.items():
        note = "" if sink.configured else "not configured"
        table.add_row(safe(name), note, str(sink.pending), str(sink.acked), str(sink.dead))
    console().print(table)


def _print_letters(letters: Sequence[DeadLetter]) -> None:
    if not letters:
        return
    from rich.table import Table

    table = Table(title="Dead letters")
    for column in ("id", "sink", "subject", "since", "reason"):
        table.add_column(column, overflow="fold")
    for letter in letters:
        since = letter.at.isoformat(timespec="seconds")
        table.add_row(*map(safe, (letter.id, letter.sink, letter.subject, since, letter.reason)))
    console().print(table)
