"""Progress of a batch on standard error: a live bar on a terminal, else one line per finished episode."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from runner.batch.observers import SelectiveObserver
from runner.batch.spec import BatchSpec
from runner.batch.stopping import LOG_INTERVAL_S
from runner.cli.terminal import print_stderr, stderr_console
from runner.types import (
    BatchProgress,
    EpisodeEnded,
    EpisodeStarted,
    Item,
    Outcome,
    Trajectory,
    WorkerCounts,
    WorkerInfo,
)
from runner.util.display_text import one_line, pluralize

WIDE = 100
"""Columns of a terminal from which on the bar names the number of workers while all is well."""


@contextmanager
def batch_progress(spec: BatchSpec) -> Iterator[SelectiveObserver]:
    title = " · ".join(filter(None, [spec.env, spec.agent, spec.model])) + (
        " · compat" if spec.mode == "compat" else ""
    )
    if sys.stderr.isatty() and stderr_console().is_terminal:
        with _bar(title, spec.n_planned) as observer:
            yield observer
    else:
        yield SelectiveObserver(_Lines(title).show, lambda kind: kind in (BatchProgress, EpisodeStarted, EpisodeEnded))


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

        def show(item: Item) -> None:
            if isinstance(item, BatchProgress):
                state = _waiting_text(item) or _playing_text(item)
                progress.update(task, completed=item.n_done, state=state)

        yield SelectiveObserver(show, lambda kind: kind is BatchProgress)


class _Lines:
    """Prints ended episodes, lost workers, the end of the batch, and waits for the server, every ``LOG_INTERVAL_S``."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._places: dict[str, str] = {}
        self._n_lost = 0
        self._is_waiting = False

    def show(self, item: Item) -> None:
        match item:
            case EpisodeStarted():
                self._places[item.episode_id] = _place_text(item.header.worker)
            case EpisodeEnded(trajectory=trajectory):
                task = trajectory.reset_kwargs.get("task_index")
                text = f"task {task} {_end_text(trajectory)}, reward {trajectory.reward:g}"
                place = self._places.pop(item.episode_id, "")
                self._print(f"{text}, {trajectory.duration_s:.2f} s{place}")
            case BatchProgress():
                self._show_wait(item)
                self._show_lost(item.workers or WorkerCounts())
                if item.n_done == item.n_planned:
                    self._print(f"{item.n_done}/{item.n_planned} episodes, {_score_text(item)}")

    def _show_lost(self, counts: WorkerCounts) -> None:
        if counts.lost > self._n_lost:
            self._print(f"a worker process was lost: {counts.text}")
        self._n_lost = counts.lost

    def _show_wait(self, progress: BatchProgress) -> None:
        if progress.waiting_s is None:
            if self._is_waiting and not progress.interrupted:
                self._print("the server replies again")
        elif not self._is_waiting or progress.waiting_s % LOG_INTERVAL_S == 0:
            self._print(f"{_waiting_text(progress)} ({one_line(progress.waiting_for or '')})")
        self._is_waiting = progress.waiting_s is not None

    def _print(self, text: str) -> None:
        print_stderr(f"{self._title}: {text}")


def _end_text(trajectory: Trajectory) -> str:
    rounds, last = pluralize(len(trajectory.timesteps), "round"), trajectory.timesteps[-1:]
    match trajectory.outcome:
        case Outcome.TRUNCATED if last and last[0].done:
            return f"stopped by the environment after {rounds}"
        case Outcome.TRUNCATED:
            return f"stopped at the limit of {rounds}"
        case Outcome.FAILURE if last and not last[0].done and not last[0].valid:
            return f"failure after too many invalid actions in {rounds}"
        case Outcome.ERROR if trajectory.error_info is not None:
            return f"error {one_line(trajectory.error_info.type, 60)} in {rounds}"
    return f"{trajectory.outcome} in {rounds}"


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
