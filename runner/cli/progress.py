"""Progress of a batch on standard error: a live bar on a terminal, else one line per finished episode."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from runner.batch.observers import SelectiveObserver
from runner.batch.server_wait import LOG_INTERVAL_S
from runner.batch.spec import BatchSpec
from runner.batch.workspace import Workspace
from runner.bus.address import BusAddress, address_of_node
from runner.cli.terminal import print_stderr, stderr_console
from runner.config import LiveTokens
from runner.errors import catch_foreign
from runner.publish.event_recorder import EventRecorder
from runner.publish.live_publisher import LivePublisher
from runner.publish.outbox import DeadLetter
from runner.publish.publisher import Publisher, Sink
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


DRAIN_TIMEOUT_S = 5.0
"""Maximum seconds to wait at the end of a run for the delivery of its events."""


class EventThread:
    """Delivers recorded events and live items to the broker of a running node and to the egress bus.

    Attributes:
        refused: after ``close``, the events of the run that a broker has refused for good.
    """

    def __init__(
        self,
        recorder: EventRecorder,
        workspace: Workspace,
        egress: Callable[[], BusAddress | None],
        tokens: LiveTokens = "watched",
    ) -> None:
        self._tokens = tokens
        self._recorder = recorder
        self._workspace = workspace
        self._egress = egress
        self._ready = threading.Event()
        self.refused: list[DeadLetter] = []
        self._closing: Callable[[], object] = _nothing
        self._live: LivePublisher | None = None
        self._thread = threading.Thread(target=self._serve, name="events", daemon=True)
        self._thread.start()
        self._ready.wait()

    @property
    def observers(self) -> list[SelectiveObserver]:
        """The observer that publishes live items; none if the thread could not start."""
        return [] if self._live is None else [self._live.observer]

    def close(self) -> None:
        """Wait up to twice ``DRAIN_TIMEOUT_S`` seconds for the delivery; undelivered events stay in the outbox."""
        self._closing()
        self._thread.join(2 * DRAIN_TIMEOUT_S)

    def _serve(self) -> None:
        with catch_foreign(_report_failure):
            asyncio.run(self._deliver())
        self._ready.set()

    async def _deliver(self) -> None:
        closing, loop = asyncio.Event(), asyncio.get_running_loop()
        workspace, recorder = self._workspace, self._recorder
        sinks = [Sink("local", lambda: address_of_node(workspace.data_dir)), Sink("egress", self._egress)]
        start = workspace.clock.now()
        publisher = Publisher(recorder.outbox, sinks, subjects=recorder.names.all(), name=workspace.node)
        self._live = live = LivePublisher(
            publisher.sink_connections, node=workspace.node, boot=workspace.boot, tokens=self._tokens
        )
        self._closing = partial(loop.call_soon_threadsafe, closing.set)
        self._ready.set()
        tasks = [asyncio.create_task(publisher.run()), asyncio.create_task(live.run())]
        await closing.wait()
        await publisher.wait_until_drained(DRAIN_TIMEOUT_S)
        if n_waiting := await publisher.n_undelivered():
            print_stderr(
                f"{n_waiting} events are not delivered yet; they stay in the outbox (see: agentgym-runner outbox)."
            )
        self.refused = await publisher.refused_since(start)
        await live.flush()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _nothing() -> None: ...


def _report_failure(exc: BaseException) -> None:
    print_stderr(f"Event delivery failed: {type(exc).__name__}: {exc}; events stay in the outbox.")
