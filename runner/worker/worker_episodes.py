"""The episodes of a worker: builds the factory of a batch once, and plays the episodes that the driver sends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from runner.episode.control import EpisodeControl
from runner.episode.factory import EpisodeContext, EpisodeFactory
from runner.errors import catch_foreign, log_failure
from runner.store.journal import EpisodeJournal
from runner.store.parts import Free
from runner.tracing import SpanList, TraceEncoder, Tracer, create_error_info
from runner.util.clock import Clock
from runner.util.resources import Resource, find_shortage
from runner.worker.driver_link import DriverLink, Link
from runner.worker.episode_reporter import EpisodeReporter
from runner.worker.frames import (
    Command,
    Configure,
    DriverFrame,
    EndpointLesson,
    EndpointTimes,
    Play,
    Reply,
    Watch,
)

if TYPE_CHECKING:
    from runner.inference.manager import InferenceManager
    from runner.worker.remote_gate import RemoteGate

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 10.0
"""Maximum seconds that ``close`` waits for the cleanup of the running episodes."""
KEPT_SHARE = 3
"""If the system does not start all threads, one of this many started threads is kept."""
JOIN_TIMEOUT_S = 5.0

Job: TypeAlias = Callable[[], Coroutine[Any, Any, object]]
DoneCallback: TypeAlias = Callable[[BaseException | None], None]


class EpisodeThread:
    """A daemon thread that runs submitted coroutines one after another in its own event loop, until ``close``.

    Raises ``OSError`` without enough open files for an event loop, and ``RuntimeError`` if the system starts no more
    threads.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Job, DoneCallback] | None] = queue.SimpleQueue()
        self._task: asyncio.Task[None] | None = None
        # Opened here, because a thread that cannot open it would end without a report.
        self._loop = asyncio.new_event_loop()
        try:
            self._thread = threading.Thread(target=self._run_jobs, name="episode", daemon=True)
            self._thread.start()
        except (RuntimeError, MemoryError):
            self._loop.close()
            raise

    def submit(self, job: Job, on_done: DoneCallback) -> None:
        """Queue a job; when it ends, call ``on_done`` on the worker's thread with the job's exception or None."""
        self._jobs.put((job, on_done))

    def interrupt(self) -> None:
        """Cancel the running job at its next ``await``; a job that never awaits continues."""
        loop, task = self._loop, self._task
        if task is not None and not loop.is_closed():
            loop.call_soon_threadsafe(task.cancel)

    def close(self) -> None:
        """End the thread after the jobs that were already submitted."""
        self._jobs.put(None)

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _run_jobs(self) -> None:
        # at its end, the loop starts another thread, which fails if no more can be started
        with catch_foreign(_log_unless_shortage), asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop()
            while (entry := self._next_job()) is not None:
                job, on_done = entry
                problems: list[BaseException] = []
                with catch_foreign(problems.append):
                    self._run_to_completion(self._loop, job, problems)
                on_done(problems[0] if problems else None)

    def _next_job(self) -> tuple[Job, DoneCallback] | None:
        """Wait for a job, under another name, by which the end of a command knows that the thread plays nothing."""
        thread = threading.current_thread()
        thread.name = "idle episode"
        try:
            return self._jobs.get()
        finally:
            thread.name = "episode"

    def _run_to_completion(self, loop: asyncio.AbstractEventLoop, job: Job, problems: list[BaseException]) -> None:
        async def guarded() -> None:
            with catch_foreign(problems.append):
                await job()

        self._task = task = loop.create_task(guarded())
        while not (task.done() or loop.is_closed()):
            try:
                # SystemExit or KeyboardInterrupt from a task that the job started, or stopping the loop, leaves
                # run_until_complete although the job itself is not done.
                with catch_foreign(problems.append):
                    loop.run_until_complete(task)
            except (asyncio.CancelledError, GeneratorExit) as exc:
                problems.append(exc)
        self._task = None


