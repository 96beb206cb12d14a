"""What a run prints: the progress of its batches, their summary and errors, and events that brokers refused."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from runner.batch.observers import BatchItem, EpisodeStored, SelectiveObserver
from runner.batch.result import BatchResult, ModelsTotals
from runner.batch.spec import BatchSpec
from runner.batch.stopping import LOG_INTERVAL_S
from runner.cli.arguments import Options
from runner.cli.cells import (
    USAGE_COLUMNS,
    environment_cell,
    format_interval,
    format_number,
    format_success,
    outcomes_cell,
    usage_cells,
)
from runner.cli.terminal import print_stderr, print_table, stderr_console
from runner.publish.outbox import DeadLetter
from runner.store import EpisodeRecord
from runner.types import BatchProgress, Outcome, WorkerCounts, WorkerInfo
from runner.util.display_text import one_line, pluralize

WIDE = 100
"""Columns of a terminal from which on the bar names the number of workers while all is well."""


@contextmanager
def batch_progress(spec: BatchSpec) -> Iterator[SelectiveObserver]:
    title = " · ".join(filter(None, [spec.env, spec.agent, spec.model, "compat" if spec.mode == "compat" else ""]))
    if sys.stderr.isatty() and stderr_console().is_terminal:
        with _bar(title, spec.n_planned) as observer:
            yield observer
    else:
        yield SelectiveObserver(_Lines(title).show, lambda kind: kind in (BatchProgress, EpisodeStored))


@contextmanager
def _bar(title: str, total: int) -> Iterator[SelectiveObserver]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=2 * len(str(total)) + 1)),
        TextColumn("{task.fields[state]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
        TimeRemainingColumn(table_column=Column(no_wrap=True, min_width=len("0:00:00"))),
    )
    with Progress(*columns, console=stderr_console()) as progress:
        task = progress.add_task(title, total=total, state="")

        def show(item: BatchItem) -> None:
            if isinstance(item, BatchProgress):
                state = _waiting_text(item) or _playing_text(item)
                progress.update(task, completed=item.n_done, state=state)

        yield SelectiveObserver(show, lambda kind: kind is BatchProgress)


class _Lines:
    """Prints ended episodes, lost workers, the end of the batch, and waits for the server, every ``LOG_INTERVAL_S``."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._n_lost = 0
        self._is_waiting = False

    def show(self, item: BatchItem) -> None:
        match item:
            case EpisodeStored(record=record):
                text = f"task {record.task_index} {_end_text(record)}, reward {record.reward or 0.0:g}"
                self._print(f"{text}, {record.duration_s:.2f} s{_place_text(record.worker)}")
            case BatchProgress():
                self._show_wait(item)
                counts = item.workers or WorkerCounts()
                if counts.lost > self._n_lost:
                    self._print(f"a worker process was lost: {counts.text}")
                self._n_lost = counts.lost
                if item.n_done == item.n_planned:
                    self._print(f"{item.n_done}/{item.n_planned} episodes, {_score_text(item)}")

    def _show_wait(self, progress: BatchProgress) -> None:
        if progress.waiting_s is None:
            if self._is_waiting and not progress.interrupted:
                self._print("the server replies again")
        elif not self._is_waiting or progress.waiting_s % LOG_INTERVAL_S == 0:
            self._print(f"{_waiting_text(progress)} ({one_line(progress.waiting_for or '')})")
        self._is_waiting = progress.waiting_s is not None

    def _print(self, text: str) -> None:
        print_stderr(f"{self._title}: {text}")


def _end_text(record: EpisodeRecord) -> str:
    rounds, last = pluralize(record.rounds, "round"), record.timesteps[-1:]
    match record.outcome:
        case Outcome.TRUNCATED if last and last[0].done:
            return f"stopped by the environment after {rounds}"
        case Outcome.TRUNCATED:
            return f"stopped at the limit of {rounds}"
        case Outcome.FAILURE if last and not last[0].done and not last[0].valid:
            return f"failure after too many invalid actions in {rounds}"
        case Outcome.ERROR if record.error is not None:
            return f"error {one_line(record.error.type, 60)} in {rounds}"
    return f"{record.outcome} in {rounds}"


def _place_text(worker: WorkerInfo | None) -> str:
    if worker is None or worker.kind == "local":
        return ""
    return f", {worker.id}" if worker.kind == "process" else f", Ray worker {worker.id[:8]} on {worker.host}"


def _score_text(progress: BatchProgress) -> str:
    reward = "-" if progress.mean_reward is None else f"{progress.mean_reward:.3f}"
    rate = f"{progress.n_success / progress.n_rated:.0%} of {progress.n_rated}" if progress.n_rated else "-"
    errors = f", {pluralize(progress.errors, 'error')}" if progress.errors else ""
    return f"success {rate}, mean reward {reward}{errors}"


def _waiting_text(progress: BatchProgress) -> str:
    if progress.waiting_s is None:
        return ""
    return f"waiting for the server, {progress.waiting_s:g} s left"


def _playing_text(progress: BatchProgress) -> str:
    """Return score and workers; a narrow terminal has room only for starting and lost ones, and cuts the end."""
    score, counts = _score_text(progress), progress.workers
    if counts is not None and (counts.lost or counts.starting):
        return f"{counts.text}, {score}"
    return score if counts is None or stderr_console().width < WIDE else f"{score}, {counts.text}"


MAX_ERRORS = 5
"""Maximum number of errors to print per batch; the episode files contain all errors."""


def print_summary(results: list[BatchResult], data_dir: Path, *, currency: str = "") -> None:
    """Print a table with one row per batch and models that answered."""
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
    stored = {path.stem for path in (data_dir / "runs" / result.batch_id).glob("*.json")}
    n_not_stored = sum(each.episode_id not in stored for each in result.episodes if each.models == part.model)
    counted = ((shape, f" in {count}" if count < part.n_episodes else "") for shape, count in part.shapes.items())
    shapes = " · ".join(map("".join, counted))
    return [
        environment_cell(result.env, result.mode, result.data_label, shapes, result.limits),
        f"{part.n_episodes}/{result.n_planned}",
        str(part.n_errors),
        format_success(part.success_rate, part.n_rated, part.n_episodes),
        format_interval(part.success_interval),
        format_number(part.mean_reward),
        format_number(part.mean_rounds),
        outcomes_cell(part.outcomes | ({"not stored": n_not_stored} if n_not_stored else {}), part.n_unscored),
    ]


def report_errors(results: list[BatchResult], data_dir: Path) -> None:
    for result in results:
        label = batch_label(result.env, result.model if len(results) > 1 else None)
        errors = [f"task {episode.task_index}: {episode.error}" for episode in result.episodes if episode.error]
        errors += result.problems
        for line in errors[:MAX_ERRORS]:
            print_stderr(f"{label}: {line}")
        if (more := len(errors) - MAX_ERRORS) > 0:
            print_stderr(f"{label}: {more} more errors, see the episode files")
        print_stderr(f"{label}: episodes in {data_dir / 'runs' / result.batch_id}")


def batch_label(env: str, model: str | None) -> str:
    """Return the name of a batch in a line of a run: its environment, and its model if several batches are played."""
    return env if model is None else f"{env} {model}"


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
