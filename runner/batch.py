"""A batch at work: slots play its episodes, and deadlines and commands are enforced from outside."""

from __future__ import annotations

import itertools
import logging
import queue
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import msgspec
from ulid import ULID

from runner import registry
from runner.control import EpisodeControl
from runner.episode import EpisodeContext
from runner.errors import boundary, log_failure
from runner.observers import Observer, ObserverHub
from runner.result import BatchResult, BatchStatus, Tally
from runner.slots import Slot
from runner.spec import BatchSpec, PlannedEpisode
from runner.store import EpisodeRecorder
from runner.tracing import PerfettoTrack, SpanList, Tracer
from runner.types import BatchProgress, EpisodeEvent, EpisodeHeader, ErrorInfo, Flow, Outcome, Span
from runner.workspace import Workspace

logger = logging.getLogger(__name__)

Command: TypeAlias = Literal["cancel", "abort", "pause", "resume", "step"]

INTERRUPT_AFTER_S = 2.0
"""Seconds a cancelled episode has to reach a step boundary before what it awaits is cancelled."""


class Playing:
    """One episode in a slot: what is recorded of it and how it is commanded."""

    def __init__(
        self, header: EpisodeHeader, recorder: EpisodeRecorder, control: EpisodeControl, started: float
    ) -> None:
        """Remember them; the caller starts the slot."""
        self.header = header
        self.recorder = recorder
        self.control = control
        self.started = started
        self.problems: list[BaseException] = []
        self.interrupted = False

    def record(self, event: EpisodeEvent) -> None:
        """Keep an event; what goes wrong with that is remembered and never reaches the episode."""
        with boundary(self.problems.append):
            self.recorder.on_event(event)


@dataclass
class EpisodeSpans:
    """The spans of an episode as its recorder wants them."""

    spans: list[Span]
    flows: list[Flow]
    open_spans: Callable[[], list[Span]]


class Finished(msgspec.Struct, frozen=True):
    """A slot's report that its episode is over."""

    slot: Slot
    problem: BaseException | None


