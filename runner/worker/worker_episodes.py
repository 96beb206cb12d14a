"""The episodes of a worker: builds the factory of a batch once, and plays the episodes that the driver sends."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

import msgspec

from runner.episode.control import EpisodeControl
from runner.episode.factory import EpisodeContext, EpisodeFactory
from runner.errors import catch_foreign, log_failure
from runner.store.journal import EpisodeJournal
from runner.store.parts import Free
from runner.tracing import SpanList, TraceEncoder, Tracer, create_error_info
from runner.types.protocols import CallMethod, call_here, maybe_await
from runner.util.clock import Clock
from runner.util.resources import Resource, find_shortage
from runner.worker.driver_link import DriverLink, Link
from runner.worker.episode_reporter import EpisodeReporter, Watched
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

_T = TypeVar("_T")
_P = ParamSpec("_P")

_METHODS = ("reset", "step")


def blocks_loop(environment_class: object) -> bool:
    """Return whether environments of a class must not run on an event loop that other episodes share.

    An environment may run there if its methods are coroutine functions, or if it sets ``blocks_briefly`` to True. A
    subclass does not inherit that attribute, because its steps may take longer.
    """
    if not isinstance(environment_class, type):
        return True
    if vars(environment_class).get("blocks_briefly") is True:
        return False
    methods = (getattr(environment_class, name, None) for name in _METHODS)
    return not all(map(inspect.iscoroutinefunction, methods))


class EnvironmentThread:
    """Runs the methods of one environment on one thread; they see the context variables of their caller.

    A coroutine that such a method returns runs on the event loop of the caller.
    """

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, name)

    async def call(self, method: Callable[_P, _T | Awaitable[_T]], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call a method on the thread and return its result; a coroutine function is called on the running loop.

        A cancellation takes effect when the method has returned, as it does for a method that runs on the loop. Raises
        ``RuntimeError`` if the system starts no more threads.
        """
        if inspect.iscoroutinefunction(method):
            return await maybe_await(method(*args, **kwargs))
        problems: list[BaseException] = []
        results: list[_T | Awaitable[_T]] = []
        context = contextvars.copy_context()

        def run() -> None:
            with catch_foreign(problems.append):  # not every exception may be that of a future
                results.append(context.run(method, *args, **kwargs))

        await wait_shielded(asyncio.get_running_loop().run_in_executor(self._executor, run))
        if problems:
            raise problems[0]
        return await maybe_await(results[0])

    def close(self) -> None:
        """End the thread after the calls that have already started."""
        self._executor.shutdown(wait=False)


async def wait_shielded(done: asyncio.Future[_T]) -> _T:
    """Return the result of ``done``; raise a cancellation in the meantime only when it is done."""
    cancelled: asyncio.CancelledError | None = None
    while not done.done():
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError as exc:
            cancelled = exc
    if cancelled is not None:
        raise cancelled
    return done.result()


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


