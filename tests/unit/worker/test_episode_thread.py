"""The thread of an episode worker."""

import asyncio
import queue
import threading
from typing import TypeAlias

import pytest

from runner.worker.worker_episodes import EpisodeThread

Reports: TypeAlias = "queue.Queue[BaseException | None]"


@pytest.fixture
def reports() -> Reports:
    return queue.Queue()


def test_all_work_runs_on_the_same_thread_and_loop(reports: Reports) -> None:
    threads: list[int] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def work() -> None:
        threads.append(threading.get_ident())
        loops.append(asyncio.get_running_loop())

    worker = EpisodeThread()
    for _ in range(2):
        worker.submit(work, reports.put)
        assert reports.get(timeout=10) is None
    worker.close()
    assert threads[0] == threads[1] != threading.get_ident()
    assert loops[0] is loops[1]


def test_an_exception_is_reported_and_the_worker_continues(reports: Reports) -> None:

    async def fail() -> None:
        raise SystemExit(4)

    async def succeed() -> None:
        pass

    worker = EpisodeThread()
    worker.submit(fail, reports.put)
    assert isinstance(reports.get(timeout=10), SystemExit)
    worker.submit(succeed, reports.put)
    assert reports.get(timeout=10) is None
    worker.close()


def test_interrupt_cancels_pending_awaits(reports: Reports) -> None:
    entered = threading.Event()

    async def hang() -> None:
        entered.set()
        await asyncio.Event().wait()

    worker = EpisodeThread()
    worker.submit(hang, reports.put)
    assert entered.wait(10)
    worker.interrupt()
    assert isinstance(reports.get(timeout=10), asyncio.CancelledError)
    worker.close()


def test_a_base_exception_is_reported_and_the_worker_continues(reports: Reports) -> None:

    class Panic(BaseException):
        pass

    worker = EpisodeThread()
    for kind in (Panic, KeyboardInterrupt, GeneratorExit):

        async def fail(kind: type[BaseException] = kind) -> None:
            raise kind

        worker.submit(fail, reports.put)
        assert isinstance(reports.get(timeout=10), kind)
    worker.close()


def test_an_exit_in_a_background_task_does_not_end_the_work(reports: Reports) -> None:
    ended: list[str] = []

    async def exit_program() -> None:
        raise SystemExit(5)

    async def work() -> None:
        stray = asyncio.ensure_future(exit_program())
        await asyncio.sleep(0.01)
        assert isinstance(stray.exception(), SystemExit)
        ended.append("work")

    worker = EpisodeThread()
    worker.submit(work, reports.put)
    assert isinstance(reports.get(timeout=10), SystemExit)
    assert ended == ["work"]
    worker.close()
