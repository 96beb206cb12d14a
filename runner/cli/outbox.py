"""``agentgym-runner outbox``: print the numbers of undelivered events, and dead letters (rejected events)."""

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
from runner.events.subjects import DurableNames
from runner.publish.outbox import LOCAL, DeadLetter, Outbox, SinkCounts
from runner.publish.sink import Sink, broker_name, sink_key
from runner.store import EpisodeStore, open_index
from runner.util.display_text import pluralize

ALL = "all"


class SinkReport(SinkCounts, frozen=True, kw_only=True):
    """Number of events for one sink; ``configured``: whether the current configuration delivers events to it."""

    configured: bool


def main_outbox(argv: Sequence[str]) -> int:
    """Print the counts, after queueing what ``--retry`` and ``--send-history`` name; return 1 if there is none."""
    options = build_parser().parse_args(argv)
    log_to_stderr()
    profile, data_dir = read_state(options)
    if not (data_dir / "runs").is_dir():
        print_stderr(f"No outbox in {data_dir}: no episode has run there yet")
        _report({}, [], as_json=options.json)
        return 0
    egress = sink_key(Sink("egress", egress_reader(profile)))
    with (
        closing(open_index(EpisodeStore(data_dir))) as index,
        closing(Outbox(index, DurableNames.of(profile.nats))) as outbox,
    ):
        is_queued = options.retry is None or _retry(outbox, options.retry)
        if options.send_history:
            is_queued = _send_history(outbox, egress) and is_queued
        sinks = {
            sink: SinkReport(configured=sink in (LOCAL, egress), **msgspec.structs.asdict(counts))
            for sink, counts in outbox.counts().items()
        }
        _report(sinks, outbox.dead_letters(), as_json=options.json)
    return 0 if is_queued else 1


def build_parser() -> argparse.ArgumentParser:
    parser = subcommand_parser(
        "outbox",
        "Show the events that are not delivered yet, and dead letters with the reason of their failure.",
        epilog="A running node delivers events, and so do --run and --battery while they run.",
    )
    add_state_options(parser)
    parser.add_argument("--retry", metavar="ID|all", help="queue one dead letter, or all, for delivery again")
    parser.add_argument(
        "--send-history",
        action="store_true",
        help="queue what ended before the external broker was configured; it gets only later events otherwise",
    )
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")
    return parser


def _retry(outbox: Outbox, letter_id: str) -> bool:
    n = outbox.retry_dead(None if letter_id == ALL else letter_id)
    print_stderr(f"{pluralize(n, 'dead letter')} queued for delivery" if n else f"No dead letter to retry: {letter_id}")
    return n > 0


def _send_history(outbox: Outbox, egress: str | None) -> bool:
    if egress is None:
        print_stderr("No external broker is configured; set NATS_URL, or nats.url in the profile")
        return False
    outbox.register_sinks(egress)
    n, broker = outbox.send_earlier(egress), broker_name(egress)
    print_stderr(f"{pluralize(n, 'earlier event')} queued for {broker}" if n else f"No earlier event for {broker}")
    return n > 0


def _report(sinks: Mapping[str, SinkReport], letters: Sequence[DeadLetter], *, as_json: bool) -> None:
    if as_json:
        print_json({"sinks": sinks, "dead_letters": letters})
        return
    rows = [
        (name, "" if sink.configured else "not configured", *map(str, (sink.pending, sink.acked, sink.dead, sink.held)))
        for name, sink in zip(map(broker_name, sinks), sinks.values(), strict=True)
    ]
    print_table("Outbox", ("broker", "", "waiting", "recently delivered", "dead letters", "earlier"), rows)
    rows = [
        (letter.id, broker_name(letter.sink), letter.subject, letter.at.isoformat(timespec="seconds"), letter.reason)
        for letter in letters
    ]
    if rows:
        print_table("Dead letters", ("id", "broker", "subject", "since", "reason"), rows)
