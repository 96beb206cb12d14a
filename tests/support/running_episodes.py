"""Running episodes without a batch, on a slot that does nothing."""

from __future__ import annotations

import os
from pathlib import Path

from runner.batch.running_episode import EpisodeFeed, Publish, RunningEpisode
from runner.pool.worker import Slot, Worker
from runner.store import EpisodeRecorder
from runner.tracing import PerfettoFile
from runner.types import EpisodeHeader, WorkerInfo
from runner.util.clock import Clock


class IdleWorker:
    usable = True

    def __init__(self) -> None:
        self.episodes = Worker("idle", lambda frame: None, None)

    def retire(self, episode_id: str) -> None:
        self.episodes.forget(episode_id)


def running_episode(
    header: EpisodeHeader, recorder: EpisodeRecorder, publish: Publish = lambda item: None
) -> RunningEpisode:
    """Return an episode with a limit of one second, whose slot reports nothing."""
    clock = Clock()
    feed = EpisodeFeed(
        header,
        recorder,
        publish=publish,
        trace_file=PerfettoFile(Path(os.devnull)),
        track="slot 0",
        on_free=lambda problem: None,
    )
    return RunningEpisode(
        slot=Slot("slot 0", WorkerInfo(host="h", id="slot 0", kind="local"), IdleWorker()),
        header=header,
        feed=feed,
        clock=clock,
        deadline_s=1.0,
        grace_s=1.0,
    )