class Batch:
    """Plays one batch to its end; commands may come from any thread, also from a signal handler.

    Args:
        spec: what to play, with registered names (``BatchSpec.checked``).
        workspace: where it is stored.
        observers: called with every item on threads of their own.
        grace_s: seconds beyond the time limit after which a slot that does not come back is given up.
    """

    def __init__(
        self,
        spec: BatchSpec,
        workspace: Workspace,
        *,
        observers: Iterable[Observer] = (),
        battery_id: str | None = None,
        grace_s: float = 5.0,
    ) -> None:
        """Prepare; nothing is played before ``run``."""
        self.spec = spec
        self.batch_id = str(ULID())
        self.battery_id = battery_id
        self._workspace = workspace
        self._clock = workspace.clock
        self._grace_s = grace_s
        self._hub = ObserverHub(observers)
        self._runner = spec.runner()
        environment = registry.load(registry.ENVS, spec.env)
        self._data_label: str = getattr(environment, "data_label", "")
        self._versions = {**workspace.versions, **registry.versions(getattr(environment, "packages", ()))}
        self._trace_file = workspace.trace_file(self.batch_id)
        self._pending = deque(spec.plan())
        self._playing: dict[Slot, Playing] = {}
        self._inbox: queue.SimpleQueue[Finished | Command] = queue.SimpleQueue()
        self._names = itertools.count()
        self._status: BatchStatus = "completed"
        self._cancelled_at: float | None = None
        self._paused = False
        self._tally = Tally()
        self._seq = itertools.count()
        self._started = self._clock.monotonic()

    def command(self, command: Command) -> None:
        """Cancel, pause, resume or single-step the batch; ``abort`` gives up even on steps that are under way."""
        self._inbox.put(command)

    def run(self) -> BatchResult:
        """Play everything planned; returns early only when cancelled or aborted."""
        self._obey_early()
        n_slots = min(self.spec.concurrency, len(self._pending))
        idle = [self._new_slot() for _ in range(n_slots)]
        while self._pending or self._playing:
            while idle and self._pending:
                self._start(idle.pop(), self._pending.popleft())
            idle += self._wait()
        for slot in idle:
            slot.close()
        self._hub.close()
        return self._tally.result(
            self.spec,
            batch_id=self.batch_id,
            battery_id=self.battery_id,
            status=self._status,
            data_label=self._data_label,
            duration_s=self._clock.monotonic() - self._started,
        )

    def _obey_early(self) -> None:
        """A command given before the start holds from the first episode on."""
        while not self._inbox.empty():
            item = self._inbox.get()
            if not isinstance(item, Finished):
                self._obey(item)

    def _start(self, slot: Slot, planned: PlannedEpisode) -> None:
        spans, trace = SpanList(), self._trace_file.for_track(slot.name)
        tracer = Tracer(self.spec.tracing, (spans, trace), track=slot.name)
        header = self._header(planned)
        source = EpisodeSpans(spans.spans, spans.flows, tracer.open_spans)
        recorder = EpisodeRecorder(self._workspace.store, self._workspace.index, source, self._clock)
        control = EpisodeControl(self._clock)
        if self._paused:
            control.pause()
        playing = self._playing[slot] = Playing(header, recorder, control, self._clock.monotonic())
        slot.submit(partial(self._play, playing, tracer, trace), partial(self._report, slot))

    async def _play(self, playing: Playing, tracer: Tracer, trace: PerfettoTrack) -> None:
        """Runs on the slot's thread."""

        def emit(event: EpisodeEvent) -> None:
            playing.record(event)
            self._hub.emit(event)

        context = EpisodeContext(
            header=playing.header,
            control=playing.control,
            tracer=tracer,
            emit=emit,
            clock=self._clock,
        )
        reset_kwargs = {"task_index": playing.header.task_index, "seed": playing.header.seed}
        try:
            await self._runner.play_episode(reset_kwargs, context=context)
        finally:
            with boundary(log_failure(logger, "writing the trace")):
                trace.flush()

    def _report(self, slot: Slot, problem: BaseException | None) -> None:
        self._inbox.put(Finished(slot, problem))

    def _header(self, planned: PlannedEpisode) -> EpisodeHeader:
        return EpisodeHeader(
            episode_id=str(ULID()),
            batch_id=self.batch_id,
            battery_id=self.battery_id,
            node=self._workspace.node,
            boot=self._workspace.boot,
            profile=self._workspace.profile,
            env=self.spec.env,
            data_label=self._data_label,
            mode=self.spec.mode,
            task_index=planned.task_index,
            seed=planned.seed,
            attempt=planned.attempt,
            agent=self.spec.agent,
            model=self.spec.model,
            started_at=self._clock.now(),
            versions=self._versions,
        )

    def _new_slot(self) -> Slot:
        return Slot(f"slot {next(self._names)}")

    def _wait(self) -> list[Slot]:
        """Wait for a slot, a command or the next deadline; returns the slots that are free now."""
        try:
            item = self._inbox.get(timeout=self._next_check_s())
        except queue.Empty:
            return self._enforce()
        if isinstance(item, Finished):
            return self._finish(item)
        self._obey(item)
        return self._enforce()

    def _next_check_s(self) -> float:
        if self._cancelled_at is not None:
            return 0.1
        left = [self._deadline_s() - self._active_s(playing) for playing in self._playing.values()]
        return min(1.0, max(0.01, min(left, default=1.0)))

    def _deadline_s(self) -> float:
        return self.spec.limits.max_duration_s + self._grace_s

    def _active_s(self, playing: Playing) -> float:
        return self._clock.monotonic() - playing.started - playing.control.paused_s()

    def _finish(self, finished: Finished) -> list[Slot]:
        playing = self._playing.pop(finished.slot, None)
        if playing is None:  # a slot that was given up came back after all
            finished.slot.close()
            return []
        if finished.problem is not None and not playing.control.cancelled:
            playing.problems.append(finished.problem)
        self._count(playing)
        return [finished.slot]

    def _count(self, playing: Playing) -> None:
        if (record := playing.recorder.record) is not None:
            self._tally.add(record)
        for problem in playing.problems:
            self._tally.problems.append(f"episode {playing.header.episode_id}: {type(problem).__name__}: {problem}")
        self._announce()

    def _announce(self) -> None:
        n_done, n_planned = len(self._tally.episodes), self.spec.n_planned
        elapsed = self._clock.monotonic() - self._started
        self._hub.emit(
            BatchProgress(
                at=self._clock.now(),
                batch_id=self.batch_id,
                seq=next(self._seq),
                n_done=n_done,
                n_planned=n_planned,
                n_success=self._tally.n_success,
                mean_reward=self._tally.mean_reward,
                eta_s=elapsed / n_done * (n_planned - n_done) if n_done else None,
            )
        )

    def _obey(self, command: Command) -> None:
        controls = [playing.control for playing in self._playing.values()]
        match command:
            case "cancel" | "abort":
                self._pending.clear()
                self._status = "cancelled"
                self._cancelled_at = self._cancelled_at or self._clock.monotonic()
                if command == "abort":
                    self._cancelled_at = float("-inf")
                for control in controls:
                    control.cancel()
            case "pause":
                self._paused = True
                for control in controls:
                    control.pause()
            case "resume":
                self._paused = False
                for control in controls:
                    control.resume()
            case "step":
                self._paused = True
                for control in controls:
                    control.step()

    def _enforce(self) -> list[Slot]:
        """Give up slots that are past their deadline or do not heed a cancellation; each is replaced by a new one."""
        freed: list[Slot] = []
        for slot, playing in list(self._playing.items()):
            if self._cancelled_at is not None:
                waited = self._clock.monotonic() - self._cancelled_at
                if waited > INTERRUPT_AFTER_S and not playing.interrupted:
                    playing.interrupted = True
                    slot.interrupt()
                if waited > INTERRUPT_AFTER_S + self._grace_s:
                    freed.append(self._give_up(slot, playing, Outcome.CANCELLED))
            elif self._active_s(playing) > self._deadline_s():
                freed.append(self._give_up(slot, playing, Outcome.TIMEOUT))
        return freed

    def _give_up(self, slot: Slot, playing: Playing, outcome: Outcome) -> Slot:
        """Store what the journal has of an episode whose slot does not come back."""
        del self._playing[slot]
        slot.close()
        settled = playing.control.settled
        late = ErrorInfo("slot_abandoned", f"The episode did not come back within {self._deadline_s():g} s", "")
        with boundary(playing.problems.append):
            playing.recorder.abandon(settled or outcome, None if settled else late)
        self._count(playing)
        return self._new_slot()
