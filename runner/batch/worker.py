"""Episode workers: daemon threads with their own event loops that play episodes one after another."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from runner.errors import catch_foreign

Job: TypeAlias = Callable[[], Coroutine[Any, Any, object]]
DoneCallback: TypeAlias = Callable[[BaseException | None], None]


class EpisodeWorker:
    """A daemon thread that runs submitted coroutines one after another in its own event loop.

    Args:
        name: name of the thread, and of the track that shows its episodes in traces.
    """

    def __init__(self, name: str) -> None:
        """Start the thread; it runs until ``close`` or the end of the process."""
        self.name = name
        self._jobs: queue.SimpleQueue[tuple[Job, DoneCallback] | None] = queue.SimpleQueue()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        threading.Thread(target=self._run_jobs, name=name, daemon=True).start()

    def submit(self, job: Job, on_done: DoneCallback) -> None:
        """Queue a job; when it ends, call ``on_done`` on the worker's thread with the job's exception or None."""
        self._jobs.put((job, on_done))

    def interrupt(self) -> None:
        """Cancel the running job at its next ``await``; a job that never awaits continues."""
        loop, task = self._loop, self._task
        if loop is not None and task is not None and not loop.is_closed():
            loop.call_soon_threadsafe(task.cancel)

    def close(self) -> None:
        """End the thread after the jobs that were already submitted."""
        self._jobs.put(None)

    def _run_jobs(self) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            while (entry := self._jobs.get()) is not None:
                job, on_done = entry
                problems: list[BaseException] = []
                with catch_foreign(problems.append):
                    self._run_to_completion(self._loop, job, problems)
                on_done(problems[0] if problems else None)

    def _run_to_completion(self, loop: asyncio.AbstractEventLoop, job: Job, problems: list[BaseException]) -> None:
        """Run a job to its end; append the exceptions that it raises to ``problems``."""

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
