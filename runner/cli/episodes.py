"""``agentgym-runner episodes``: list the stored episodes that a query selects, one line each."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice

import msgspec

from runner.cli.arguments import add_state_options, at_least
from runner.cli.logging_setup import log_to_stderr
from runner.cli.query_arguments import add_query_argument, protect_negations, query_condition, query_epilog
from runner.cli.report import format_number
from runner.cli.run_session import read_state
from runner.cli.terminal import ascii_json, output_stream, print_stderr, safe_text, write_result
from runner.errors import ConfigError
from runner.query.episodes import Condition, order_by
from runner.store import EpisodeIndex, EpisodeStore
from runner.store.failures import flag_names, parse_line
from runner.store.index_filling import open_filled_index
from runner.store.index_schema import COLUMNS, EpisodeRow, from_columns
from runner.util.amounts import format_amount
from runner.util.argument_parser import SafeArgumentParser
from runner.util.clock import Clock
from runner.util.display_text import one_line, pluralize

PAGE = 1_000
"""Number of rows that are read and printed at a time, so that a list of any length takes little memory."""


def main_episodes(argv: Sequence[str]) -> int:
    """Print the selected episodes; return 0.

    Raises:
        RunnerError: the query is invalid, or the profile or the state directory cannot be used.
    """
    options = build_parser().parse_args(protect_negations(argv))
    log_to_stderr()
    profile, data_dir = read_state(options)
    condition = query_condition(" ".join(options.query), data_dir, Clock().now())
    if not (data_dir / "runs").is_dir():
        print_stderr(f"No episodes in {data_dir} yet")
        return 0
    with closing(open_filled_index(EpisodeStore(data_dir))) as index:
        rows = islice(_rows(index, condition, options.sort), options.limit)
        return write_result(0, lambda: _print(rows, profile.agent.currency, as_json=options.json))


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the subcommand."""
    parser = SafeArgumentParser(
        prog="agentgym-runner episodes",
        description="List stored episodes, one line each, the newest first.",
        epilog=query_epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_query_argument(parser)
    parser.add_argument("--sort", type=_sort_field, metavar="FIELD", help="sort by a field, such as reward or time")
    parser.add_argument("--limit", type=at_least(1), metavar="N", help="print at most N episodes")
    add_state_options(parser)
    parser.add_argument("--json", action="store_true", help="print a JSON object per line on standard output")
    return parser


def _sort_field(name: str) -> str:
    try:
        return order_by(name)
    except ConfigError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc


def _rows(index: EpisodeIndex, condition: Condition, order: str | None) -> Iterator[EpisodeRow]:
    ids = index.select(
        f"SELECT episode_id, batch_id FROM episodes WHERE {condition.sql} ORDER BY {order or order_by('id')}",
        condition.parameters,
    )
    query = f"SELECT {COLUMNS} FROM episodes WHERE episode_id IN (SELECT value FROM json_each(?))"
    for start in range(0, len(ids), PAGE):
        page = ids[start : start + PAGE]
        found = index.select(query, (msgspec.json.encode([episode_id for episode_id, _ in page]).decode(),))
        try:
            rows = {(row.episode_id, row.batch_id): row for row in map(from_columns, found)}
        except msgspec.ValidationError as exc:
            raise index.unusable(exc) from exc
        yield from (rows[key] for key in page if key in rows)


def _print(rows: Iterator[EpisodeRow], currency: str, *, as_json: bool) -> None:
    stream, n = output_stream(), 0
    for row in rows:
        n += 1
        stream.write(f"{ascii_json(_as_json(row)) if as_json else safe_text(_line(row, currency))}\n")
    if not as_json:
        print_stderr(pluralize(n, "episode"))


def _as_json(row: EpisodeRow) -> dict[str, object]:
    cause, action, observation = parse_line(row.failure or "")
    failure = {"cause": cause, "action": action, "observation": observation, "step": row.failed_step}
    fields = msgspec.structs.asdict(row)
    del fields["failed_step"]
    return {**fields, "flags": flag_names(row.flags), "failure": failure if row.failure else None}


def _line(row: EpisodeRow, currency: str) -> str:
    agent = row.agent if row.model is None else f"{row.agent} {row.model}"
    cells = [
        row.episode_id,
        f"{row.ended_at:%Y-%m-%d %H:%M}",
        f"{one_line(row.env, 40):<10}",
        f"{one_line(agent, 60):<20}",
        f"{row.outcome:<11}",
        f"{format_number(row.reward):>7}",
        f"{pluralize(row.rounds, 'round'):>9}",
        f"{row.duration_s:.1f} s",
        "" if row.cost is None else format_amount(row.cost, currency),
        " ".join(flag_names(row.flags)),
    ]
    return "  ".join(cells).rstrip()
