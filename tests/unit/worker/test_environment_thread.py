"""The thread of a sync environment."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from runner.envs.maze import Maze
from runner.worker.worker_episodes import EnvironmentThread, blocks_loop
from tests.support.fakes import AllAsync, AsyncCounter, Counter

VARIABLE = contextvars.ContextVar("VARIABLE", default="")


class SlowMaze(Maze):
    pass


@pytest.mark.parametrize(
    ("environment", "blocks"),
    [
        (Counter, True),
        (AsyncCounter, False),
        (AllAsync, False),
        (Maze, False),
        (SlowMaze, True),
        (lambda: Maze(), True),
    ],
)
def test_which_environments_may_share_a_loop(environment: object, blocks: bool) -> None:
    assert blocks_loop(environment) is blocks


def test_all_sync_methods_run_on_one_thread_with_the_variables_of_their_caller() -> None:
    seen: list[tuple[int, str]] = []

    def method(number: int, *, text: str) -> str:
        seen.append((threading.get_ident(), VARIABLE.get()))
        VARIABLE.set("of the method")
        return f"{number} {text}"

    async def async_method() -> int:
        return threading.get_ident()

    def returns_awaitable() -> Awaitable[int] | int:
        return async_method()

    async def run() -> None:
        thread = EnvironmentThread("environment")
        VARIABLE.set("of the caller")
        assert await thread.call(method, 1, text="a") == "1 a"
        assert await thread.call(method, 2, text="b") == "2 b"
        assert VARIABLE.get() == "of the caller"
        for function in (cast("Callable[[], int]", async_method), returns_awaitable):
            assert await thread.call(function) == threading.get_ident()
        thread.close()

    asyncio.run(run())
    assert {ident for ident, _ in seen} != {threading.get_ident()}
    assert [variable for _, variable in seen] == ["of the caller", "of the caller"]
    assert len({ident for ident, _ in seen}) == 1


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
def test_an_exception_reaches_the_caller_and_the_thread_continues(error: type[BaseException]) -> None:
    def fail() -> None:
        raise error

    async def run() -> str:
        thread = EnvironmentThread("environment")
        with pytest.raises(error):
            await thread.call(fail)
        return await thread.call(lambda: "alive")

    assert asyncio.run(run()) == "alive"


def test_a_cancellation_waits_for_the_method() -> None:
    entered, gate = threading.Event(), threading.Event()
    finished: list[str] = []

    def method() -> None:
        entered.set()
        assert gate.wait(60)
        finished.append("method")

    async def run() -> None:
        task = asyncio.ensure_future(EnvironmentThread("environment").call(method))
        await asyncio.to_thread(entered.wait, 60)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=0.05)
        assert not done
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        finished.append("task")

    asyncio.run(run())
    assert finished == ["method", "task"]


def test_the_loop_runs_on_while_a_method_blocks() -> None:
    gate = threading.Event()

    async def run() -> Any:  # noqa: ANN401
        block: Callable[[], bool] = lambda: gate.wait(60)  # noqa: E731
        task = asyncio.ensure_future(EnvironmentThread("environment").call(block))
        for _ in range(3):
            await asyncio.sleep(0)
        gate.set()
        return await task

    assert asyncio.run(run()) is True
