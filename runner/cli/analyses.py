"""``agentgym-runner clusters``, ``compare`` and ``eval-report``: what the stored episodes show."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from runner.cli.arguments import add_state_options, at_least, subcommand_parser
from runner.cli.query_arguments import add_query_argument, protect_negations, query_condition, query_epilog
from runner.cli.reports import damaged_json, format_number, report_damaged
from runner.cli.run_session import read_state
from runner.cli.terminal import (
    ascii_json,
    output_stream,
    print_json,
    print_stderr,
    print_table,
    print_text,
    safe_text,
    write_result,
)
from runner.errors import ConfigError
from runner.results.alignment import SIDES, AlignedEpisodes, AlignedStep, align, word_segments
from runner.results.clusters import Cluster, find_clusters
from runner.results.evaluation import evaluate, latex, markdown
from runner.results.summary import Selection
from runner.store import EpisodeStore, open_index_to_read
from runner.store.episode_file import EpisodeRecord, decode_episode
from runner.store.flags import FLAGS
from runner.types import join_models
from runner.util.clock import Clock
from runner.util.display_text import one_line, pluralize
from runner.util.files import read_file

DEFAULT_LIMIT = 20


def main_clusters(argv: Sequence[str]) -> int:
    """Print the failure clusters of the selected episodes; return 0, or 1 if a file could not be read."""
    options = clusters_parser().parse_args(protect_negations(argv))
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
        _print_clusters(clusters, options.limit)
    return code


def clusters_parser() -> argparse.ArgumentParser:
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


def _print_clusters(clusters: Sequence[Cluster], limit: int) -> None:
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


_ADVICE = "agentgym-runner episodes lists the ids"


def main_compare(argv: Sequence[str]) -> int:
    options = compare_parser().parse_args(argv)
    _, data_dir = read_state(options)
    left, right = (load_episode(name, data_dir) for name in (options.left, options.right))
    aligned = align(left, right)
    if options.json:
        return write_result(0, lambda: output_stream().write(f"{_as_json(left, right, aligned)}\n"))
    lines = _lines(left, right, aligned, everything=options.all)
    return write_result(0, lambda: output_stream().writelines(f"{safe_text(line)}\n" for line in lines))


def compare_parser() -> argparse.ArgumentParser:
    parser = subcommand_parser(
        "compare",
        "Compare two stored episodes step by step, from the first step on in which they differ. "
        "In a line of B, [-words-] are those of A in its place and {+words+} its own.",
    )
    for name, side in zip(("left", "right"), SIDES, strict=True):
        parser.add_argument(name, metavar=side, help=f"episode {side}: its id, the beginning of its id, or its file")
    parser.add_argument("--all", action="store_true", help="print the steps before the first difference, too")
    add_state_options(parser, json="print JSON on standard output")
    return parser


def load_episode(name: str, data_dir: Path) -> EpisodeRecord:
    """Load an episode by its id, the beginning of its id, or its file.

    Raises:
        ConfigError: no episode, or more than one, has an id that begins so.
        StoreError: the episode cannot be read.
    """
    if name.endswith(".json"):
        return decode_episode(read_file(Path(name)), Path(name).absolute())
    if not (data_dir / "runs").is_dir() or not name.isalnum() or not name.isascii():
        raise ConfigError(f"there is no episode {one_line(name, 60)!r} in {data_dir}; {_ADVICE}")
    store = EpisodeStore(data_dir)
    with closing(open_index_to_read(store)) as index:
        query = "SELECT batch_id, episode_id FROM episodes WHERE episode_id >= ? AND episode_id < ? LIMIT 2"
        found = index.select(query, (name.upper(), f"{name.upper()}~"))
    if len(found) != 1:
        report_damaged(index.damaged)  # the episode may be in one of these
        count = "no episode" if not found else "more than one episode"
        raise ConfigError(f"{count} in {data_dir} has an id that begins with {one_line(name, 60)!r}; {_ADVICE}")
    return store.load(store.path(*found[0]))


def _as_json(left: EpisodeRecord, right: EpisodeRecord, aligned: AlignedEpisodes) -> str:
    document = {
        "a": left.episode_id,
        "b": right.episode_id,
        "models": {"a": left.models, "b": right.models},
        "reset_differs": aligned.reset_differs,
        "shapes": dict(zip(("a", "b"), aligned.shapes, strict=True)),
        "divergence": aligned.divergence,
        "steps": [
            {"index": step.index, "a": step.left, "b": step.right, "differences": step.differences}
            for step in aligned.steps
        ],
    }
    return ascii_json(document)


def _lines(left: EpisodeRecord, right: EpisodeRecord, aligned: AlignedEpisodes, *, everything: bool) -> Iterator[str]:
    for side, episode in zip(SIDES, (left, right), strict=True):
        yield f"{side}  {_headline(episode)}"
    if aligned.reset_differs:
        yield "The first observations differ: these are different tasks, or different data."
    if aligned.shape_note:
        yield f"The {aligned.shape_note}."
    if aligned.divergence is None:
        yield f"No difference in {pluralize(len(aligned.steps), 'step')}."
    else:
        before = pluralize(aligned.divergence, "step")
        yield f"They differ after {before}." if aligned.divergence else "They differ from the first step on."
    first = 0 if everything or aligned.divergence is None else aligned.divergence
    for step in aligned.steps[first:] if everything or aligned.divergence is not None else []:
        yield from _step_lines(step)


def _headline(episode: EpisodeRecord) -> str:
    player = one_line(" ".join(filter(None, (episode.agent, join_models(episode.model, episode.models)))), 60)
    task = f"task {episode.task_index} attempt {episode.attempt}"
    end = f"{episode.outcome}  reward {format_number(episode.reward)}  {pluralize(episode.rounds, 'round')}"
    return f"{episode.episode_id}  {one_line(episode.env, 40)} {task}  {player}  {end}  {episode.duration_s:.1f} s"


def _step_lines(step: AlignedStep) -> Iterator[str]:
    differences = ", ".join("no such step on one side" if each == "missing" else each for each in step.differences)
    yield ""
    yield f"step {step.index}: {differences or 'the same'}"
    if step.left is None or step.right is None:
        for side, text in zip(SIDES, (step.left, step.right), strict=True):
            if text is not None:
                reward = f"\nreward {format_number(text.reward)}" if text.reward else ""
                yield from _text_lines(side, text.action, text.observation + reward)
        return
    left, right = step.left, step.right
    if "action" not in step.differences and "observation" not in step.differences:
        yield from _text_lines("A=B", left.action, left.observation)
    else:
        yield from _text_lines("A", left.action, left.observation)
        yield from _text_lines("B", _marked(left.action, right.action), _marked(left.observation, right.observation))
    if "reward" in step.differences:
        yield f"  reward {format_number(left.reward)} / {format_number(right.reward)}"
    yield f"  time {left.time_s:.2f} s / {right.time_s:.2f} s"


def _text_lines(side: str, action: str, observation: str) -> Iterator[str]:
    for sign, text in ((">", action), (" ", observation)):
        for number, line in enumerate(text.splitlines() or [""]):
            yield f"  {side if sign == '>' and number == 0 else '':<3} {sign} {line}"


def _marked(left: str, right: str) -> str:
    return "".join(
        each.right if each.same else (each.left and f"[-{each.left}-]") + (each.right and f"{{+{each.right}+}}")
        for each in word_segments(left, right)
    )


def main_eval_report(argv: Sequence[str]) -> int:
    """Print the evaluation report of the selected episodes; return 0, or 1 if a file could not be read."""
    options = eval_report_parser().parse_args(argv)
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


def eval_report_parser() -> argparse.ArgumentParser:
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
