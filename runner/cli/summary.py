"""What a run ends with: the summary of its batches, their errors, and events that brokers refused."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from runner.batch.result import BatchResult, ModelsTotals
from runner.cli.cells import (
    USAGE_COLUMNS,
    environment_cell,
    format_interval,
    format_number,
    format_success,
    outcomes_cell,
    usage_cells,
)
from runner.cli.terminal import print_json, print_stderr, print_table
from runner.util.display_text import pluralize

if TYPE_CHECKING:
    from runner.cli.arguments import Options
    from runner.publish.outbox import DeadLetter

MAX_ERRORS = 5
"""Maximum number of errors to print per batch; the episode files contain all errors."""


class SkippedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """For example because its environment server was down."""

    env: str
    reason: str


def print_summary(
    results: list[BatchResult], skipped: list[SkippedBatch], data_dir: Path, *, as_json: bool, currency: str = ""
) -> None:
    """Print a table with one row per batch and models that answered; as JSON, all episodes and the skipped batches."""
    if as_json:
        print_json({"data_dir": str(data_dir), "batches": results, "skipped": skipped, "currency": currency})
        return
    rows = [(result, part) for result in results for part in result.by_models]
    columns = ["environment", "episodes", "errors", "success", "95% interval", "reward", "rounds", "outcomes"]
    cells = [_row(result, part, data_dir) for result, part in rows]
    if any(part.answers for _, part in rows):
        columns += USAGE_COLUMNS
        usage = (usage_cells(part.tokens, part.latency_s, part.cost, currency) for _, part in rows)
        cells = [[*row, *more] for row, more in zip(cells, usage, strict=True)]
    title, models = results[0].agent, [part.model or "-" for _, part in rows]
    if len(set(models)) > 1:
        columns, cells = ["model", *columns], [[model, *row] for model, row in zip(models, cells, strict=True)]
    else:
        title += " (baseline, no model)" if results[0].baseline else f" {models[0]}"
    print_table(f"Results of {title}", columns, cells)


def _row(result: BatchResult, part: ModelsTotals, data_dir: Path) -> list[str]:
    n_not_stored = _n_not_stored(result, part, data_dir)
    return [
        environment_cell(result.env, result.mode, result.data_label, _shapes(part), result.limits),
        f"{part.n_episodes}/{result.n_planned}",
        str(part.n_errors),
        format_success(part.success_rate, part.n_rated, part.n_episodes),
        format_interval(part.success_interval),
        format_number(part.mean_reward),
        format_number(part.mean_rounds),
        outcomes_cell(part.outcomes | ({"not stored": n_not_stored} if n_not_stored else {}), part.n_unscored),
    ]


def _shapes(part: ModelsTotals) -> str:
    n = part.n_episodes
    return " · ".join(f"{shape}{f' in {count}' if count < n else ''}" for shape, count in part.shapes.items())


def _n_not_stored(result: BatchResult, part: ModelsTotals, data_dir: Path) -> int:
    stored = {path.stem for path in (data_dir / "runs" / result.batch_id).glob("*.json")}
    return sum(each.episode_id not in stored for each in result.episodes if each.models == part.model)


def report_errors(results: list[BatchResult], data_dir: Path) -> None:
    for result in results:
        label = batch_label(result.env, result.model if len(results) > 1 else None)
        _report_batch_errors(result, label)
        print_stderr(f"{label}: episodes in {data_dir / 'runs' / result.batch_id}")


def batch_label(env: str, model: str | None) -> str:
    """Return the name of a batch in a line of a run: its environment, and its model if several batches are played."""
    return env if model is None else f"{env} {model}"


def _report_batch_errors(result: BatchResult, label: str) -> None:
    errors = [f"task {episode.task_index}: {episode.error}" for episode in result.episodes if episode.error]
    for line in [*errors, *result.problems][:MAX_ERRORS]:
        print_stderr(f"{label}: {line}")
    if (more := len(errors) + len(result.problems) - MAX_ERRORS) > 0:
        print_stderr(f"{label}: {more} more errors, see the episode files")


def report_models(results: Iterable[BatchResult]) -> None:
    """Print who answered, for each batch in which not only the requested model did."""
    for result in results:
        if len(result.models) > 1:
            counts = ", ".join(f"{count} by {model}" for model, count in result.answers.items())
            print_stderr(f"{result.env}: answers came from more than one model: {counts}")
        elif result.models and result.models != [result.model]:
            print_stderr(f"{result.env}: {result.models[0]} answered in place of {result.model}")


def report_refused(letters: Sequence[DeadLetter], options: Options) -> None:
    if not letters:
        return
    (reason, _), *others = Counter(letter.reason for letter in letters).most_common()
    more = f" (and {pluralize(len(others), 'other reason')})" if others else ""
    command = ["agentgym-runner", "outbox", "--retry", "all"]
    for name, value in (("--config", options.config), ("--data-dir", options.data_dir)):
        command += [name, value] if value else []
    n = len({letter.id for letter in letters})
    print_stderr(
        f"{pluralize(n, 'event')} of this run became dead letters: {reason}{more}. "
        f"Each new connection to that broker tries them again; a connected node, after: {shlex.join(command)}"
    )
