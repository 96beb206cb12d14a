"""Wall clocks that jump: no duration is negative."""

from __future__ import annotations

import itertools
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from runner.batch.batch import Batch
from runner.batch.observers import BatchItem
from runner.batch.workspace import Workspace
from runner.store import EpisodeRecord, EpisodeStore, open_index
from runner.types import Outcome
from runner.util.clock import Clock
from tests.support.batches import resolved_batch
from tests.support.episodes import RecordedEpisode

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
HOUR = timedelta(hours=1)


def jumping_clock() -> Clock:
    """Return a clock that goes back an hour with each reading."""
    jumps = itertools.count()
    return Clock(now=lambda: datetime.now(UTC) - next(jumps) * HOUR)


def test_no_duration_is_negative_when_the_clock_jumps(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, node="n", profile="p", clock=jumping_clock())
    items: list[BatchItem] = []
    records: list[EpisodeRecord] = []
    spec = resolved_batch(env="BabyAI", agent="oracle", repeat=3)
    batch = Batch(spec, workspace, observers=[items.append], on_record=records.append)
    batch.command("step")  # paused, and played step by step
    for _ in range(3):
        batch.command("step")
    batch.command("resume")
    result = batch.run()
    workspace.close()
    assert (result.status, len(records)) == ("completed", 3)
    assert min((record.ended_at - record.started_at).total_seconds() for record in records) < -3000, (
        "the clock did not jump"
    )
    assert result.duration_s >= 0
    for record in records:
        assert record.duration_s >= 0
        assert record.paused_s >= 0
        assert all(step.model_s >= 0 and step.env_s >= 0 for step in record.timesteps)
        assert all(span.end_ns >= span.start_ns for span in record.spans)
    etas = [item.eta_s for item in items if hasattr(item, "eta_s") and item.eta_s is not None]
    assert etas
    assert min(etas) >= 0


KILLED = """
import os, sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from runner.store import EpisodeStore, open_index
from tests.support.episodes import RecordedEpisode, make_step

store = EpisodeStore(Path(sys.argv[1]))
ahead = timedelta(hours=float(sys.argv[2]))
recording = RecordedEpisode(store, open_index(store), started_at=datetime.now(UTC) + ahead)
recording.start()
recording.play(make_step(0))
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("clock_jump_h", [1, -1])
def test_a_clock_jump_does_not_change_the_duration_of_a_recovered_episode(tmp_path: Path, clock_jump_h: int) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path), str(clock_jump_h)]
    assert subprocess.run(command, cwd=ROOT, timeout=60, check=False).returncode == -9
    (record,) = EpisodeStore(tmp_path).recover()
    assert (record.started_at > datetime.now(UTC)) == (clock_jump_h > 0)
    assert record.ended_at >= record.started_at
    assert 0 < record.timesteps[0].model_s <= record.duration_s < 60
    assert record.paused_s >= 0


def test_a_clock_jump_does_not_change_the_duration_of_an_abandoned_episode(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path)
    recording = RecordedEpisode(store, open_index(store), started_at=datetime.now(UTC) - HOUR)
    recording.start()
    assert 0 < recording.recorder.abandon(Outcome.TIMEOUT).duration_s < 60