def start_threads(n_threads: int) -> tuple[list[EpisodeThread], Resource | None]:
    """Start threads; if the system does not allow all of them, keep a third and return also what ran out.

    The episodes need resources, too: an episode on a server starts a second thread that resolves its host name.
    """
    threads: list[EpisodeThread] = []
    while len(threads) < n_threads:
        try:
            threads.append(EpisodeThread())
        except (OSError, RuntimeError, MemoryError) as exc:
            if (shortage := find_shortage(exc)) is None:
                raise
            n_kept = -(-len(threads) // KEPT_SHARE)
            for thread in threads[n_kept:]:
                thread.close()
            for thread in threads[n_kept:]:
                thread.join(JOIN_TIMEOUT_S)
            return threads[:n_kept], shortage
    return threads, None


def _log_unless_shortage(failure: BaseException) -> None:
    if find_shortage(failure) is None:
        log_failure(logger, "closing an event loop")(failure)


class _Episode(msgspec.Struct, eq=False):
    """A running episode: ``stop`` cancels its task at the next ``await``; once abandoned, its thread plays no other."""

    play: Play
    control: EpisodeControl
    journal: EpisodeJournal | None
    stop: Callable[[], object] = lambda: None
    is_abandoned: bool = False


class WorkerEpisodes:
    """Plays the episodes of one batch in this process; thread-safe.

    Each episode runs on a thread of its own, with its own event loop: agents and environments may block.

    Args:
        link: in the process of the driver, this is no ``DriverLink``.
        local_models: the models of the driver's process if the episodes are played there, and if they use any.
        on_warm: called once, when an episode has ended, so that everything that episodes need is imported.
    """

    def __init__(
        self,
        link: Link,
        configure: Configure,
        clock: Clock | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        *,
        local_models: InferenceManager | None = None,
        on_warm: Callable[[], object] = lambda: None,
    ) -> None:
        self._link = link
        self._driver = link if isinstance(link, DriverLink) else None
        self._setup = configure.setup
        self._secrets = configure.secrets
        self._runs = None if configure.runs is None else Path(configure.runs)
        self._clock = _shifted_clock(clock or Clock(), configure.wall_offset_s)
        offset_ns = configure.clock_offset_ns
        self._clock_ns = (lambda: clock_ns() + offset_ns) if offset_ns else clock_ns
        self._local_models = local_models
        self._factory: EpisodeFactory | None = None
        self._prepare_lock = threading.Lock()
        self._on_warm = on_warm
        self._gate: RemoteGate | None = None
        self._server_times: dict[str, EndpointTimes] = {}
        self._lessons: list[EndpointLesson] = []
        self._idle_threads: deque[EpisodeThread] = deque()
        # In the process of the driver these still store their episodes; the last one has most likely just ended.
        self._ending_threads: deque[EpisodeThread] = deque()
        self._watch = Watch()
        self._episodes: dict[str, _Episode] = {}
        self._traces: dict[str, TraceEncoder] = {}
        self._all_ended = threading.Condition()
        if self._driver is not None:
            from runner.envs.http.client import use_desk  # imported late: the driver's own process does not need it

            use_desk(self._driver)

    def handle(self, frame: DriverFrame) -> None:
        match frame:
            case Play():
                self._start(frame)
            case Command():
                self._command(frame)
            case Watch():
                self._watch = frame
            case EndpointTimes():
                self._server_times[frame.endpoint] = frame
                if self._gate is not None:
                    self._gate.server_times.set(frame.endpoint, frame.times)
            case EndpointLesson():
                self._lessons.append(frame)
                if self._gate is not None:
                    self._gate.lessons.keep(frame.key, frame.capabilities, is_news=False)
            case Reply():
                if self._driver is not None:
                    self._driver.resolve(frame)
            case Configure():
                logger.warning("a second Configure frame is ignored; start another worker for another batch")

    def prepare(self) -> EpisodeFactory:
        """Build the factory once; raises ``ConfigError`` if agent or environment cannot be loaded in this process."""
        with self._prepare_lock:
            if self._factory is None:
                setup = self._setup
                setup.agent.load()
                if setup.address is None:
                    setup.env.load()
                models = self._remote_models() if self._driver is not None else self._local_models
                self._factory = setup.build_factory(models)
            return self._factory

    def start_threads(self, n_threads: int) -> tuple[int, Resource | None]:
        """Start the threads of episodes beforehand; return how many there are, and what ran out if not all are."""
        threads, shortage = start_threads(n_threads)
        self._idle_threads += threads
        return len(threads), shortage

    def abandon(self, episode_id: str) -> None:
        """Leave the thread of an episode that hangs to itself: it ends at its next ``await``."""
        if (episode := self._episodes.get(episode_id)) is not None:
            episode.is_abandoned = True
            episode.stop()

    def finish_steps(self, timeout_s: float) -> None:
        """End each episode after the step that it plays, and wait at most ``timeout_s`` seconds for that."""
        for episode in list(self._episodes.values()):
            episode.control.cancel()
        self._wait_for_all(timeout_s)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Cancel the running episodes, wait at most ``timeout_s`` seconds for their cleanup, and end idle threads."""
        for episode in list(self._episodes.values()):
            episode.control.cancel()
            episode.stop()
        self._wait_for_all(timeout_s)
        for thread in (*self._idle_threads, *self._ending_threads):
            thread.close()

    def _wait_for_all(self, timeout_s: float) -> None:
        with self._all_ended:
            self._all_ended.wait_for(lambda: not self._episodes, timeout_s)

    def _remote_models(self) -> InferenceManager | None:
        if self._setup.models is None or self._driver is None:
            return None
        from runner.worker.remote_gate import remote_manager  # imported late: only models need it

        environ = {**os.environ, **self._secrets}
        manager, gate = remote_manager(self._setup.models, environ, self._driver, self._clock.monotonic)
        for times in list(self._server_times.values()):
            gate.server_times.set(times.endpoint, times.times)
        for lesson in self._lessons.copy():
            gate.lessons.keep(lesson.key, lesson.capabilities, is_news=False)
        self._gate = gate
        return manager

    def _start(self, play: Play) -> None:
        header = play.header
        control = EpisodeControl(self._clock, self._link.wait_for_room)
        if play.paused:
            control.pause()
        journal = None if self._runs is None else EpisodeJournal(self._runs, header)
        self._episodes[header.episode_id] = episode = _Episode(play, control, journal)
        with catch_foreign(lambda problem: self._end(episode, problem)):
            self._play_on_thread(episode)

    def _play_on_thread(self, episode: _Episode) -> None:
        threads = self._idle_threads or self._ending_threads
        thread = threads.pop() if threads else EpisodeThread()
        episode.stop = thread.interrupt

        def on_done(problem: BaseException | None) -> None:
            if episode.is_abandoned:
                thread.close()
            else:
                self._ending_threads.append(thread)
            self._end(episode, problem)
            with contextlib.suppress(ValueError):  # it has its next episode, or was closed
                self._ending_threads.remove(thread)
                self._idle_threads.append(thread)

        thread.submit(partial(self._play, episode), on_done)

    async def _play(self, episode: _Episode) -> None:
        if episode.is_abandoned:  # before it started: nothing would store what it plays
            return
        factory = self.prepare()
        header, track, spans = episode.play.header, episode.play.track, SpanList()
        tracer = Tracer(self._setup.tracing, (spans,), track, self._clock_ns)
        reporter = EpisodeReporter(
            header,
            episode.control,
            tracer,
            spans,
            self._link.send,
            journal=episode.journal,
            trace=self._traces.setdefault(track, TraceEncoder(header.boot, track)),
            watched=lambda: self._watch,
            clock=self._clock,
        )
        context = EpisodeContext(
            header=header,
            control=episode.control,
            tracer=tracer,
            emit=reporter.emit,
            on_reset=reporter.on_reset,
            on_sequence=reporter.on_sequence,
            on_error=reporter.on_error,
            on_decided=reporter.on_decided,
            clock=self._clock,
        )
        reset_kwargs = {"task_index": header.task_index, "seed": header.seed}
        await factory.play_episode(reset_kwargs, context=context)

    def _end(self, episode: _Episode, problem: BaseException | None) -> None:
        """Report that an episode is over; its last frame."""
        episode_id = episode.play.header.episode_id
        if episode.journal is not None:
            episode.journal.close()
        self._episodes.pop(episode_id, None)
        with catch_foreign(log_failure(logger, "reporting the end of an episode")):
            self._link.send(_free(episode_id, problem))
        on_warm, self._on_warm = self._on_warm, lambda: None
        on_warm()
        with self._all_ended:
            self._all_ended.notify_all()

    def _command(self, command: Command) -> None:
        if (episode := self._episodes.get(command.episode_id)) is None:
            return
        if command.name == "stop":
            episode.stop()
        else:
            episode.control.command(command.name, command.outcome)


def _free(episode_id: str, problem: BaseException | None) -> Free:
    if problem is None:
        return Free(episode_id=episode_id)
    info = create_error_info(problem)
    return Free(episode_id=episode_id, problem=f"{info.type}: {info.message}", shortage=find_shortage(problem))


def _shifted_clock(clock: Clock, offset_s: float) -> Clock:
    offset = timedelta(seconds=offset_s)
    return Clock(clock.monotonic, lambda: clock.now() + offset) if offset_s else clock
