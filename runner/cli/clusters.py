"""``agentgym-runner clusters``: group the failed episodes that a query selects by how they failed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing

from runner.cli.arguments import add_state_options, at_least, subcommand_parser
from runner.cli.query_arguments import add_query_argument, protect_negations, query_condition, query_epilog
from runner.cli.reports import damaged_json, log_to_stderr, report_damaged
from runner.cli.run_session import read_state
from runner.cli.terminal import print_json, print_stderr, print_table
from runner.results.clusters import Cluster, find_clusters
from runner.store import EpisodeStore
from runner.store.flags import FLAGS
from runner.store.index import open_index_to_read
from runner.util.clock import Clock
from runner.util.display_text import one_line, pluralize

DEFAULT_LIMIT = 20


def main_clusters(argv: Sequence[str]) -> int:
    """Print the failure clusters of the selected episodes; return 0, or 1 if a file could not be read."""
    options = build_parser().parse_args(protect_negations(argv))
    log_to_stderr()
    _, data_dir = read_state(options)
    condition = query_condition(" ".join(options.query), data_dir, Clock().now())
    if not (data_dir / "runs").is_dir():
        print_stderr(f"No episodes in {data_dir} yet")
        return 0
    with closing(open_index_to_read(EpisodeStore(data_dir))) as index:
        clause = f"WHERE ({condition.sql}) AND failure IS NOT NULL ORDER BY episode_id"
        clusters = find_clusters(index.rows(clause, condition.parameters))
        damaged = index.damaged
    code = report_damaged(damaged)
    if options.json:
        shown = clusters[: options.limit]
        print_json({"clusters": shown, "n_clusters": len(clusters), "damaged": damaged_json(damaged)})
    else:
        _print(clusters, options.limit)
    return code


def build_parser() -> argparse.ArgumentParser:
    flags = "\n".join(f"  {name:<10} {meaning}" for name, meaning in FLAGS.items())
    parser = subcommand_parser(
        "clusters",
        "Group failed episodes by environment, cause, and the templates of the action that failed and of "
        "the answer to it: the words of its first sentence, without the literals of the task.",
        epilog=f"flags, which are counted per cluster:\n{flags}\n\n{query_epilog()}",
    )
    add_query_argument(parser)
    parser.add_argument(
        "--limit",
        type=at_least(1),
        default=DEFAULT_LIMIT,
        metavar="N",
        help=f"print the N largest clusters (default: {DEFAULT_LIMIT})",
    )
    add_state_options(parser, json="print JSON on standard output")
    return parser


def _print(clusters: Sequence[Cluster], limit: int) -> None:
    if not clusters:
        print_stderr("No failed episodes")
        return
    rows = [
        (
            str(cluster.n),
            one_line(cluster.env, 40),
            one_line(cluster.text, 160),
            ", ".join(f"{name} {n}" for name, n in cluster.flags.items()) or "-",
            cluster.representative,
            "-" if cluster.step is None else str(cluster.step),
        )
        for cluster in clusters[:limit]
    ]
    print_table("Failures", ("n", "environment", "failure", "flags", "representative", "step"), rows)
    hidden = len(clusters) - len(rows)
    n = sum(cluster.n for cluster in clusters)
    print_stderr(f"{pluralize(n, 'failed episode')} in {pluralize(len(clusters), 'cluster')}")
    if hidden:
        print_stderr(f"{pluralize(hidden, 'smaller cluster')} not shown; --limit shows more")
