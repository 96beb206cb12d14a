from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from ulid import ULID

from runner.store.parts import Ended, Free, Started, Step
from runner.types import EpisodeHeader, Limits, Outcome
from runner.util.framing import FrameBuffer
from runner.worker.frames import (
    Command,
    Configure,
    DriverFrame,
    Hello,
    Play,
    WorkerFrame,
    decode_worker_frame,
    encode_frame,
)
from runner.worker.runner_setup import RunnerSetup
from tests.ray.conftest import ClusterOfTwo
from tests.support.batches import make_setup

LIMIT_S = 60


class Worker:
    """An actor as a batch uses it."""

    def __init__(self, setup: RunnerSetup) -> None:
        import ray

        from runner.worker.remote_runner import RemoteRunner

        self.ray = ray
        self.actor: Any = RemoteRunner.remote()
        self.hello = decode_worker_frame(ray.get(self.actor.hello.remote(), timeout=LIMIT_S))
        configure = encode_frame(Configure(setup=setup))
        ray.get(self.actor.configure.remote(configure, {}), timeout=LIMIT_S)

    def play(self, task: int = 0) -> tuple[str, Iterator[WorkerFrame]]:
        header = EpisodeHeader(
            episode_id=str(ULID()), batch_id="b", env="Maze", task_index=task, seed=task, started_at=datetime.now(UTC)
        )
        items = self.actor.episode_frames.remote(encode_frame(Play(header=header, track="slot 0")))
        return header.episode_id, self.frames(items)

    def frames(self, items: Iterable[object]) -> Iterator[WorkerFrame]:
        for item in items:
            yield from map(decode_worker_frame, FrameBuffer().feed(self.ray.get(item, timeout=LIMIT_S)))

    def handle(self, frame: DriverFrame) -> None:
        self.ray.get(self.actor.handle.remote(encode_frame(frame)), timeout=LIMIT_S)


def test_an_actor_streams_the_frames_of_each_episode(cluster: ClusterOfTwo) -> None:
    worker = Worker(make_setup("Maze", "random", limits=Limits(max_rounds=5)))
    assert isinstance(worker.hello, Hello) and worker.hello.worker_id == worker.actor._actor_id.hex()
    for task in range(3):
        episode_id, frames = worker.play(task)
        received = list(frames)
        assert {frame.episode_id for frame in received if not isinstance(frame, Hello)} == {episode_id}  # type: ignore[union-attr]
        assert isinstance(received[0], Started) and isinstance(received[-1], Free)
        assert sum(isinstance(frame, Step) for frame in received) == 5
        (ended,) = (frame for frame in received if isinstance(frame, Ended))
        assert ended.outcome is Outcome.TRUNCATED


def test_commands_reach_an_episode_that_blocks_its_thread(cluster: ClusterOfTwo) -> None:
    worker = Worker(make_setup("Gated", "UpAgent"))
    episode_id, frames = worker.play()
    assert isinstance(next(frames), Started)
    worker.handle(Command(episode_id=episode_id, name="cancel", outcome=Outcome.INTERRUPTED))
    assert isinstance(decode_worker_frame(worker.ray.get(worker.actor.hello.remote(), timeout=LIMIT_S)), Hello)
    worker.ray.kill(worker.actor)
    with pytest.raises(worker.ray.exceptions.RayActorError):
        list(frames)
