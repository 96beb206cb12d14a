"""What workers request from their driver: places, leases and endpoints, and what a lost worker held."""

from __future__ import annotations

import queue
from collections.abc import Hashable
from unittest.mock import Mock

import pytest

from runner.config.profile import EndpointConfig
from runner.envs.http.places import PlaceTable
from runner.inference.profile_models import Models
from runner.pool.services import BatchServices
from runner.pool.worker import EpisodeReceiver, Worker, WorkerLost
from runner.types.phases import ServerTimes
from runner.worker.frames import (
    DriverFrame,
    EndpointOutcome,
    EndpointTimes,
    GatewayLink,
    Hello,
    Release,
    Reply,
    Request,
)
from tests.support.episodes import START, episode_header
from tests.support.inference import agent_settings

SERVER = "http://localhost:1"


class ConnectedWorker(Worker):
    """A worker that has greeted; ``sent`` has the driver's frames."""

    def __init__(self, name: str, services: BatchServices) -> None:
        self.sent: queue.SimpleQueue[DriverFrame] = queue.SimpleQueue()
        super().__init__(name, self.sent.put, services)
        self.receive(Hello(worker_id=name, host="h", pid=1, monotonic_ns=0, wall=START))

    def drain(self) -> list[DriverFrame]:
        frames = []
        while not self.sent.empty():
            frames.append(self.sent.get())
        return frames


def workers_of(services: BatchServices, n_workers: int = 2) -> list[ConnectedWorker]:
    return [ConnectedWorker(f"worker {number}", services) for number in range(n_workers)]


def test_a_lost_worker_gives_back_its_places_and_leases() -> None:
    registry = PlaceTable()
    registry.declare(SERVER, 1)
    first, second = workers_of(BatchServices(registry, None))
    first.receive(Request(id=1, name="place", target=SERVER, instance=0))
    first.receive(Request(id=2, name="lease", target=SERVER, instance="i 7"))
    assert first.drain() == [Reply(id=1), Reply(id=2)]
    second.receive(Request(id=1, name="lease", target=SERVER, instance="i 7"))
    second.receive(Request(id=2, name="place", target=SERVER, instance=0))
    assert second.drain() == [Reply(id=1, granted=False)]
    first.lose("it ended")
    assert second.drain() == [Reply(id=2)]
    second.receive(Request(id=3, name="lease", target=SERVER, instance="i 7"))
    assert second.drain() == [Reply(id=3)]


def test_released_places_and_leases_go_to_the_others() -> None:
    registry = PlaceTable()
    registry.declare(SERVER, 1)
    first, second = workers_of(BatchServices(registry, None))
    for worker in (first, second):
        worker.receive(Request(id=1, name="place", target=SERVER, instance=5))
    first.receive(Request(id=2, name="lease", target=SERVER, instance=3))
    first.receive(Release(name="lease", target=SERVER, instance=3))
    first.receive(Release(name="place", target=SERVER, instance=5))
    assert second.drain() == [Reply(id=1)]
    second.receive(Request(id=2, name="lease", target=SERVER, instance=3))
    assert second.drain() == [Reply(id=2)]


@pytest.fixture
def models() -> Models:
    return Models(agent_settings(EndpointConfig(name="a", url="http://localhost:1", model="m")), {})


def test_a_batch_without_models_refuses_requests_to_endpoints() -> None:
    (worker,) = workers_of(BatchServices(PlaceTable(), None), 1)
    worker.receive(Request(id=4, name="enter", target="a", instance=1))
    worker.receive(EndpointOutcome(endpoint="a", failure="server"))
    worker.receive(GatewayLink(episode_id="e", endpoint="a", gateway_id="g"))
    assert worker.drain() == [Reply(id=4, granted=False, error="the batch has no models")]


def test_all_workers_learn_the_times_of_a_server_until_they_end(models: Models) -> None:
    services, times = BatchServices(PlaceTable(), models), ServerTimes(queue_s=3.0, prefill_s=0.5)
    (first,) = workers_of(services, 1)
    models.gate.server_times.set("a", times)
    models.gate.server_times.set("a", times)
    late = ConnectedWorker("late", services)
    expected = [EndpointTimes(endpoint="a", times=times)]
    assert first.drain() == late.drain() == expected
    late.lose("it ended")
    models.gate.server_times.set("a", None)
    assert (first.drain(), late.drain()) == ([EndpointTimes(endpoint="a")], [])


def test_the_driver_refuses_requests_to_an_endpoint_that_fails_for_a_worker(models: Models) -> None:
    first, second = workers_of(BatchServices(PlaceTable(), models))
    for _ in range(3):
        first.receive(EndpointOutcome(endpoint="a", failure="server", cause="status 500"))
    second.receive(Request(id=1, name="enter", target="a", instance=1))
    assert second.drain() == [Reply(id=1, granted=False)]
    assert models.gate.cause("a") == "status 500"


def test_the_episodes_of_a_lost_worker_end_even_if_nothing_can_be_released() -> None:
    class Full(PlaceTable):
        def release_owner(self, owner: Hashable) -> None:
            raise RuntimeError("can't start new thread")

    (worker,) = workers_of(BatchServices(Full(), None), 1)
    receiver = Mock(spec=EpisodeReceiver)
    worker.play(episode_header(), "slot 0", receiver, paused=False)
    worker.lose("it ended")
    ((problem,),) = (call.args for call in receiver.on_done.call_args_list)
    assert isinstance(problem, WorkerLost)
