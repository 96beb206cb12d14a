"""Slots: daemon threads, each with an event loop of its own, that play whole episodes one after the other."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from runner.errors import boundary

Work: TypeAlias = Callable[[], Coroutine[Any, Any, object]]
Report: TypeAlias = Callable[[BaseException | None], None]


class Slot:
    """A thread that runs one coroutine at a time; a slot that hangs is simply no longer used.

    Args:
        name: the thread's name, and the episode's track in traces.
    """

    def __init__(self, name: str) -> None:
        """Start the thread; it ends with ``close``, or with the process."""
        self.name = name
        self._jobs: queue.SimpleQueue[tuple[Work, Report] | None] = queue.SimpleQueue()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def submit(self, work: Work, report: Report) -> None:
        """Run ``work()`` next and call ``report`` on the slot's thread with what it raised, or None."""
        self._jobs.put((work, report))

    def interrupt(self) -> None:
        """Cancel what runs at its next ``await``; work that never awaits is not reached by this."""
        loop, task = self._loop, self._task
        if loop is not None and task is not None and not loop.is_closed():
            loop.call_soon_threadsafe(task.cancel)

    def close(self) -> None:
        """End the thread once what was submitted has run."""
        self._jobs.put(None)

    def _serve(self) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            while (job := self._jobs.get()) is not None:
                work, report = job
                problems: list[BaseException] = []
                with boundary(problems.append):
                    self._finish(self._loop, work, problems)
                report(problems[0] if problems else None)

    def _finish(self, loop: asyncio.AbstractEventLoop, work: Work, problems: list[BaseException]) -> None:
        """Run ``work()`` to its end, whatever it raises."""

        async def guarded() -> None:
            with boundary(problems.append):
                await work()

        self._task = task = loop.create_task(guarded())
        while not (task.done() or loop.is_closed()):
            try:
                # What ends a program comes out of the loop when a task that the work started raises it, or when the
                # loop is stopped: the work itself is not over then.
                with boundary(problems.append):
                    loop.run_until_complete(task)
            except (asyncio.CancelledError, GeneratorExit) as exc:
                problems.append(exc)
        self._task = None
