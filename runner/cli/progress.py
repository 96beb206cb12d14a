"""How a batch is doing: a live bar on a terminal, a plain line per finished episode elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from runner.batch.observers import Observer
from runner.batch.spec import BatchSpec
from runner.cli.terminal import err, err_console
from runner.types import UNRATED, BatchProgress, EpisodeEnded, Item


@contextmanager
def progress_for(spec: BatchSpec) -> Iterator[Observer]:
    """An observer that shows the progress of a batch on standard error while the block runs."""
    title = f"{spec.env} · {spec.agent}" + (" · compat" if spec.mode == "compat" else "")
    if err_console().is_terminal:
        with _bar(title, spec.n_planned) as observer:
            yield observer
    else:
        yield _lines(title)


@contextmanager
def _bar(title: str, total: int) -> Iterator[Observer]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err_console()) as progress:
        task = progress.add_task(title, total=total, state="")
        state = _State()

        def show(item: Item) -> None:
            if isinstance(item, EpisodeEnded):
                state.count(item)
            elif isinstance(item, BatchProgress):
                progress.update(task, completed=item.n_done, state=state.text(item))

        yield show


def _lines(title: str) -> Observer:
    state = _State()

    def show(item: Item) -> None:
        if isinstance(item, EpisodeEnded):
            state.count(item)
            played = item.trajectory
            task = played.reset_kwargs.get("task_index")
            text = f"task {task} {played.outcome} in {len(played.timesteps)} rounds, reward {played.reward:g}"
            err(f"{title}: {text}, {played.duration_s:.2f} s")
        elif isinstance(item, BatchProgress) and item.n_done == item.n_planned:
            err(f"{title}: {item.n_done}/{item.n_planned} episodes, {state.text(item)}")

    return show


class _State:
    """The rate and the mean reward so far; as in the summary, episodes that were cut off by us do not count."""

    def __init__(self) -> None:
        self._n_unrated = 0

    def count(self, ended: EpisodeEnded) -> None:
        self._n_unrated += ended.trajectory.outcome in UNRATED

    def text(self, progress: BatchProgress) -> str:
        # An episode of another slot may have been cut off that is not among n_done yet.
        n_rated = max(progress.n_done - self._n_unrated, progress.n_success, 1)
        reward = "-" if progress.mean_reward is None else f"{progress.mean_reward:.3f}"
        rate = "-" if progress.mean_reward is None else f"{progress.n_success / n_rated:.0%}"
        return f"success {rate}, mean reward {reward}"
