"""A worker as its driver sees it: its slots, its running episodes, and what its frames mean for them.

A ``WorkerPool`` has slots; a slot plays one episode at a time. The batch plans, stores, publishes and enforces
deadlines; a worker plays, and its parts go to the episode's ``EpisodeReceiver``. This process, local processes and Ray
actors differ only in how frames get to a worker and how it ends.
"""

from __future__ import annotations

import logging
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeAlias

import msgspec

from runner.episode.control import EpisodeCommand, EpisodeControl
from runner.errors import RunnerError, catch_foreign, log_failure
from runner.pool.services import BatchServices, Send
from runner.store.journal import EpisodeJournal
from runner.store.parts import Decided, Ended, Free, Part, Paused, Started, Step, Unjournaled
from runner.types import EpisodeHeader, Outcome, WorkerInfo, WorkerStatus
from runner.util.clock import Clock
from runner.util.resources import Resource, ResourceShortage, is_resource
from runner.worker.frames import (
    Command,
    EndpointLesson,
    EndpointOutcome,
    GatewayLink,
    Hello,
    Play,
    Release,
    Request,
    Watch,
    WorkerFrame,
)

logger = logging.getLogger(__name__)

MAX_THREADS = 8

Job: TypeAlias = Callable[[], object]

_PLAYED = (Outcome.SUCCESS, Outcome.FAILURE, Outcome.TRUNCATED)
"""Outcomes after which a batch goes on in any case; after an error it may wait for its server first."""


class BrokenFrame(RunnerError):
    """A worker sent bytes that are no frame, or a frame that does not fit those before it."""


class WorkerProblem(RunnerError):
    """An exception ended an episode outside its agent and its environment."""


class WorkerLost(RunnerError):
    """The process of a worker ended, or its connection broke, while it played an episode.

    The message names the worker and the reason; it is stored as the episode's error ``worker_lost``. ``n_suspects`` is
    the number of episodes that the worker played, any of which may have ended it; 0 if it never started.
    """

    def __init__(self, message: str, n_suspects: int = 1) -> None:
        super().__init__(message)
        self.n_suspects = n_suspects


class WorkerChange(msgspec.Struct, frozen=True, kw_only=True):
    """A worker process has changed its state; ``pid`` is None until it is known."""

    id: str
    host: str
    state: WorkerStatus
    pid: int | None = None


class EpisodeReceiver(Protocol):
    """Receives what one episode reports, in its order, on a thread of the pool; no method may raise."""

    def receive(self, part: Part) -> None:
        """Receive every part but ``Free``."""

    def on_played(self) -> None:
        """Receive, from some slots, that the slot may play the next episode while this one is stored."""

    def on_done(self, problem: BaseException | None) -> None:
        """Receive the last report: the slot is free again, unless ``problem`` is a ``WorkerLost``."""


class RemoteControl(EpisodeControl):
    """Control of an episode as its driver sees it; ``decided`` is its outcome once that is final, and None before."""

    def __init__(self, episode_id: str, send: Send, clock: Clock) -> None:
        super().__init__(clock)
        self.decided: Decided | None = None
        self._episode_id = episode_id
        self._send = send
        self._now = clock.monotonic
        self._pause_began: float | None = None
        self._ended_pauses_s = 0.0

    def command(self, name: EpisodeCommand, outcome: Outcome = Outcome.CANCELLED) -> None:
        super().command(name, outcome)
        self._send(Command(episode_id=self._episode_id, name=name, outcome=outcome))

    def stop_task(self) -> None:
        """Cancel its asyncio task at its next ``await``; an episode that never awaits continues."""
        self._send(Command(episode_id=self._episode_id, name="stop"))

    def paused_s(self) -> float:
        began = self._pause_began
        return self._ended_pauses_s + (0.0 if began is None else self._now() - began)

    def note_pause(self, frame: Paused) -> None:
        self._pause_began = None if frame.resumed else self._now()
        self._ended_pauses_s = frame.paused_s


class _Episode(msgspec.Struct):
    receiver: EpisodeReceiver
    control: RemoteControl
    journal: EpisodeJournal | None
    is_started: bool = False
    n_steps: int = 0
    end: Ended | None = None


