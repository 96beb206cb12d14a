"""The summary of what was just played."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from runner.batch.result import BatchResult
from runner.cli.terminal import err, print_json, print_table
from runner.store import DamagedFile, EpisodeRecord
from runner.types import Tokens

MAX_ERRORS = 5
"""Errors named per batch; the files have them all."""
USAGE_COLUMNS = ("tokens", "latency", "cost")


def print_summary(results: list[BatchResult], data_dir: Path, *, as_json: bool) -> None:
    """Print one row per batch; as JSON everything, episode by episode."""
    if as_json:
        print_json({"data_dir": str(data_dir), "batches": results})
        return
    columns = ["environment", "episodes", "success", "95% interval", "reward", "rounds", "outcomes"]
    rows = [_row(result, data_dir) for result in results]
    if any(result.answers for result in results):
        columns += USAGE_COLUMNS
        rows = [[*row, *usage_cells(r.tokens, r.latency_s, r.cost)] for row, r in zip(rows, results, strict=True)]
    print_table(f"Played by {_player(results[0])}", columns, rows)


def tell_errors(results: list[BatchResult], data_dir: Path) -> None:
    """Say what went wrong, and where everything is."""
    for result in results:
        _tell_errors(result)
        err(f"{result.env}: episodes in {data_dir / 'runs' / result.batch_id}")


def _player(result: BatchResult) -> str:
    return f"{result.agent} (baseline, no model)" if result.baseline else f"{result.agent} {result.model}"


def _row(result: BatchResult, data_dir: Path) -> list[str]:
    lost = _n_not_stored(result, data_dir)
    return [
        environment_cell(result.env, result.mode, result.data_label),
        f"{result.n_episodes}/{result.n_planned}",
        percent(result.success_rate),
        interval(result.success_interval),
        number(result.mean_reward),
        number(result.mean_rounds),
        outcomes_cell(result.outcomes | ({"not stored": lost} if lost else {})),
    ]


def _n_not_stored(result: BatchResult, data_dir: Path) -> int:
    stored = {path.stem for path in (data_dir / "runs" / result.batch_id).glob("*.json")}
    return sum(episode.episode_id not in stored for episode in result.episodes)


def _tell_errors(result: BatchResult) -> None:
    errors = [f"task {episode.task_index}: {episode.error}" for episode in result.episodes if episode.error]
    for line in [*errors, *result.problems][:MAX_ERRORS]:
        err(f"{result.env}: {line}")
    if (more := len(errors) + len(result.problems) - MAX_ERRORS) > 0:
        err(f"{result.env}: and {more} more errors, see the episode files")


def tell_recovered(records: list[EpisodeRecord]) -> None:
    """Say which episodes of killed runs were saved."""
    for record in records:
        err(f"Recovered {record.env} episode {record.episode_id} of a killed run: {record.rounds} rounds, interrupted.")


def tell_damaged(files: Iterable[DamagedFile]) -> None:
    """Say which episode files are in no result; the damaged journals of killed runs were named when they were read."""
    for file in files:
        err(f"Left out {file.path}: {file.reason}")


def environment_cell(env: str, mode: str, data_label: str) -> str:
    """An environment with what makes its numbers incomparable to others."""
    return " · ".join([env, *(label for label in (mode if mode != "strict" else "", data_label) if label)])


def outcomes_cell(outcomes: Mapping[str, int]) -> str:
    """How many episodes ended how."""
    return ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())


def usage_cells(tokens: Tokens, latency_s: float | None, cost: float | None) -> tuple[str, str, str]:
    """What a model's answers took, for the ``USAGE_COLUMNS``."""
    parts = [
        f"{tokens.prompt} in" + (f" ({tokens.cached} cached)" if tokens.cached else ""),
        f"{tokens.completion} out" + (f" ({tokens.reasoning} reasoning)" if tokens.reasoning else ""),
    ]
    latency = "-" if latency_s is None else f"{latency_s:.3g} s"
    return ", ".join(parts) if tokens.total else "-", latency, "-" if cost is None else f"{cost:.4g}"


def percent(rate: float | None) -> str:
    """A rate for a table."""
    return "-" if rate is None else f"{rate:.1%}"


def interval(bounds: tuple[float, float] | None) -> str:
    """An interval of rates for a table."""
    return "-" if bounds is None else f"{bounds[0]:.1%} to {bounds[1]:.1%}"


def number(value: float | None) -> str:
    """A mean for a table."""
    return "-" if value is None else f"{value:.3f}".rstrip("0").rstrip(".")


def tell_answers(results: Iterable[BatchResult]) -> None:
    """Say which models have played, where it was not one alone."""
    for result in results:
        if len(result.answers) > 1:
            told = ", ".join(f"{count} by {who}" for who, count in result.answers.items())
            err(f"{result.env}: answers came from more than one model: {told}")
