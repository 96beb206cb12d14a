"""The wait for an environment server and the queue of episodes that were put back, without a batch."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator

import pytest

from runner.batch.batch import EpisodeQueue
from runner.batch.running_episode import RunningEpisode
from runner.batch.spec import BatchSpec
from runner.batch.stopping import ServerChecked, ServerWait
from runner.envs.http.server import ServerAddress
from runner.envs.placement import Placement
from runner.store import EpisodeRecorder, EpisodeStore, open_index
from runner.store.parts import Decided
from runner.types import Outcome
from runner.util.clock import Clock
from tests.support.episodes import episode_header
from tests.support.manual_clock import ManualClock
from tests.support.running_episodes import running_episode


class ClosedPort:
    """A wait for a server at a port where nothing listens."""

    def __init__(self, clock: ManualClock) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            url = f"http://127.0.0.1:{free.getsockname()[1]}"
        self.checks: queue.SimpleQueue[ServerChecked] = queue.SimpleQueue()
        placement = Placement(transport="http", address=ServerAddress(url), wait_s=60.0)
        self.wait = ServerWait("b", "Maze", placement, Clock(monotonic=clock), self.checks.put, 0.01)
        self.problem = f"{url}: nothing listens there"

    def check(self) -> bool:
        return self.wait.is_back(self.checks.get(timeout=10))

    def left_s(self) -> float | None:
        """Seconds left after a tick; None if the batch does not wait."""
        self.wait.tick()
        if (waiting := self.wait.waiting) is None:
            return None
        assert waiting.server == self.problem
        return waiting.left_s


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def gone(clock: ManualClock) -> Iterator[ClosedPort]:
    gone = ClosedPort(clock)
    yield gone
    gone.wait.close()


def test_a_wait_counts_down_to_its_expiry(gone: ClosedPort, clock: ManualClock) -> None:
    assert (gone.wait.is_possible, gone.wait.active, gone.left_s()) == (True, False, None)
    gone.wait.begin(paused=False)
    assert (gone.wait.active, gone.left_s()) == (True, None)  # nothing is known before the first check
    assert not gone.check()
    assert [gone.wait.tick(), gone.wait.tick(), gone.left_s()] == [True, False, 60.0]
    clock.now += 59.5
    assert (gone.left_s(), gone.wait.expiry) == (1.0, None)
    clock.now += 0.5
    assert gone.wait.expiry == f"its server did not reply for 60 s ({gone.problem})"
    late = gone.checks.get(timeout=10)
    gone.wait.close()
    assert (gone.wait.active, gone.left_s()) == (False, None)
    assert not gone.wait.is_back(late)
    assert gone.left_s() is None


def test_the_time_of_a_paused_wait_does_not_run(gone: ClosedPort, clock: ManualClock) -> None:
    gone.wait.begin(paused=True)
    gone.check()
    clock.now += 1000.0
    assert gone.left_s() == 60.0
    gone.wait.set_paused(False)
    clock.now += 20.0
    gone.wait.set_paused(True)
    gone.wait.set_paused(True)
    clock.now += 1000.0
    assert (gone.left_s(), gone.wait.expiry) == (40.0, None)


@pytest.fixture
def episodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RunningEpisode]]:
    store = EpisodeStore(tmp_path_factory.mktemp("store"))
    index = open_index(store)
    headers = [episode_header(task_index=task, seed=0) for task in range(4)]
    episodes = [running_episode(header, EpisodeRecorder(header, store, index)) for header in headers]
    for task, episode in enumerate(episodes):
        episode_id = episode.header.episode_id
        episode.feed.receive(Decided(episode_id=episode_id, outcome=Outcome.ERROR, gone="late", timed_out=task == 2))
    yield episodes
    index.close()


def test_episodes_that_were_put_back_start_first_and_in_order(episodes: list[RunningEpisode]) -> None:
    waiting = EpisodeQueue(BatchSpec(env="Maze", repeat=6).plan())
    assert [waiting.pop()[0].task_index for _ in range(4)] == [0, 1, 2, 3]
    for task in (3, 0, 2):
        waiting.put_back(episodes[task])
    assert (len(waiting), len(waiting.put_back_ids)) == (5, 3)
    slow = waiting.return_all(lambda episode: episode.feed.gone is not None and not episode.feed.gone.timed_out)
    assert slow == [episodes[2]]
    assert len(waiting) == 4
    assert waiting.remove(episodes[3].header.episode_id) is episodes[3]
    assert waiting.remove(episodes[3].header.episode_id) is None
    assert waiting.pop() == (episodes[0].planned, episodes[0])
    assert [(planned.task_index, earlier) for planned, earlier in (waiting.pop(), waiting.pop())] == [
        (4, None),
        (5, None),
    ]
    assert not waiting and not waiting.can_start


def test_a_cleared_queue_returns_the_episodes_that_were_put_back(episodes: list[RunningEpisode]) -> None:
    waiting = EpisodeQueue(BatchSpec(env="Maze", repeat=6).plan())
    waiting.pop()
    waiting.put_back(episodes[0])
    assert waiting.clear() == [episodes[0]]
    assert (len(waiting), waiting.put_back_ids, waiting.can_start) == (0, set(), False)
