"""How a batch is doing: a live bar on a terminal, a plain line per finished episode elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from runner.cli.terminal import console, err
from runner.observers import Observer
from runner.spec import BatchSpec
from runner.types import BatchProgress, EpisodeEnded, Item


@contextmanager
def progress_for(spec: BatchSpec) -> Iterator[Observer]:
    """An observer that shows the progress of a batch on standard error while the block runs."""
    title = f"{spec.env} · {spec.agent}" + (" · compat" if spec.mode == "compat" else "")
    if console(stderr=True).is_terminal:
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
    with Progress(*columns, console=console(stderr=True)) as progress:
        task = progress.add_task(title, total=total, state="")

        def show(item: Item) -> None:
            if isinstance(item, BatchProgress):
                progress.update(task, completed=item.n_done, state=_state(item))

        yield show


def _lines(title: str) -> Observer:
    def show(item: Item) -> None:
        if isinstance(item, EpisodeEnded):
            played = item.trajectory
            task = played.reset_kwargs.get("task_index")
            text = f"task {task} {played.outcome} in {len(played.timesteps)} rounds, reward {played.reward:g}"
            err(f"{title}: {text}, {played.duration_s:.2f} s")
        elif isinstance(item, BatchProgress) and item.n_done == item.n_planned:
            err(f"{title}: {item.n_done}/{item.n_planned} episodes, {_state(item)}")

    return show


def _state(progress: BatchProgress) -> str:
    reward = "-" if progress.mean_reward is None else f"{progress.mean_reward:.3f}"
    rate = f"{progress.n_success / progress.n_done:.0%}" if progress.n_done else "-"
    return f"success {rate}, mean reward {reward}"
