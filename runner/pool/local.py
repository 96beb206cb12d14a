"""Slots in this process: each is a thread with its own event loop that plays one episode at a time."""

from __future__ import annotations

import gc
import itertools
import socket
from collections.abc import Callable
from functools import partial

from runner.episode.control import EpisodeControl
from runner.episode.factory import EpisodeContext, EpisodeFactory
from runner.pool.protocol import EpisodeReceiver, Slot, WorkerChange
from runner.store.journal import TraceDelta
from runner.tracing import SpanList, TraceEncoder, Tracer
from runner.types import EpisodeHeader, WorkerInfo
from runner.util.clock import Clock
from runner.util.resources import Resource
from runner.worker.episode_reporter import EpisodeReporter
from runner.worker.episode_thread import EpisodeThread, start_workers


class LocalSlot:
    """A slot on the running thread of ``worker``, which calls ``on_played`` after each episode."""

    def __init__(
        self,
        worker: EpisodeThread,
        factory: EpisodeFactory,
        clock: Clock,
        *,
        on_played: Callable[[], object],
        wants_tokens: Callable[[], bool],
    ) -> None:
        self.name = worker.name
        self.info = WorkerInfo(host=socket.gethostname(), id=worker.name, kind="local")
        self._worker = worker
        self._factory = factory
        self._clock = clock
        self._on_played = on_played
        self._wants_tokens = wants_tokens
        self._abandoned = False
        self._trace: TraceEncoder | None = None

    @property
    def usable(self) -> bool:
        return not self._abandoned

    def play(self, header: EpisodeHeader, receiver: EpisodeReceiver, *, paused: bool) -> EpisodeControl:
        control = EpisodeControl(self._clock)
        if paused:
            control.pause()
        self._worker.submit(partial(self._play, header, receiver, control), receiver.on_done)
        return control

    def stop_task(self) -> None:
        self._worker.interrupt()

    def abandon(self) -> None:
        """Leave the thread to itself: it ends when its episode does, at the latest at its next ``await``."""
        self._abandoned = True
        self._worker.interrupt()
        self._worker.close()

    def close(self) -> None:
        self._worker.close()

    async def _play(self, header: EpisodeHeader, receiver: EpisodeReceiver, control: EpisodeControl) -> None:
        spans = SpanList()
        tracer = Tracer(self._factory.tracing_level, (spans,), track=self.name)
        self._trace = self._trace or TraceEncoder(header.boot, self.name)
        reporter = EpisodeReporter(tracer, spans, receiver, self._clock, trace=self._trace)
        receiver.on_source(lambda: TraceDelta(spans.spans.copy(), spans.flows.copy(), tracer.open_spans()))
        context = EpisodeContext(
            header=header,
            control=control,
            tracer=tracer,
            emit=reporter.emit,
            on_reset=reporter.on_reset,
            on_sequence=reporter.on_sequence,
            on_error=receiver.on_error,
            wants_tokens=self._wants_tokens,
            clock=self._clock,
        )
        await self._factory.play_episode({"task_index": header.task_index, "seed": header.seed}, context=context)
        self._on_played()


class LocalPool:
    def __init__(self, factory: EpisodeFactory, clock: Clock | None = None) -> None:
        self._factory = factory
        self._clock = clock or Clock()
        self._numbers = itertools.count()
        self._has_played = self._has_frozen = False
        self._watched = True

    def open(self, on_slot: Callable[[Slot], object], on_worker: Callable[[WorkerChange], object]) -> None:
        """A thread is usable as soon as it is started."""

    def start_slots(self, n_slots: int) -> tuple[list[Slot], Resource | None]:
        """If the system does not allow all threads, a third is kept."""
        workers, shortage = start_workers(n_slots, lambda: f"slot {next(self._numbers)}")
        new_slot = partial(
            LocalSlot,
            factory=self._factory,
            clock=self._clock,
            on_played=self._freeze_objects,
            wants_tokens=lambda: self._watched,
        )
        return [new_slot(worker) for worker in workers], shortage

    def start_alone(self) -> Slot | None:
        """No slot of this process can be lost."""
        return None

    @property
    def failure(self) -> str | None:
        """A shortage of threads is reported by ``start_slots``."""
        return None

    def watch_tokens(self, watched: bool) -> None:
        self._watched = watched

    def close(self) -> None:
        """Let garbage collections look at all objects again; the batch has closed or abandoned each slot."""
        if self._has_frozen:
            gc.unfreeze()

    def _freeze_objects(self) -> None:
        """Exempt what the first episode has imported from garbage collections: they would take 5% of the CPU.

        Counting the frozen objects visits each of them, so a pool counts them once.
        """
        if self._has_played:
            return
        self._has_played = True
        if not gc.get_freeze_count():
            self._has_frozen = True
            gc.freeze()
