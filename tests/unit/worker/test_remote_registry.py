"""Episodes of several workers on one server, whose places and leases the driver grants over frames."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from runner.envs.http.client import LOCAL_REGISTRY, places_on, use_registry
from runner.envs.http.environment import HttpEnvironment, select_dialect
from runner.envs.http.places import InstanceId, LocalRegistry
from runner.envs.http.server import ServerAddress
from runner.errors import EnvironmentFault
from runner.types import Action
from runner.worker.channel import DriverLink
from runner.worker.frames import (
    Release,
    Reply,
    Request,
    WorkerFrame,
    decode_driver_frame,
    decode_worker_frame,
    encode_frame,
)
from runner.worker.remote_gate import RemoteRegistry
from tests.support.slot_server import N_STEPS, run_slot_server

N_EPISODES, N_SLOTS, N_WORKERS = 64, 8, 4


class FrameLink(DriverLink):
    """A ``DriverLink`` whose driver is a ``LocalRegistry``; the frames are encoded as they are between processes."""

    def __init__(self, worker_id: str, driver: LocalRegistry) -> None:
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
            case Request(name="place"):
                reply = Reply(id=frame.id)
                self._driver.request_place(self.worker_id, frame.target, frame.instance, lambda: self.resolve(reply))
            case Request(name="lease", instance=int() | str() as instance):
                granted = self._driver.request_lease(self.worker_id, frame.target, instance)
                reply = Reply(id=frame.id, granted=granted)
                if self.hold_lease_replies:
                    self.held.append(reply)
                else:
                    self.resolve(reply)
            case Release(name="place"):
                self._driver.release_place(self.worker_id, frame.target, frame.instance)
            case Release(name="lease", instance=int() | str() as instance):
                self._driver.release_lease(self.worker_id, frame.target, instance)

    def resolve(self, reply: Reply) -> None:
        decoded = decode_driver_frame(encode_frame(reply))
        assert isinstance(decoded, Reply)
        super().resolve(decoded)


class WorkerRegistries:
    """An ``InstanceRegistry`` that stands for one process per thread."""

    def __init__(self) -> None:
        self.current = threading.local()

    @property
    def _registry(self) -> RemoteRegistry:
        registry: RemoteRegistry = self.current.registry
        return registry

    async def enter(self, server: str, places: int | None) -> int:
        return await self._registry.enter(server, places)

    async def lease(self, server: str, instance: InstanceId) -> bool:
        return await self._registry.lease(server, instance)

    def leave(self, server: str, place: int, instance: InstanceId | None = None) -> None:
        self._registry.leave(server, place, instance)

    def collect(self, server: str, place: int, instance: InstanceId) -> None:
        self._registry.collect(server, place, instance)


@pytest.fixture
def workers() -> Iterator[WorkerRegistries]:
    workers = WorkerRegistries()
    use_registry(workers)
    yield workers
    use_registry(LOCAL_REGISTRY)


async def play(address: ServerAddress, task: int) -> float:
    env = HttpEnvironment(env="maze", address=address)
    try:
        await env.reset(task_index=task)
        return sum([(await env.step(Action(text="move up")))[1] for _ in range(N_STEPS)])
    finally:
        await env.cleanup()


@pytest.mark.parametrize("places", [None, N_SLOTS], ids=["learned", "declared"])
def test_episodes_of_several_workers_never_share_an_instance(workers: WorkerRegistries, places: int | None) -> None:
    driver, rewards = LocalRegistry(), dict[int, float]()

    async def play_tasks(address: ServerAddress, number: int) -> None:
        workers.current.registry = RemoteRegistry(FrameLink(f"worker {number}", driver))
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
    driver = LocalRegistry()
    driver.declare("s", 1)
    first, second = (RemoteRegistry(FrameLink(name, driver)) for name in "ab")
    place = await first.enter("s", None)
    cancelled = asyncio.create_task(second.enter("s", None))
    later = asyncio.create_task(second.enter("s", None))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    first.leave("s", place)
    async with asyncio.timeout(60):
        assert await later == 1


async def test_a_lease_that_is_granted_after_a_cancellation_ends() -> None:
    driver = LocalRegistry()
    link = FrameLink("a", driver)
    link.hold_lease_replies = True
    request = asyncio.create_task(RemoteRegistry(link).lease("s", 1))
    while not link.held:  # noqa: ASYNC110 - the request is sent by a task that starts in this loop
        await asyncio.sleep(0)
    request.cancel()
    await asyncio.wait([request])
    assert not driver.request_lease("b", "s", 1)
    link.resolve(link.held[0])
    while not isinstance(link.sent[-1], Release):  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert driver.request_lease("b", "s", 1)


async def test_what_the_garbage_collection_finds_is_released_with_the_next_request() -> None:
    driver = LocalRegistry()
    driver.declare("s", 1)
    link = FrameLink("a", driver)
    registry = RemoteRegistry(link)
    place = await registry.enter("s", None)
    assert await registry.lease("s", "x")
    registry.collect("s", place, "x")
    assert not [frame for frame in link.sent if isinstance(frame, Release)]  # the link's lock may be held
    async with asyncio.timeout(60):
        await registry.enter("s", None)
    assert driver.request_lease("b", "s", "x")


async def test_a_refused_request_is_an_error_of_the_environment() -> None:
    class Refusing(FrameLink):
        def resolve(self, reply: Reply) -> None:
            super().resolve(Reply(id=reply.id, granted=False, error="no such batch"))

    registry = RemoteRegistry(Refusing("a", LocalRegistry()))
    with pytest.raises(EnvironmentFault, match="no such batch"):
        await registry.enter("s", None)
    with pytest.raises(EnvironmentFault, match="no such batch"):
        await registry.lease("s", 1)