def start_loop() -> asyncio.AbstractEventLoop:
    """Start a daemon thread that runs an event loop until the end of the process, and return the loop."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=_run_forever, args=(loop,), name="episodes", daemon=True).start()
    return loop


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


def _run_forever(loop: asyncio.AbstractEventLoop) -> None:
    while not loop.is_closed():
        # SystemExit from a task that an environment started, or stopping the loop, ends ``run_forever``.
        with catch_foreign(log_failure(logger, "a task of an agent or environment")):
            loop.run_forever()


def _log_unless_shortage(failure: BaseException) -> None:
    if find_shortage(failure) is None:
        log_failure(logger, "closing an event loop")(failure)


class _Prepared(msgspec.Struct, frozen=True):
    factory: EpisodeFactory
    agent_is_async: bool
    environment_blocks: bool


class _Episode(msgspec.Struct, eq=False):
    """A running episode.

    Attributes:
        stop: cancels its asyncio task at the next ``await``.
        is_abandoned: whether its thread plays no other episode.
    """

    play: Play
    control: EpisodeControl
    journal: EpisodeJournal | None
    stop: Callable[[], object] = lambda: None
    is_abandoned: bool = False


class WorkerEpisodes:
    """Plays the episodes of one batch in this process; thread-safe.

    In a process of its own, episodes of an async agent share an event loop; if their environment is sync, its methods
    run on a thread of the episode. An episode of a sync agent runs on its own thread, with its own event loop. In the
    process of the driver, every episode does, because one that hangs cannot be killed there.

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
        self._prepared: _Prepared | None = None
        self._prepare_lock = threading.Lock()
        self._on_warm = on_warm
        self._gate: RemoteGate | None = None
        self._server_times: dict[str, EndpointTimes] = {}
        self._lessons: list[EndpointLesson] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle_threads: deque[EpisodeThread] = deque()
        # In the process of the driver these still store their episodes; the last one has most likely just ended.
        self._ending_threads: deque[EpisodeThread] = deque()
        self._watched = Watched()
        self._episodes: dict[str, _Episode] = {}
        self._traces: dict[str, TraceEncoder] = {}
        self._tasks: set[asyncio.Task[BaseException | None]] = set()
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
                self._watched.steps, self._watched.tokens = frame.steps, frame.tokens
            case EndpointTimes():
                self._server_times[frame.endpoint] = frame
                if self._gate is not None:
                    self._gate.set_server_times(frame.endpoint, frame.times)
            case EndpointLesson():
                self._lessons.append(frame)
                if self._gate is not None:
                    self._gate.lessons.keep(frame.key, frame.capabilities, is_news=False)
            case Reply():
                if self._driver is not None:
                    self._driver.resolve(frame)
            case Configure():
                logger.warning("a second Configure frame is ignored; start another worker for another batch")

    def prepare(self) -> None:
        """Build the factory once; raises ``ConfigError`` if agent or environment cannot be loaded in this process."""
        with self._prepare_lock:
            if self._prepared is None:
                self._prepared = self._prepare()

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

    def _prepare(self) -> _Prepared:
        setup = self._setup
        act = getattr(setup.agent.load(), "act", None)
        embedded = setup.address is None
        return _Prepared(
            setup.build_factory(self._remote_models() if self._driver is not None else self._local_models),
            agent_is_async=inspect.iscoroutinefunction(act),
            environment_blocks=embedded and blocks_loop(setup.env.load()),
        )

    def _remote_models(self) -> InferenceManager | None:
        if self._setup.models is None or self._driver is None:
            return None
        from runner.worker.remote_gate import remote_manager  # imported late: only models need it

        environ = {**os.environ, **self._secrets}
        manager, gate = remote_manager(self._setup.models, environ, self._driver, self._clock.monotonic)
        for times in list(self._server_times.values()):
            gate.set_server_times(times.endpoint, times.times)
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
        if self._prepared is not None:
            self._dispatch(episode)
        else:  # an import may take long, and the caller reads the commands of the driver
            self._shared_loop.call_soon_threadsafe(self._dispatch, episode)

    @property
    def _shared_loop(self) -> asyncio.AbstractEventLoop:
        loop = self._loop = self._loop or start_loop()
        return loop

    def _dispatch(self, episode: _Episode) -> None:
        def give_up(problem: BaseException) -> None:
            self._end(episode, problem)

        with catch_foreign(give_up):
            self.prepare()
            assert self._prepared is not None
            if self._driver is not None and self._prepared.agent_is_async:
                self._shared_loop.call_soon_threadsafe(self._play_on_loop, episode)
            else:
                self._play_on_thread(episode)

    def _play_on_loop(self, episode: _Episode) -> None:
        loop = self._shared_loop
        task = loop.create_task(self._guarded(episode))
        self._tasks.add(task)

        def on_done(task: asyncio.Task[BaseException | None]) -> None:
            self._tasks.discard(task)
            self._end(episode, asyncio.CancelledError() if task.cancelled() else task.result())

        task.add_done_callback(on_done)
        # called later than soon, because a task that is cancelled before its start would never begin the episode
        episode.stop = partial(loop.call_soon_threadsafe, lambda: loop.call_soon(task.cancel))

    async def _guarded(self, episode: _Episode) -> BaseException | None:
        """Return the exception of an episode, because not every exception may leave a task of a shared loop."""
        assert self._prepared is not None
        problems: list[BaseException] = []
        with catch_foreign(problems.append):
            if not self._prepared.environment_blocks:
                await self._play(episode, call_here)
            else:
                thread = EnvironmentThread(episode.play.track)
                try:
                    await self._play(episode, thread.call)
                finally:
                    thread.close()
        return problems[0] if problems else None

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

        thread.submit(partial(self._play, episode, call_here), on_done)

    async def _play(self, episode: _Episode, call: CallMethod) -> None:
        if episode.is_abandoned:  # before it started: nothing would store what it plays
            return
        assert self._prepared is not None
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
            watched=self._watched,
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
            wants_tokens=lambda: self._watched.tokens,
            clock=self._clock,
            call_environment=call,
        )
        reset_kwargs = {"task_index": header.task_index, "seed": header.seed}
        await self._prepared.factory.play_episode(reset_kwargs, context=context)

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