class Worker:
    """The episodes of one worker; thread-safe.

    The frames of an episode come from one thread at a time. ``lose`` may be called on any thread.

    Args:
        name: name of the worker.
        send: sends a frame to the worker, without blocking; ignored after the worker has ended.
        services: answer its requests; None for this process, which makes none.
        finish: runs a function that stores an ended episode, on any thread; by default at once.
        frees_early: whether a slot may play its next episode before the ended one is stored.
        runs: folder of the batches, if the journals are written here and not by the worker.
    """

    def __init__(
        self,
        name: str,
        send: Send,
        services: BatchServices | None,
        clock: Clock | None = None,
        finish: Callable[[Job], object] | None = None,
        *,
        frees_early: bool = False,
        runs: Path | None = None,
    ) -> None:
        self.name = name
        self.hello: Hello | None = None
        self.has_started_episode = False
        """Whether an episode has ever started, so that the worker is able to play."""
        self._send = send
        self._services = services
        self._clock = clock or Clock()
        self._finish = finish or (lambda function: function())
        self._frees_early = frees_early
        self._runs = runs
        self._lock = threading.Lock()
        self._episodes: dict[str, _Episode] = {}
        self._forgotten: list[EpisodeJournal | None] = []
        self._lost: str | None = None

    @property
    def n_playing(self) -> int:
        return len(self._episodes)

    @property
    def lost(self) -> str | None:
        return self._lost

    def play(self, header: EpisodeHeader, track: str, receiver: EpisodeReceiver, *, paused: bool) -> RemoteControl:
        """Send an episode to the worker; a lost worker reports ``WorkerLost`` to the receiver."""
        control = RemoteControl(header.episode_id, self._send, self._clock)
        journal = None if self._runs is None else EpisodeJournal(self._runs, header)
        with self._lock:
            lost = self._lost
            if lost is None:
                self._episodes[header.episode_id] = _Episode(receiver, control, journal)
        if lost is not None:
            receiver.on_done(self._lost_error(lost, 0))
        else:
            self._send(Play(header=header, track=track, paused=paused))
        return control

    def forget(self, episode_id: str) -> bool:
        """Ignore everything that the worker still sends of an episode; return whether it was running."""
        with self._lock:
            if (episode := self._episodes.pop(episode_id, None)) is not None:
                self._forgotten.append(episode.journal)  # closed by ``lose``, because it may be written just now
        return episode is not None

    def lose(self, reason: str) -> None:
        """End all episodes with ``WorkerLost``, and release everything that the worker holds; once."""
        with self._lock:
            if self._lost is not None:
                return
            self._lost = reason
            episodes, self._episodes = self._episodes, {}
            forgotten, self._forgotten = self._forgotten, []
        n_suspects = 0 if self.hello is None else len(episodes) + len(forgotten)
        if self._services is not None:
            with catch_foreign(log_failure(logger, "releasing what a lost worker held")):
                self._services.disconnect(self)
        for episode in episodes.values():
            self._end(episode, self._lost_error(reason, n_suspects))
        for journal in forgotten:
            if journal is not None:
                journal.close()

    def receive(self, frame: WorkerFrame) -> None:
        """Raises ``BrokenFrame`` if the frame does not fit those before it."""
        match frame:
            case Hello():
                self._greet(frame)
            case Request() | Release() | EndpointOutcome() | EndpointLesson() | GatewayLink():
                if self._services is not None:
                    self._services.handle(self, frame, self._send)
            case Free():
                self._free(frame)
            case _:
                if (episode := self._episodes.get(frame.episode_id)) is not None:
                    self._report(episode, frame)

    def _greet(self, hello: Hello) -> None:
        if self.hello is not None:
            raise BrokenFrame("a second greeting")
        self.hello = hello
        if self._services is not None:
            self._services.connect(self, self._send)

    def _free(self, free: Free) -> None:
        with self._lock:
            episode = self._episodes.pop(free.episode_id, None)
        if episode is not None:
            self._end(episode, _problem(free))

    def _end(self, episode: _Episode, problem: BaseException | None) -> None:
        if episode.journal is not None:
            episode.journal.close()
        end = episode.end
        if end is None:
            episode.receiver.on_done(problem)
            return

        def finish() -> None:
            episode.receiver.receive(end)
            episode.receiver.on_done(problem)

        if self._frees_early and problem is None and end.outcome in _PLAYED:
            episode.receiver.on_played()
        self._finish(finish)

    def _report(self, episode: _Episode, part: Part) -> None:
        if not (episode.is_started or isinstance(part, Started | Unjournaled)):  # its journal begins before it starts
            raise BrokenFrame(f"{type(part).__name__} of an episode that has not started")
        match part:
            case Started():
                self.has_started_episode = episode.is_started = True
            case Step(summary=summary):
                if summary.index != episode.n_steps:
                    raise BrokenFrame(f"step {summary.index} in place of step {episode.n_steps}")
                episode.n_steps += 1
            case Paused():
                episode.control.note_pause(part)
            case Decided():
                episode.control.decided = part
        if episode.journal is not None and (unjournaled := episode.journal.write(part)) is not None:
            episode.journal = None
            episode.receiver.receive(unjournaled)
        if isinstance(part, Ended):
            episode.end = part
        else:
            episode.receiver.receive(part)

    def _lost_error(self, reason: str, n_suspects: int) -> WorkerLost:
        return WorkerLost(f"{self.name} was lost: {reason}", n_suspects)


