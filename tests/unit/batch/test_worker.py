import asyncio
import queue
import threading

from runner.batch.worker import EpisodeWorker


def test_work_runs_on_the_slots_own_thread_and_loop_again_and_again() -> None:
    reports: queue.Queue[BaseException | None] = queue.Queue()
    threads: list[str] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def work() -> None:
        threads.append(threading.current_thread().name)
        loops.append(asyncio.get_running_loop())

    worker = EpisodeWorker("slot 7")
    for _ in range(2):
        worker.submit(work, reports.put)
        assert reports.get(timeout=10) is None
    worker.close()
    assert threads == ["slot 7", "slot 7"]
    assert loops[0] is loops[1]


def test_what_work_raises_is_reported_and_the_slot_lives_on() -> None:
    reports: queue.Queue[BaseException | None] = queue.Queue()

    async def fail() -> None:
        raise SystemExit(4)

    async def succeed() -> None:
        pass

    worker = EpisodeWorker("slot")
    worker.submit(fail, reports.put)
    assert isinstance(reports.get(timeout=10), SystemExit)
    worker.submit(succeed, reports.put)
    assert reports.get(timeout=10) is None
    worker.close()


def test_interrupt_cancels_what_awaits() -> None:
    reports: queue.Queue[BaseException | None] = queue.Queue()
    entered = threading.Event()

    async def hang() -> None:
        entered.set()
        await asyncio.Event().wait()

    worker = EpisodeWorker("slot")
    worker.submit(hang, reports.put)
    assert entered.wait(10)
    worker.interrupt()
    assert isinstance(reports.get(timeout=10), asyncio.CancelledError)
    worker.close()


def test_whatever_ends_the_work_is_reported_and_the_slot_lives_on() -> None:
    reports: queue.Queue[BaseException | None] = queue.Queue()

    class Panic(BaseException):
        pass

    worker = EpisodeWorker("slot")
    for kind in (Panic, KeyboardInterrupt, GeneratorExit):

        async def fail(kind: type[BaseException] = kind) -> None:
            raise kind

        worker.submit(fail, reports.put)
        assert isinstance(reports.get(timeout=10), kind)
    worker.close()


def test_what_a_stray_task_raises_does_not_end_the_work() -> None:
    reports: queue.Queue[BaseException | None] = queue.Queue()
    ended: list[str] = []

    async def leave() -> None:
        raise SystemExit(5)

    async def work() -> None:
        stray = asyncio.ensure_future(leave())
        await asyncio.sleep(0.01)
        assert isinstance(stray.exception(), SystemExit)
        ended.append("work")

    worker = EpisodeWorker("slot")
    worker.submit(work, reports.put)
    assert isinstance(reports.get(timeout=10), SystemExit)
    assert ended == ["work"]
    worker.close()
