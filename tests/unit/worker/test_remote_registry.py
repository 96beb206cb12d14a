"""Episodes of several workers on one server, whose places and leases the driver grants over frames."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Iterator
from functools import partial

import pytest

from runner.envs.http.client import PLACES, places_on, use_desk
from runner.envs.http.environment import HttpEnvironment, select_dialect
from runner.envs.http.places import Desk, Granted, InstanceId, InstanceRegistry, PlaceTable
from runner.envs.http.server import ServerAddress
from runner.errors import EnvironmentFault
from runner.types import Action
from runner.worker.driver_link import DriverLink
from runner.worker.frames import (
    Release,
    Reply,
    Request,
    WorkerFrame,
    decode_driver_frame,
    decode_worker_frame,
    encode_frame,
)
from tests.support.slot_server import N_STEPS, run_slot_server

N_EPISODES, N_SLOTS, N_WORKERS = 32, 8, 4


class FrameLink(DriverLink):
    """A ``DriverLink`` whose driver is a ``PlaceTable``; the frames are encoded as they are between processes."""

    def __init__(self, worker_id: str, driver: PlaceTable) -> None:
        super().__init__()
        self.worker_id = worker_id
        self.sent: list[WorkerFrame] = []
        self.hold_lease_replies = False
        self.held: list[Reply] = []
        self._driver = driver

    def send(self, frame: WorkerFrame) -> None:
        frame = decode_worker_frame(encode_frame(frame))
        self.sent.append(frame)
        match frame:
            case Request(name="place" | "lease" as name):
                self._driver.request(name, frame.target, frame.instance, partial(self._reply, frame), self.worker_id)
            case Release(name="place" | "lease" as name):
                self._driver.release(name, frame.target, frame.instance, self.worker_id)

    def _reply(self, request: Request, granted: bool) -> None:
        reply = Reply(id=request.id, granted=granted)
        if self.hold_lease_replies and request.name == "lease":
            self.held.append(reply)
        else:
            self.resolve(reply)

    def resolve(self, reply: Reply) -> None:
        decoded = decode_driver_frame(encode_frame(reply))
        assert isinstance(decoded, Reply)
        super().resolve(decoded)


class WorkerDesks:
    """A ``Desk`` that stands for one process per thread."""

    def __init__(self) -> None:
        self.current = threading.local()

    @property
    def _desk(self) -> Desk:
        desk: Desk = self.current.desk
        return desk

    async def grant(self, name: Granted, server: str, instance: InstanceId) -> bool:
        return await self._desk.grant(name, server, instance)

    def release(self, name: Granted, server: str, instance: InstanceId) -> None:
        self._desk.release(name, server, instance)


@pytest.fixture
def workers() -> Iterator[WorkerDesks]:
    workers = WorkerDesks()
    use_desk(workers)
    yield workers
    use_desk(PLACES)


def lease(driver: PlaceTable, owner: str, instance: int | str) -> bool:
    replies: list[bool] = []
    driver.request("lease", "s", instance, replies.append, owner)
    return replies == [True]


async def play(address: ServerAddress, task: int) -> float:
    env = HttpEnvironment(env="maze", address=address)
    try:
        await env.reset(task_index=task)
        return sum([(await env.step(Action(text="move up")))[1] for _ in range(N_STEPS)])
    finally:
        await env.cleanup()


@pytest.mark.parametrize("places", [None, N_SLOTS], ids=["learned", "declared"])
def test_episodes_of_several_workers_never_share_an_instance(workers: WorkerDesks, places: int | None) -> None:
    driver, rewards = PlaceTable(), dict[int, float]()

    async def play_tasks(address: ServerAddress, number: int) -> None:
        workers.current.desk = FrameLink(f"worker {number}", driver)
        tasks = range(number, N_EPISODES, N_WORKERS)
        rewards.update(zip(tasks, await asyncio.gather(*(play(address, task) for task in tasks)), strict=True))

    with run_slot_server(N_SLOTS) as (server, _):
        address = ServerAddress(server.url, 60, n_tasks=N_EPISODES, places=places)
        driver.declare(*places_on(select_dialect("maze", address), address))
        threads = [
            threading.Thread(target=asyncio.run, args=(play_tasks(address, number),)) for number in range(N_WORKERS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert rewards == {task: float(task) for task in range(N_EPISODES)}


async def test_a_cancelled_wait_takes_no_place() -> None:
    driver = PlaceTable()
    driver.declare("s", 1)
    first, second = (InstanceRegistry(FrameLink(name, driver)) for name in "ab")
    place = await first.enter("s")
    cancelled = asyncio.create_task(second.enter("s"))
    later = asyncio.create_task(second.enter("s"))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    first.leave("s", place)
    async with asyncio.timeout(60):
        assert await later == 1


async def test_a_lease_that_is_granted_after_a_cancellation_ends() -> None:
    driver = PlaceTable()
    link = FrameLink("a", driver)
    link.hold_lease_replies = True
    request = asyncio.create_task(InstanceRegistry(link).lease("s", 1))
    while not link.held:  # noqa: ASYNC110 - the request is sent by a task that starts in this loop
        await asyncio.sleep(0)
    request.cancel()
    await asyncio.wait([request])
    assert not lease(driver, "b", 1)
    link.resolve(link.held[0])
    while not isinstance(link.sent[-1], Release):  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert lease(driver, "b", 1)


async def test_what_a_finalizer_leaves_is_released_at_once() -> None:
    driver = PlaceTable()
    driver.declare("s", 1)
    registry = InstanceRegistry(FrameLink("a", driver))
    place = await registry.enter("s")
    assert await registry.lease("s", "x")
    other = asyncio.create_task(InstanceRegistry(FrameLink("b", driver)).enter("s"))
    held = Held()
    weakref.finalize(held, registry.leave, "s", place, "x")
    del held
    async with asyncio.timeout(60):
        await other
    assert lease(driver, "b", "x")


class Held:
    """Something whose end gives back an instance."""


async def test_a_refused_request_is_an_error_of_the_environment() -> None:
    class Refusing(FrameLink):
        def resolve(self, reply: Reply) -> None:
            super().resolve(Reply(id=reply.id, granted=False, error="no such batch"))

    registry = InstanceRegistry(Refusing("a", PlaceTable()))
    with pytest.raises(EnvironmentFault, match="no such batch"):
        await registry.enter("s")
    with pytest.raises(EnvironmentFault, match="no such batch"):
        await registry.lease("s", 1)
