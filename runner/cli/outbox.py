"""``agentgym-runner outbox``: print the number of undelivered events and dead letters (rejected events)."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import closing

import msgspec

from runner.bus.address import egress_reader
from runner.cli.arguments import add_state_options, subcommand_parser
from runner.cli.reports import log_to_stderr
from runner.cli.run_session import read_state
from runner.cli.terminal import print_json, print_stderr, print_table
from runner.config import Profile
from runner.events.subjects import DurableNames
from runner.publish.outbox import LOCAL, DeadLetter, Outbox, SinkCounts
from runner.publish.sink import Sink, sink_key
from runner.store import EpisodeStore, open_index

ALL = "all"


class SinkReport(SinkCounts, frozen=True, kw_only=True):
    """Number of events for one sink; ``configured``: whether the current configuration delivers events to it."""

    configured: bool


def main_outbox(argv: Sequence[str]) -> int:
    """Print the counts; with ``--retry``, first queue dead letters again, and return 1 if there is none."""
    options = build_parser().parse_args(argv)
    log_to_stderr()
    profile, data_dir = read_state(options)
    if not (data_dir / "runs").is_dir():
        print_stderr(f"No outbox in {data_dir}: no episode has run there yet")
        _report({}, [], as_json=options.json)
        return 0
    with closing(open_index(EpisodeStore(data_dir))) as index:
        outbox = Outbox(index, DurableNames.of(profile.nats))
        retried = _retry(outbox, options.retry)
        _report(_sinks(outbox, profile), outbox.dead_letters(), as_json=options.json)
    return 0 if retried else 1


def build_parser() -> argparse.ArgumentParser:
    parser = subcommand_parser(
        "outbox",
        "Show the events that are not delivered yet, and dead letters with the reason of their failure.",
        epilog="A running node delivers events, and so do --run and --battery while they run.",
    )
    add_state_options(parser)
    parser.add_argument("--retry", metavar="ID|all", help="queue one dead letter, or all, for delivery again")
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")
    return parser


def _retry(outbox: Outbox, letter_id: str | None) -> bool:
    if letter_id is None:
        return True
    n = outbox.retry_dead(None if letter_id == ALL else letter_id)
    print_stderr(f"{n} dead letters queued for delivery" if n else f"No dead letter to retry: {letter_id}")
    return n > 0


def _sinks(outbox: Outbox, profile: Profile) -> dict[str, SinkReport]:
    configured = (LOCAL, sink_key(Sink("egress", egress_reader(profile))))
    return {
        sink: SinkReport(configured=sink in configured, **msgspec.structs.asdict(counts))
        for sink, counts in outbox.counts().items()
    }


def _report(sinks: Mapping[str, SinkReport], letters: Sequence[DeadLetter], *, as_json: bool) -> None:
    if as_json:
        print_json({"sinks": sinks, "dead_letters": letters})
        return
    rows = [
        (name, "" if sink.configured else "not configured", str(sink.pending), str(sink.acked), str(sink.dead))
        for name, sink in sinks.items()
    ]
    print_table("Outbox", ("sink", "", "waiting", "recently delivered", "dead letters"), rows)
    rows = [
        (letter.id, letter.sink, letter.subject, letter.at.isoformat(timespec="seconds"), letter.reason)
        for letter in letters
    ]
    if rows:
        print_table("Dead letters", ("id", "sink", "subject", "since", "reason"), rows)
