"""The episodes of a worker: builds the factory of a batch once, and plays the episodes that the driver sends."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import msgspec

from runner.envs.http.client import use_registry
from runner.episode.factory import EpisodeContext, EpisodeFactory
from runner.errors import catch_foreign, log_failure
from runner.tracing import SpanList, TraceEncoder, Tracer, create_error_info
from runner.types.maybe_async import CallMethod, call_here
from runner.util.clock import Clock
from runner.util.resources import find_shortage
from runner.worker.channel import DriverLink
from runner.worker.episode_reporter import EpisodeReporter
from runner.worker.episode_thread import EnvironmentThread, EpisodeThread, blocks_loop, start_loop, wait_shielded
from runner.worker.frame_sender import FrameSender, ReportedControl
from runner.worker.frames import (
    Command,
    Configure,
    DriverFrame,
    EndpointLesson,
    EndpointRest,
    EndpointTimes,
    Free,
    Play,
    Reply,
    Stop,
    Watch,
)
from runner.worker.remote_gate import RemoteGate, RemoteRegistry, remote_manager

logger = logging.getLogger(__name__)

MAX_TOKEN_FRAMES = 20
"""Maximum number of ``Streamed`` frames per second and episode; further texts are dropped."""
CLOSE_TIMEOUT_S = 10.0
"""Maximum seconds that ``close`` waits for the cleanup of the running episodes."""


class _Prepared(msgspec.Struct, frozen=True):
    factory: EpisodeFactory
    agent_is_async: bool
    environment_blocks: bool


class _Episode(msgspec.Struct, eq=False):
    """A running episode; ``stop`` cancels its asyncio task."""

    control: ReportedControl
    stop: Callable[[], object]


class WorkerEpisodes:
    """Plays the episodes of one batch in this process; thread-safe.

    Episodes of an async agent share an event loop. If their environment is sync, its methods run on a thread of the
    episode. An episode of a sync agent runs on its own thread, with its own event loop.

    ``on_warm`` is called once, when an episode has ended, so that everything that episodes need is imported.
    """

    def __init__(
        self,
        link: DriverLink,
        configure: Configure,
        clock: Clock | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        on_warm: Callable[[], object] = lambda: None,
    ) -> None:
        self._link = link
        self._setup = configure.setup
        self._secrets = configure.secrets
        self._clock = _shifted_clock(clock or Clock(), configure.wall_offset_s)
        offset_ns = configure.clock_offset_ns
        self._clock_ns = (lambda: clock_ns() + offset_ns) if offset_ns else clock_ns
        self._prepared: _Prepared | None = None
        self._prepare_lock = threading.Lock()
        self._on_warm = on_warm
        self._gate: RemoteGate | None = None
        self._rests: dict[str, EndpointRest] = {}
        self._server_times: dict[str, EndpointTimes] = {}
        self._lessons: list[EndpointLesson] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle_threads: list[EpisodeThread] = []
        self._wants_tokens = False
        self._episodes: dict[str, _Episode] = {}
        self._traces: dict[str, TraceEncoder] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._all_ended = threading.Condition()
        use_registry(RemoteRegistry(link))

    def handle(self, frame: DriverFrame) -> None:
        """Episodes are played on a shared event loop, which the first one starts."""
        match frame:
            case Play():
                self._start(frame)
            case Command():
                self._command(frame)
            case Watch():
                self._wants_tokens = frame.tokens
            case EndpointRest():
                self._rests[frame.endpoint] = frame
                if self._gate is not None:
                    self._gate.on_rest(frame)
            case EndpointTimes():
                self._server_times[frame.endpoint] = frame
                if self._gate is not None:
                    self._gate.set_server_times(frame.endpoint, frame.times)
            case EndpointLesson():
                self._lessons.append(frame)
                if self._gate is not None:
                    self._gate.on_lesson(frame)
            case Reply():
                self._link.resolve(frame)
            case Stop():
                self._stop_all()
            case Configure():
                logger.warning("a second Configure frame is ignored; start another worker for another batch")

    def prepare(self) -> None:
        """Build the factory once; raises ``ConfigError`` if agent or environment cannot be loaded in this process."""
        with self._prepare_lock:
            if self._prepared is None:
                self._prepared = self._prepare()

    async def play(self, play: Play) -> None:
        """Play an episode on the running event loop, or on a thread if its agent is sync.

        Every event is sent as a frame, and ``Free`` at the end. A cancellation cancels the episode, and is raised when
        it has ended.
        """
        problems: list[BaseException] = []
        try:
            with catch_foreign(problems.append):
                self.prepare()
                await self._play(play)
        except asyncio.CancelledError as exc:
            problems.append(exc)
            raise
        finally:
            self._episodes.pop(play.header.episode_id, None)
            self._send_free(play, problems)
            on_warm, self._on_warm = self._on_warm, lambda: None
            on_warm()
            with self._all_ended:
                self._all_ended.notify_all()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Cancel the running episodes, wait at most ``timeout_s`` seconds for their cleanup, and end idle threads."""
        self._stop_all()
        with self._all_ended:
            self._all_ended.wait_for(lambda: not self._episodes, timeout_s)
        for thread in self._idle_threads:
            thread.close()

    def _stop_all(self) -> None:
        for episode in list(self._episodes.values()):
            episode.control.cancel()
            episode.stop()

    def _prepare(self) -> _Prepared:
        setup, manager = self._setup, None
        if setup.models is not None:
            environ = {**os.environ, **self._secrets}
            manager, gate = remote_manager(setup.models, environ, self._link, self._clock.monotonic)
            for rest in list(self._rests.values()):
                gate.on_rest(rest)
            for times in list(self._server_times.values()):
                gate.set_server_times(times.endpoint, times.times)
            for lesson in self._lessons.copy():
                gate.on_lesson(lesson)
            self._gate = gate
        act = getattr(setup.agent.load(), "act", None)
        embedded = setup.address is None
        return _Prepared(
            setup.build_factory(manager),
            agent_is_async=inspect.iscoroutinefunction(act),
            environment_blocks=embedded and blocks_loop(setup.env.load()),
        )

    def _start(self, play: Play) -> None:
        loop = self._loop = self._loop or start_loop()
        self._register(play, partial(loop.call_soon_threadsafe, self._stop_later, play.header.episode_id))
        loop.call_soon_threadsafe(self._create_task, loop, play)

    def _create_task(self, loop: asyncio.AbstractEventLoop, play: Play) -> None:
        task = loop.create_task(self.play(play))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _stop_later(self, episode_id: str) -> None:
        """Stop an episode whose task had not started; a task that is cancelled before its start would not report."""
        if (episode := self._episodes.get(episode_id)) is not None:
            episode.stop()

    def _register(self, play: Play, stop: Callable[[], object]) -> _Episode:
        episode_id = play.header.episode_id
        if (episode := self._episodes.get(episode_id)) is None:
            control = ReportedControl(episode_id, self._link.send, self._clock)
            if play.paused:
                control.pause()
            episode = self._episodes[episode_id] = _Episode(control, stop)
        episode.stop = stop
        return episode

    def _command(self, command: Command) -> None:
        if (episode := self._episodes.get(command.episode_id)) is None:
            return
        match command.name:
            case "cancel":
                episode.control.cancel(command.outcome)
            case "pause":
                episode.control.pause()
            case "resume":
                episode.control.resume()
            case "step":
                episode.control.step()
            case "stop":
                episode.stop()

    async def _play(self, play: Play) -> None:
        assert self._prepared is not None
        if not self._prepared.agent_is_async:
            return await self._play_on_thread(play)
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._register(play, partial(loop.call_soon_threadsafe, task.cancel))
        if not self._prepared.environment_blocks:
            return await self._run_episode(play, call_here)
        thread = EnvironmentThread(play.track)
        try:
            await self._run_episode(play, thread.call)
        finally:
            thread.close()

    async def _play_on_thread(self, play: Play) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[BaseException | None] = loop.create_future()
        thread = self._idle_threads.pop() if self._idle_threads else EpisodeThread("episode")
        self._register(play, thread.interrupt)

        def on_done(problem: BaseException | None) -> None:
            loop.call_soon_threadsafe(done.set_result, problem)

        thread.submit(partial(self._run_episode, play, call_here), on_done)
        try:
            problem = await wait_shielded(done, thread.interrupt)
        finally:
            self._idle_threads.append(thread)
        if problem is not None:
            raise problem

    async def _run_episode(self, play: Play, call: CallMethod) -> None:
        assert self._prepared is not None
        header, spans = play.header, SpanList()
        control = self._episodes[header.episode_id].control
        tracer = Tracer(self._setup.tracing, (spans,), play.track, self._clock_ns)
        sender = FrameSender(header.episode_id, control, self._link.send)
        trace = self._traces.setdefault(play.track, TraceEncoder(header.boot, play.track))
        reporter = EpisodeReporter(tracer, spans, sender, self._clock, trace=trace, max_tokens_per_s=MAX_TOKEN_FRAMES)
        context = EpisodeContext(
            header=header,
            control=control,
            tracer=tracer,
            emit=reporter.emit,
            on_reset=reporter.on_reset,
            on_sequence=reporter.on_sequence,
            on_error=sender.on_error,
            wants_tokens=lambda: self._wants_tokens,
            clock=self._clock,
            call_environment=call,
        )
        reset_kwargs = {"task_index": header.task_index, "seed": header.seed}
        await self._prepared.factory.play_episode(reset_kwargs, context=context)

    def _send_free(self, play: Play, problems: list[BaseException]) -> None:
        if not problems:
            self._link.send(Free(episode_id=play.header.episode_id))
            return
        with catch_foreign(log_failure(logger, "reporting the end of an episode")):
            info = create_error_info(problems[0])
            self._link.send(
                Free(
                    episode_id=play.header.episode_id,
                    problem=f"{info.type}: {info.message}",
                    shortage=find_shortage(problems[0]),
                )
            )


def _shifted_clock(clock: Clock, offset_s: float) -> Clock:
    offset = timedelta(seconds=offset_s)
    return Clock(clock.monotonic, lambda: clock.now() + offset) if offset_s else clock
