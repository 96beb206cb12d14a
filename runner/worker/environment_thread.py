"""The thread of a sync environment in a worker, so that its steps do not hold up the other episodes of the loop."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import queue
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, ParamSpec, TypeAlias, TypeVar

import msgspec

from runner.errors import catch_foreign
from runner.types.maybe_async import maybe_await

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

    A coroutine that such a method returns runs on the event loop of the caller.
    """

    def __init__(self, name: str) -> None:
        """Raises ``RuntimeError`` if the system starts no more threads."""
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


_Done: TypeAlias = "asyncio.Future[None]"


def _wake(loop: asyncio.AbstractEventLoop, done: _Done) -> None:
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
