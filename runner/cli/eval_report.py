"""``agentgym-runner eval-report``: a row per environment to set beside AgentGym's numbers, or why it cannot be."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing

from runner.cli.arguments import add_state_options, subcommand_parser
from runner.cli.reports import damaged_json, log_to_stderr, report_damaged
from runner.cli.run_session import read_state
from runner.cli.terminal import print_json, print_text
from runner.errors import ConfigError
from runner.results.evaluation import evaluate, latex, markdown
from runner.results.summary import Selection
from runner.store import EpisodeStore
from runner.store.index import open_index_to_read


def main_eval_report(argv: Sequence[str]) -> int:
    """Print the evaluation report of the selected episodes; return 0, or 1 if a file could not be read."""
    options = build_parser().parse_args(argv)
    log_to_stderr()
    _, data_dir = read_state(options)
    selection = Selection(env=options.env, agent=options.agent, model=options.model, batch=options.batch)
    store = EpisodeStore(data_dir)
    with closing(open_index_to_read(store)) as index:
        damaged = index.damaged

        def versions(episode_id: str) -> dict[str, str]:
            ((batch_id,), *_) = index.select("SELECT batch_id FROM episodes WHERE episode_id = ?", (episode_id,))
            return store.load(store.path(batch_id, episode_id)).versions

        rows = evaluate(index, selection, versions)
    code = report_damaged(damaged)
    if not rows:
        raise ConfigError(f"no episode in {data_dir} is selected; agentgym-runner --results lists what there is")
    if options.format == "json":
        print_json({"rows": rows, "damaged": damaged_json(damaged)})
    else:
        for line in (markdown if options.format == "markdown" else latex)(rows):
            print_text(line)
    return code


def build_parser() -> argparse.ArgumentParser:
    parser = subcommand_parser(
        "eval-report",
        "Print score and success as AgentGym's Evaluator computes them, per environment, with the settings "
        "that make the numbers comparable with AgentEval's, or why they are not.",
    )
    for name, what in (("env", "environment"), ("agent", "agent"), ("model", "model"), ("batch", "batch or battery")):
        parser.add_argument(f"--{name}", metavar=name.upper(), help=f"only this {what}")
    parser.add_argument(
        "--format", choices=["markdown", "latex", "json"], default="markdown", help="format (default: markdown)"
    )
    add_state_options(parser)
    return parser