def _problem(free: Free) -> BaseException | None:
    if is_resource(free.shortage):
        return ResourceShortage(free.shortage, free.problem or "in a worker")
    return None if free.problem is None else WorkerProblem(free.problem)


class SlotWorker(Protocol):
    """What a slot needs of its worker, wherever it is."""

    episodes: Worker

    @property
    def usable(self) -> bool: ...

    def retire(self, episode_id: str) -> None:
        """Abandon an episode that hangs."""


class Slot:
    """Plays one episode at a time; only the thread of the batch calls its methods.

    ``name``, unique in the batch, is the row of its episodes in traces, and ``info`` its worker in their files.
    """

    def __init__(self, name: str, info: WorkerInfo, worker: SlotWorker) -> None:
        self.name = name
        self.info = info
        self._worker = worker
        self._is_abandoned = False
        self._playing: tuple[str, RemoteControl] | None = None

    @property
    def usable(self) -> bool:
        """Whether the slot may play another episode; False after it was lost or abandoned, or its worker ends."""
        return not self._is_abandoned and self._worker.usable

    def play(self, header: EpisodeHeader, receiver: EpisodeReceiver, *, paused: bool) -> RemoteControl:
        """Start an episode, which waits before its first step if it is ``paused``; return its control.

        A worker that cannot play it any more is reported as ``WorkerLost`` to the receiver.
        """
        control = self._worker.episodes.play(header, self.name, receiver, paused=paused)
        self._playing = header.episode_id, control
        return control

    def abandon(self) -> None:
        """Give up the slot, because its episode hangs; its receiver receives nothing more.

        A process is ended when its other episodes have ended or after a few seconds, and plays no new ones.
        """
        self._is_abandoned = True
        if self._playing is not None:
            self._worker.retire(self._playing[0])


class WorkerPool(ABC):
    """The workers of one batch; only the thread of the batch calls its methods.

    ``failure`` is why the batch cannot go on; None while it can.
    """

    failure: str | None = None
    _on_slot: Callable[[Slot], object]
    _on_worker: Callable[[WorkerChange], object]
    _watch = Watch()

    def open(self, on_slot: Callable[[Slot], object], on_worker: Callable[[WorkerChange], object]) -> None:
        """``on_slot`` receives slots that become usable later, ``on_worker`` the states of worker processes.

        Both are called on any thread; ``on_worker`` must not block.
        """
        self._on_slot, self._on_worker = on_slot, on_worker

    @abstractmethod
    def start_slots(self, n_slots: int) -> tuple[list[Slot], Resource | None]:
        """Start slots at the start of the batch, or in place of lost and abandoned ones, without waiting for them.

        Return the slots that can play at once, and what ran out if there will be fewer than requested; without a
        shortage, ``on_slot`` receives the missing ones later.
        """

    def start_alone(self) -> Slot | None:
        """Start a slot whose worker has no other one; None if there are enough of them, or none can be started."""
        return None

    def watch(self, watch: Watch) -> None:
        """Set which live items are being watched; slots report no others. Called at least once a second."""
        if watch != self._watch:
            self._watch = watch
            self._send_watch(watch)

    @abstractmethod
    def _send_watch(self, watch: Watch) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class Finishers:
    """Daemon threads that run jobs, at most ``MAX_THREADS``; thread-safe."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._n_threads = 0

    def submit(self, job: Job) -> None:
        """Runs on the caller's thread if the system starts none."""
        with self._lock, suppress(RuntimeError, MemoryError):
            if self._n_threads < MAX_THREADS:
                threading.Thread(target=self._run, name="finisher", daemon=True).start()
                self._n_threads += 1
        if self._n_threads:
            self._jobs.put(job)
        else:
            _finish(job)

    def close(self) -> None:
        """The threads end after the jobs that were submitted; this does not wait for them."""
        for _ in range(self._n_threads):
            self._jobs.put(None)

    def _run(self) -> None:
        for job in iter(self._jobs.get, None):
            _finish(job)


def _finish(job: Job) -> None:
    with catch_foreign(log_failure(logger, "storing an episode")):
        job()
