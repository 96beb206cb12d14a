"""The threads that play episodes: daemon threads with event loops, shared or one for each episode."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import queue
import threading
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, ParamSpec, TypeAlias, TypeVar

import msgspec

from runner.errors import catch_foreign, log_failure
from runner.types.maybe_async import maybe_await
from runner.util.resources import Resource, find_shortage

logger = logging.getLogger(__name__)

KEPT_SHARE = 3
"""If the system does not start all workers, one of this many started workers is kept."""
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


class _Call(msgspec.Struct):
    run: Callable[[], Any]
    on_done: Callable[[], object]
    results: list[Any]
    problems: list[BaseException]


class EnvironmentThread:
    """Runs the methods of one environment on one thread; they see the context variables of their caller.

    A coroutine that such a method returns runs on the event loop of the caller. Raises ``RuntimeError`` if the system
    starts no more threads.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        threading.Thread(target=self._run_calls, name=name, daemon=True).start()

    async def call(self, method: Callable[_P, _T | Awaitable[_T]], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call a method on the thread and return its result; a coroutine function is called on the running loop.

        A cancellation takes effect when the method has returned, as it does for a method that runs on the loop.
        """
        if inspect.iscoroutinefunction(method):
            return await maybe_await(method(*args, **kwargs))
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        run = partial(contextvars.copy_context().run, method, *args, **kwargs)
        call = _Call(run, partial(_wake, loop, done), [], [])
        self._calls.put(call)
        await wait_shielded(done)
        if call.problems:
            raise call.problems[0]
        return await maybe_await(call.results[0])

    def close(self) -> None:
        """End the thread after the calls that have already started."""
        self._calls.put(None)

    def _run_calls(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                with catch_foreign(call.problems.append):
                    call.results.append(call.run())
            except (asyncio.CancelledError, GeneratorExit) as exc:
                call.problems.append(exc)
            call.on_done()
            del call  # would keep the result until the next call


def _wake(loop: asyncio.AbstractEventLoop, done: asyncio.Future[None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(done.set_result, None)


async def wait_shielded(done: asyncio.Future[_T], on_cancel: Callable[[], object] = lambda: None) -> _T:
    """Return the result of ``done``; raise a cancellation in the meantime only when it is done."""
    cancelled: asyncio.CancelledError | None = None
    while not done.done():
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError as exc:
            cancelled = exc
            on_cancel()
    if cancelled is not None:
        raise cancelled
    return done.result()


class EpisodeThread:
    """A daemon thread that runs submitted coroutines one after another in its own event loop, until ``close``.

    ``name`` is also the track that shows its episodes in traces. Raises ``OSError`` without enough open files for an
    event loop, and ``RuntimeError`` if the system starts no more threads.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._jobs: queue.SimpleQueue[tuple[Job, DoneCallback] | None] = queue.SimpleQueue()
        self._task: asyncio.Task[None] | None = None
        # Opened here, because a thread that cannot open it would end without a report.
        self._loop = asyncio.new_event_loop()
        try:
            self._thread = threading.Thread(target=self._run_jobs, name=name, daemon=True)
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
            while (entry := self._jobs.get()) is not None:
                job, on_done = entry
                problems: list[BaseException] = []
                with catch_foreign(problems.append):
                    self._run_to_completion(self._loop, job, problems)
                on_done(problems[0] if problems else None)

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


def start_workers(n_workers: int, next_name: Callable[[], str]) -> tuple[list[EpisodeThread], Resource | None]:
    """Start workers; if the system does not allow all of them, keep a third and return also what ran out.

    The episodes need resources, too: an episode on a server starts a second thread that resolves its host name.
    """
    workers: list[EpisodeThread] = []
    while len(workers) < n_workers:
        try:
            workers.append(EpisodeThread(next_name()))
        except (OSError, RuntimeError, MemoryError) as exc:
            if (shortage := find_shortage(exc)) is None:
                raise
            n_kept = -(-len(workers) // KEPT_SHARE)
            for worker in workers[n_kept:]:
                worker.close()
            for worker in workers[n_kept:]:
                worker.join(JOIN_TIMEOUT_S)
            return workers[:n_kept], shortage
    return workers, None


def _run_forever(loop: asyncio.AbstractEventLoop) -> None:
    while not loop.is_closed():
        # SystemExit from a task that an environment started, or stopping the loop, ends ``run_forever``.
        with catch_foreign(log_failure(logger, "a task of an agent or environment")):
            loop.run_forever()


def _log_unless_shortage(failure: BaseException) -> None:
    if find_shortage(failure) is None:
        log_failure(logger, "closing an event loop")(failure)
