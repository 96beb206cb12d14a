"""A batch at work: slots play its episodes, and deadlines and commands are enforced from outside."""

from __future__ import annotations

import itertools
import logging
import queue
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

import msgspec
from ulid import ULID

from runner import plugins as registry
from runner.batch.observers import Observer, ObserverHub
from runner.batch.result import BatchResult, BatchStatus, Tally
from runner.batch.running_episode import Command, CommandName, EpisodeSpans, Playing
from runner.batch.spec import BatchSpec, PlannedEpisode
from runner.batch.state_dir import Workspace
from runner.batch.worker import Slot
from runner.envs.placement import Choice, embedded
from runner.episode.control import EpisodeControl
from runner.episode.runner import EpisodeContext
from runner.errors import boundary, log_failure
from runner.inference.models import Models
from runner.store import UNRATED, EpisodeRecord, EpisodeRecorder
from runner.tracing import PerfettoTrack, SpanList, Tracer
from runner.types import BatchProgress, EpisodeEvent, EpisodeHeader

logger = logging.getLogger(__name__)


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
        on_record: called on the thread of ``run`` with every episode that is over and stored.
        batch_id: a new one by default.
        played: episodes of this batch from before; those that came to an end are counted and not played again.
        grace_s: seconds beyond the time limit after which a slot that does not come back is given up.
        choice: where it is played (``runner.envs.placement.decide``), by default in this process.
        models: whom an agent that asks a model asks; told how each episode went.
    """

    def __init__(
        self,
        spec: BatchSpec,
        workspace: Workspace,
        *,
        observers: Iterable[Observer] = (),
        on_record: Callable[[EpisodeRecord], None] | None = None,
        batch_id: str | None = None,
        battery_id: str | None = None,
        played: Iterable[EpisodeRecord] = (),
        grace_s: float = 5.0,
        choice: Choice | None = None,
        models: Models | None = None,
    ) -> None:
        """Prepare; nothing is played before ``run``."""
        self._choice = choice = choice or embedded(spec.env, spec.mode)
        self.spec = msgspec.structs.replace(spec, mode=choice.mode)
        self.batch_id = batch_id or str(ULID())
        self.battery_id = battery_id
        self._workspace = workspace
        self._clock = workspace.clock
        self._grace_s = grace_s
        told = (on_record, None if models is None else models.feedback)
        self._told = [tell for tell in told if tell is not None]
        self._hub = ObserverHub(observers)
        self._runner = spec.runner(choice, models)
        self._versions = {**workspace.versions, **registry.versions(choice.packages)}
        self._trace_file = workspace.trace_file(self.batch_id)
        self._tally = Tally()
        self._pending = deque(self._missing(played))
        self._n_before = len(self._tally.episodes)
        self._playing: dict[Slot, Playing] = {}
        self._inbox: queue.SimpleQueue[Finished | Command] = queue.SimpleQueue()
        self._names = itertools.count()
        self._status: BatchStatus = "completed"
        self._paused = False
        self._seq = itertools.count()
        self._started = self._clock.monotonic()

    @property
    def episode_ids(self) -> set[str]:
        """The episodes that are being played."""
        return {playing.header.episode_id for playing in list(self._playing.values())}

    @property
    def paused(self) -> bool:
        """Whether its episodes wait at their step boundaries."""
        return self._paused

    def command(self, name: CommandName, episode_id: str | None = None) -> None:
        """Command the batch, or one episode of it; takes effect at the next step boundaries."""
        self._inbox.put(Command(name, episode_id))

    def run(self) -> BatchResult:
        """Play everything planned; returns early only when it was ended by a command."""
        self._obey_early()
        idle = [self._new_slot() for _ in range(min(self.spec.concurrency, len(self._pending)))]
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
            data_label=self._choice.data_label,
            duration_s=self._clock.monotonic() - self._started,
        )

    def _missing(self, played: Iterable[EpisodeRecord]) -> list[PlannedEpisode]:
        ended = [record for record in played if record.outcome not in UNRATED]
        for record in ended:
            self._tally.add(record)
        done = {(record.task_index, record.attempt) for record in ended}
        return [planned for planned in self.spec.plan() if (planned.task_index, planned.attempt) not in done]

    def _obey_early(self) -> None:
        """A command given before the start holds from the first episode on."""
        while not self._inbox.empty():
            item = self._inbox.get()
            if isinstance(item, Command):
                self._obey(item)

    def _start(self, slot: Slot, planned: PlannedEpisode) -> None:
        spans, trace = SpanList(), self._trace_file.for_track(slot.name)
        tracer = Tracer(self.spec.tracing, (spans, trace), track=slot.name)
        source = EpisodeSpans(spans.spans, spans.flows, tracer.open_spans)
        playing = self._playing[slot] = Playing(
            slot=slot,
            header=self._header(planned),
            recorder=EpisodeRecorder(self._workspace.store, self._workspace.index, source, self._clock),
            control=EpisodeControl(self._clock),
            clock=self._clock,
            deadline_s=self.spec.limits.max_duration_s + self._grace_s,
            grace_s=self._grace_s,
        )
        if self._paused:
            playing.control.pause()
        slot.submit(partial(self._play, playing, tracer, trace, source), partial(self._report, slot))

    async def _play(self, playing: Playing, tracer: Tracer, trace: PerfettoTrack, spans: EpisodeSpans) -> None:
        """Runs on the slot's thread."""

        def emit(event: EpisodeEvent) -> None:
            playing.record(event)
            self._hub.emit(event)

        header = playing.header
        context = EpisodeContext(
            header=header,
            control=playing.control,
            tracer=tracer,
            emit=emit,
            on_reset=playing.record_reset,
            closed_spans=spans.newly_closed,
            clock=self._clock,
        )
        try:
            await self._runner.play_episode({"task_index": header.task_index, "seed": header.seed}, context=context)
        finally:
            with boundary(log_failure(logger, "writing the trace")):
                trace.flush()

    def _report(self, slot: Slot, problem: BaseException | None) -> None:
        self._inbox.put(Finished(slot, problem))

    def _header(self, planned: PlannedEpisode) -> EpisodeHeader:
        header = self._workspace.header(self.spec, planned, batch_id=self.batch_id, battery_id=self.battery_id)
        return msgspec.structs.replace(
            header,
            transport=self._choice.transport,
            data_label=self._choice.data_label,
            versions=self._versions,
            n_planned=self.spec.n_planned,
        )

    def _new_slot(self) -> Slot:
        return Slot(f"slot {next(self._names)}")

    def _wait(self) -> list[Slot]:
        """Wait for a slot, a command or the next deadline; returns the slots that are free now."""
        left_s = min((playing.left_s() for playing in self._playing.values()), default=1.0)
        freed: list[Slot] = []
        try:
            item = self._inbox.get(timeout=min(1.0, max(0.01, left_s)))
        except queue.Empty:
            return self._give_up_overdue()
        if isinstance(item, Command):
            self._obey(item)
        else:
            freed += self._finish(item)
        return freed + self._give_up_overdue()

    def _finish(self, finished: Finished) -> list[Slot]:
        playing = self._playing.pop(finished.slot, None)
        if playing is None:  # a slot that was given up came back after all
            return []
        if finished.problem is not None and playing.control.cancelled is None:
            playing.problems.append(finished.problem)
        self._count(playing)
        return [finished.slot]

    def _give_up_overdue(self) -> list[Slot]:
        """Give up slots that are past their deadline or do not heed their end; each is replaced by a new one."""
        overdue = [playing for playing in self._playing.values() if playing.overdue()]
        for playing in overdue:
            del self._playing[playing.slot]
            playing.give_up()
            self._count(playing)
        return [self._new_slot() for _ in overdue]

    def _count(self, playing: Playing) -> None:
        if (record := playing.recorder.record) is not None:
            self._tally.add(record)
            if self._is_stored(record):
                for tell in self._told:
                    with boundary(log_failure(logger, "announcing an episode")):
                        tell(record)
            elif self._status == "completed":
                logger.warning("episode %s could not be stored; nothing more is played", record.episode_id)
                self._obey(Command("interrupt"))
        for problem in playing.problems:
            self._tally.problems.append(f"episode {playing.header.episode_id}: {type(problem).__name__}: {problem}")
        self._announce()

    def _is_stored(self, record: EpisodeRecord) -> bool:
        return self._workspace.store.path(record.batch_id, record.episode_id).exists()

    def _announce(self) -> None:
        n_done, n_planned = len(self._tally.episodes), self.spec.n_planned
        n_new = n_done - self._n_before
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
                eta_s=elapsed / n_new * (n_planned - n_done) if n_new else None,
                tokens=self._tally.tokens,
                cost=self._tally.cost,
            )
        )

    def _obey(self, command: Command) -> None:
        for playing in self._playing.values():
            if command.episode_id in (None, playing.header.episode_id):
                playing.obey(command)
        if command.episode_id is not None:
            return
        if command.ends is not None:
            self._pending.clear()
            self._status = "interrupted" if command.name == "interrupt" else "cancelled"
        else:
            self._paused = command.name != "resume"
