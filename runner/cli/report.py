"""The summary of what was just played."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from runner.cli.terminal import console, err, print_json, safe
from runner.result import BatchResult
from runner.store import EpisodeRecord

MAX_ERRORS = 5
"""Errors named per batch; the files have them all."""


def print_summary(results: list[BatchResult], data_dir: Path, *, as_json: bool) -> None:
    """Print one row per batch, then what went wrong; as JSON everything, episode by episode."""
    if as_json:
        print_json({"data_dir": str(data_dir), "batches": results})
        return
    from rich.table import Table

    table = Table(title="Played")
    for name in ("environment", "agent", "episodes", "success", "95% interval", "reward", "rounds", "outcomes"):
        table.add_column(name, overflow="fold")
    for result in results:
        table.add_row(*map(safe, _row(result)))
    console().print(table)
    for result in results:
        _print_errors(result)
        err(f"{result.env}: episodes in {data_dir / 'runs' / result.batch_id}")


def _row(result: BatchResult) -> list[str]:
    return [
        environment_cell(result.env, result.mode, result.data_label),
        f"{result.agent} (baseline, no model)" if result.baseline else f"{result.agent} {result.model}",
        f"{result.n_episodes}/{result.n_planned}",
        percent(result.success_rate),
        interval(result.success_interval),
        number(result.mean_reward),
        number(result.mean_rounds),
        outcomes_cell(result.outcomes),
    ]


def _print_errors(result: BatchResult) -> None:
    errors = [f"task {episode.task_index}: {episode.error}" for episode in result.episodes if episode.error]
    for line in [*errors, *result.problems][:MAX_ERRORS]:
        err(f"{result.env}: {line}")
    if (more := len(errors) + len(result.problems) - MAX_ERRORS) > 0:
        err(f"{result.env}: and {more} more errors, see the episode files")


def tell_recovered(records: list[EpisodeRecord]) -> None:
    """Say which episodes of killed runs were saved."""
    for record in records:
        err(f"Recovered {record.env} episode {record.episode_id} of a killed run: {record.rounds} rounds, interrupted.")


def environment_cell(env: str, mode: str, data_label: str) -> str:
    """An environment with what makes its numbers incomparable to others."""
    return " · ".join([env, *(label for label in (mode if mode != "strict" else "", data_label) if label)])


def outcomes_cell(outcomes: Mapping[str, int]) -> str:
    """How many episodes ended how."""
    return ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())


def percent(rate: float | None) -> str:
    """A rate for a table."""
    return "-" if rate is None else f"{rate:.1%}"


def interval(bounds: tuple[float, float] | None) -> str:
    """An interval of rates for a table."""
    return "-" if bounds is None else f"{bounds[0]:.1%} to {bounds[1]:.1%}"


def number(value: float | None) -> str:
    """A mean for a table."""
    return "-" if value is None else f"{value:.3f}".rstrip("0").rstrip(".")
