"""``agentgym-runner episodes``: list the stored episodes that a query selects, one line each."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice

import msgspec

from runner.cli.arguments import add_state_options, at_least, subcommand_parser
from runner.cli.query_arguments import add_query_argument, protect_negations, query_condition, query_epilog
from runner.cli.reports import damaged_json, format_number, log_to_stderr, report_damaged
from runner.cli.results import cost_currency
from runner.cli.run_session import read_state
from runner.cli.terminal import ascii_json, output_stream, print_stderr, safe_text, write_result
from runner.errors import ConfigError, StoreError
from runner.query.episodes import Condition, order_by, text_patterns
from runner.query.syntax import parse
from runner.store import EpisodeIndex, EpisodeStore
from runner.store.failures import flag_names, parse_line
from runner.store.index import open_index_to_read
from runner.store.index_schema import EpisodeRow
from runner.store.passages import PassageKind, TextPattern, find_hits
from runner.types import agentgym_item_id, is_result_unknown, split_models
from runner.util.amounts import format_amount
from runner.util.clock import Clock
from runner.util.display_text import one_line, pluralize

HIT_CHARS = 160
"""Largest number of characters of a line that are printed without ``--json``."""
HIT_CONTEXT = 60
"""Number of characters printed before the words that were found in a longer line."""
PAGE = 1_000
"""Number of rows that are read and printed at a time, so that a list of any length takes little memory."""


def main_episodes(argv: Sequence[str]) -> int:
    """Print the selected episodes; return 0, or 1 if a file could not be read."""
    options = build_parser().parse_args(protect_negations(argv))
    log_to_stderr()
    profile, data_dir = read_state(options)
    query = " ".join(options.query)
    condition = query_condition(query, data_dir, Clock().now())
    patterns = text_patterns(parse(query)) if options.hits else []
    if options.hits and not patterns:
        raise ConfigError('--hits prints the lines that text: finds; add a term such as text:"locked door"')
    if not (data_dir / "runs").is_dir():
        print_stderr(f"No episodes in {data_dir} yet")
        return 0
    store = EpisodeStore(data_dir)
    with closing(open_index_to_read(store)) as index:
        # a limit of hits is none of episodes
        limit = None if options.hits else options.limit
        code, rows = report_damaged(index.damaged), _rows(index, condition, options.sort, limit)

        def show() -> None:
            if options.hits:
                _print_hits(islice(_hits(store, rows, patterns), options.limit), as_json=options.json)
            else:
                _print(rows, cost_currency(profile.agent, index), as_json=options.json)
            if code and options.json:
                output_stream().write(f"{ascii_json({'damaged': damaged_json(index.damaged)})}\n")

        return write_result(code, show)


def build_parser() -> argparse.ArgumentParser:
    parser = subcommand_parser(
        "episodes", "List stored episodes, one line each, the newest first.", epilog=query_epilog()
    )
    add_query_argument(parser)
    parser.add_argument("--sort", type=_sort_field, metavar="FIELD", help="sort by a field, such as reward or time")
    parser.add_argument("--limit", type=at_least(1), metavar="N", help="print at most N episodes, or lines with --hits")
    parser.add_argument("--hits", action="store_true", help="print the lines that the terms text: of the query find")
    add_state_options(parser, json="print a JSON object per line, the last one with damaged files, if any")
    return parser


def _sort_field(name: str) -> str:
    try:
        return order_by(name)
    except ConfigError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc


def _rows(index: EpisodeIndex, condition: Condition, order: str | None, limit: int | None) -> Iterator[EpisodeRow]:
    ids = index.select(
        f"SELECT episode_id, batch_id FROM episodes WHERE {condition.sql} ORDER BY {order or order_by('id')} "
        f"LIMIT {-1 if limit is None else limit}",
        condition.parameters,
    )
    clause = "WHERE episode_id IN (SELECT value FROM json_each(?))"
    for start in range(0, len(ids), PAGE):
        page = ids[start : start + PAGE]
        found = index.rows(clause, (msgspec.json.encode([episode_id for episode_id, _ in page]).decode(),))
        rows = {(row.episode_id, row.batch_id): row for row in found}
        yield from (rows[key] for key in page if key in rows)


class EpisodeHit(msgspec.Struct, frozen=True):
    """A line that was found in an episode; ``step`` is None in the observation of the reset."""

    episode_id: str
    batch_id: str
    env: str
    step: int | None
    kind: PassageKind
    line: str
    start: int
    end: int


def _hits(store: EpisodeStore, rows: Iterator[EpisodeRow], patterns: list[TextPattern]) -> Iterator[EpisodeHit]:
    for row in rows:
        try:
            for hit in find_hits(store.read(store.path(row.batch_id, row.episode_id)), patterns):
                yield EpisodeHit(row.episode_id, row.batch_id, row.env, *msgspec.structs.astuple(hit))
        except StoreError as exc:  # the file was deleted since, or is damaged
            print_stderr(str(exc))


def _print_hits(hits: Iterator[EpisodeHit], *, as_json: bool) -> None:
    stream, n, episodes = output_stream(), 0, set()
    for hit in hits:
        n += 1
        episodes.add(hit.episode_id)
        stream.write(f"{ascii_json(hit) if as_json else safe_text(_hit_line(hit))}\n")
    if not as_json:
        print_stderr(f"{pluralize(n, 'hit')} in {pluralize(len(episodes), 'episode')}")


def _hit_line(hit: EpisodeHit) -> str:
    start = max(0, hit.start - HIT_CONTEXT) if len(hit.line) > HIT_CHARS else 0
    cut = "… " if start else ""
    step = "reset" if hit.step is None else f"step {hit.step}"
    return f"{hit.episode_id}  {step:<8}  {hit.kind:<11}  {cut}{one_line(hit.line[start:], HIT_CHARS)}"


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
    item_id = None if row.task_index is None else agentgym_item_id(row.env, row.task_index)
    fields = msgspec.structs.asdict(row) | {"models": split_models(row.models), "item_id": item_id}
    if _is_result_unknown(row):
        fields |= {"outcome": None, "success": None}
    del fields["failed_step"]
    return {**fields, "flags": flag_names(row.flags), "failure": failure if row.failure else None}


def _is_result_unknown(row: EpisodeRow) -> bool:
    return is_result_unknown(row.transport, row.outcome, unscored=row.unscored)


def _line(row: EpisodeRow, currency: str) -> str:
    agent = row.agent if row.models is None else f"{row.agent} {row.models}"
    cells = [
        row.episode_id,
        f"{row.ended_at:%Y-%m-%d %H:%M}",
        f"{one_line(row.env, 40):<10}",
        f"{one_line(agent, 60):<20}",
        f"{'unknown' if _is_result_unknown(row) else row.outcome:<11}",
        f"{format_number(row.reward):>7}",
        f"{pluralize(row.rounds, 'round'):>9}",
        f"{row.duration_s:.1f} s",
        "" if row.cost is None else format_amount(row.cost, currency),
        " ".join(flag_names(row.flags)),
    ]
    return "  ".join(cells).rstrip()
