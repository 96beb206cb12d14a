"""Wall clocks that are wrong or jump: the order of events stays, and no duration is negative."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from runner.batch.batch import Batch
from runner.batch.spec import BatchSpec
from runner.batch.state_dir import Workspace
from runner.events.decoded import DurableRow
from runner.events.durable import EpisodeCompleted
from runner.events.subjects import EPISODE_COMPLETED, DurableNames
from runner.publish.event_recorder import EventRecorder
from runner.store import EpisodeRecord, EpisodeStore, open_index
from runner.types import Item, Outcome
from runner.util.clock import Clock
from tests.support.episodes import RecordedEpisode
from tests.support.nats_server import NatsServer
from tests.support.publishing import run_publisher, sink_to
from tests.support.subscriptions import subscribe_to

ROOT = Path(__file__).parents[2]
HOUR = timedelta(hours=1)


def _shifted(by: timedelta) -> Clock:
    return Clock(now=lambda: datetime.now(UTC) + by)


def _jumping() -> Clock:
    """Jumps an hour back, and an hour ahead again, at every second look."""
    jumps = itertools.cycle((timedelta(), -HOUR))
    return Clock(now=lambda: datetime.now(UTC) + next(jumps))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path / "nats") as server:
        yield server


async def test_runners_whose_clocks_differ_are_shown_in_the_order_of_their_events(
    tmp_path: Path, server: NatsServer
) -> None:
    played: list[str] = []
    for number, by in enumerate((timedelta(), HOUR, -HOUR, timedelta())):
        played.append(await _play_and_publish(tmp_path / str(number), server, _shifted(by)))
    async with subscribe_to(server, patterns=[EPISODE_COMPLETED]) as watcher:
        await watcher.wait_for_messages(4)
        assert [message.headers["ce-id"] for message in watcher.messages] == [f"episode:{id_}" for id_ in played]
        assert [round((message.ahead_s or 0) / 3600) for message in watcher.messages] == [0, 1, -1, 0]
        assert all(_completed(message.decoded).duration_s >= 0 for message in watcher.messages)


async def _play_and_publish(folder: Path, server: NatsServer, clock: Clock) -> str:
    """What a foreground run does; returns the id of its one episode."""
    workspace = Workspace(folder, node="n", profile="p", clock=clock)
    recorder = EventRecorder(workspace, DurableNames(), role="run")
    batch = Batch(BatchSpec(env="Maze", agent="oracle").validated(), workspace, on_record=recorder.record_episode)
    (episode,) = batch.run().episodes
    recorder.flush()
    async with run_publisher(recorder.outbox, sink_to(server, "local")) as running:
        await running.wait_until_drained()
    recorder.close()
    workspace.close()
    return episode.episode_id


def _completed(row: object) -> EpisodeCompleted:
    assert isinstance(row, DurableRow)
    assert isinstance(row.event, EpisodeCompleted)
    return row.event


def test_a_clock_that_jumps_makes_no_duration_negative(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, node="n", profile="p", clock=_jumping())
    seen: list[Item] = []
    records: list[EpisodeRecord] = []
    spec = BatchSpec(env="BabyAI", agent="oracle", repeat=3).validated()
    batch = Batch(spec, workspace, observers=[seen.append], on_record=records.append)
    batch.command("step")  # paused, and played step by step
    for _ in range(3):
        batch.command("step")
    batch.command("resume")
    result = batch.run()
    workspace.close()
    assert (result.status, len(records)) == ("completed", 3)
    assert min((record.ended_at - record.started_at).total_seconds() for record in records) < -3000, "it never jumped"
    assert result.duration_s >= 0
    for record in records:
        assert record.duration_s >= 0
        assert record.paused_s >= 0
        assert all(step.model_s >= 0 and step.env_s >= 0 for step in record.timesteps)
        assert all(span.end_ns >= span.start_ns for span in record.spans)
    etas = [item.eta_s for item in seen if hasattr(item, "eta_s") and item.eta_s is not None]
    assert etas
    assert min(etas) >= 0


KILLED = """
import os, sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from runner.store import EpisodeStore, open_index
from tests.support.episodes import Recording, step

store = EpisodeStore(Path(sys.argv[1]))
ahead = timedelta(hours=float(sys.argv[2]))
recording = Recording(store, open_index(store), started_at=datetime.now(UTC) + ahead)
recording.start()
recording.play(step(0))
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("ahead_h", [1, -1])
def test_a_clock_that_jumped_while_an_episode_was_played_changes_nothing_of_how_long_it_took(
    tmp_path: Path, ahead_h: int
) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path), str(ahead_h)]
    assert subprocess.run(command, cwd=ROOT, timeout=60, check=False).returncode == -9
    (record,) = EpisodeStore(tmp_path).recover()
    assert (record.started_at > datetime.now(UTC)) == (ahead_h > 0)
    assert record.ended_at >= record.started_at
    assert 0 < record.timesteps[0].model_s <= record.duration_s < 60
    assert record.paused_s >= 0


def test_an_episode_that_was_given_up_took_as_long_as_it_did(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path)
    recording = RecordedEpisode(store, open_index(store), started_at=datetime.now(UTC) - HOUR)
    recording.start()
    assert 0 < recording.recorder.abandon(Outcome.TIMEOUT).duration_s < 60
