"""Episodes of a process that is killed, recovered from its journal."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runner.store import EpisodeStore, open_index
from runner.types import Outcome
from tests.support.episodes import newest_rows

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]

PLAYER = """
import sys
from pathlib import Path
from runner.store import EpisodeStore, open_index
from tests.support.episodes import RecordedEpisode, make_step

store = EpisodeStore(Path(sys.argv[1]))
index = open_index(store)
while True:
    recording = RecordedEpisode(store, index)
    recording.start()
    with recording.spans.tracer.span("episode", "episode"):
        for number in range(4):
            with recording.spans.tracer.span("timestep", "timestep"):
                step = make_step(number, observation=[{"role": "user", "content": "x" * 20_000}])
            recording.play(step)
            print(recording.header.episode_id, "step", flush=True)
            if sys.argv[2] == "wait" and not sys.stdin.readline():
                sys.exit()
    recording.end()
    print(recording.header.episode_id, "end", flush=True)
"""


@contextmanager
def run_player(data_dir: Path, pace: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process that plays episodes; at the pace ``wait`` it plays one step per line on its standard input."""
    command = [sys.executable, "-c", PLAYER, str(data_dir), pace]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    ) as player:
        try:
            yield player
        finally:
            player.kill()


@pytest.mark.parametrize("n_reports", [1, 4, 5, 17])
def test_a_kill_loses_no_finished_step(n_reports: int, tmp_path: Path) -> None:
    with run_player(tmp_path, "fast") as player:
        assert player.stdout is not None
        reports = [player.stdout.readline() for _ in range(n_reports)]
        player.kill()
        reports += player.stdout.readlines()
    pairs = [line.split() for line in reports if line.endswith("\n")]
    n_steps = Counter(episode_id for episode_id, what in pairs if what == "step")
    ended = {episode_id for episode_id, what in pairs if what == "end"}

    store = EpisodeStore(tmp_path)
    recovered = store.recover()
    assert store.damaged == []
    assert len(recovered) <= 1
    assert ended.isdisjoint(record.episode_id for record in recovered)
    for episode_id, n in n_steps.items():
        record = store.load(episode_id)
        interrupted = any(record.episode_id == other.episode_id for other in recovered)
        assert record.outcome is (Outcome.INTERRUPTED if interrupted else Outcome.SUCCESS)
        assert [step.index for step in record.timesteps] == list(range(record.rounds))
        assert n <= record.rounds <= 4
        names = [span.name for span in record.spans]
        assert names == ["timestep"] * record.rounds + ["episode"]
        assert all(span.end_ns >= span.start_ns > 0 for span in record.spans)
    assert not list(tmp_path.rglob("*.journal.jsonl"))
    index = open_index(store)
    assert {row.episode_id for row in newest_rows(index)} >= n_steps.keys()
    assert index.damaged == []
    index.close()


def test_the_journal_of_a_running_process_is_not_recovered(tmp_path: Path) -> None:
    with run_player(tmp_path, "wait") as player:
        assert player.stdin is not None
        assert player.stdout is not None
        episode_id = player.stdout.readline().split()[0]
        store = EpisodeStore(tmp_path)
        assert store.recover() == []
        for _ in range(4):
            print(file=player.stdin, flush=True)
            report = player.stdout.readline().split()
        assert report == [episode_id, "end"]
        assert store.load(episode_id).rounds == 4
        # The next episode waits in its first step; its journal belongs to the process until that dies.
        second_id = player.stdout.readline().split()[0]
        assert store.recover() == []
        player.kill()
        player.wait()
        assert [(record.episode_id, record.rounds) for record in store.recover()] == [(second_id, 1)]
