"""Running episodes without a batch, on a slot that does nothing."""

from __future__ import annotations

import os
from pathlib import Path

from runner.batch.episode_feed import EpisodeFeed, Publish
from runner.batch.running_episode import RunningEpisode
from runner.episode.control import EpisodeControl
from runner.pool.protocol import EpisodeReceiver
from runner.store import EpisodeRecorder
from runner.tracing import PerfettoFile
from runner.types import EpisodeHeader, WorkerInfo
from runner.util.clock import Clock


class IdleSlot:
    """A slot that plays nothing."""

    name = "slot 0"
    info = WorkerInfo(host="h", id="slot 0", kind="local")
    usable = True

    def play(self, header: EpisodeHeader, receiver: EpisodeReceiver, *, paused: bool) -> EpisodeControl:
        return EpisodeControl()

    def stop_task(self) -> None:
        pass

    def abandon(self) -> None:
        pass

    def close(self) -> None:
        pass


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
        now=clock.monotonic,
    )
    return RunningEpisode(slot=IdleSlot(), header=header, feed=feed, clock=clock, deadline_s=1.0, grace_s=1.0)
