"""The numbers of worker processes in the progress and the result of a batch."""

from __future__ import annotations

from typing import get_args

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from runner.batch.result import BatchStats
from runner.batch.spec import BatchSpec
from runner.types import WorkerCounts, WorkerState, WorkerStatus
from tests.support.episodes import END

CHANGES = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(get_args(WorkerStatus))), max_size=20)


@given(CHANGES)
def test_each_worker_counts_once_with_its_last_state(changes: list[tuple[str, WorkerStatus]]) -> None:
    stats, before = BatchStats(), None
    states: dict[str, WorkerStatus] = {}
    n_lost = 0
    for seq, (id_, state) in enumerate(changes):
        n_lost += state == "lost" and id_ in states
        states[id_] = state
        if state == "lost":
            del states[id_]
        change = WorkerState(at=END, batch_id="b", seq=seq, id=id_, host="h", pid=None, state=state)
        assert stats.add_worker(change) == (stats.workers != before)
        before = stats.workers
    n_starting = list(states.values()).count("starting")
    expected = WorkerCounts(n=len(states) - n_starting, starting=n_starting, lost=n_lost)
    assert stats.workers == (expected if states or n_lost else None)
    progress = stats.progress("b", 4, at=END, seq=0)
    spec = BatchSpec(env="Maze", agent="oracle")
    result = stats.result(spec, batch_id="b", battery_id=None, status="completed", data_label="", duration_s=1.0)
    assert progress.workers == result.workers == stats.workers
    assert msgspec.json.decode(msgspec.json.encode(result))["workers"] == msgspec.to_builtins(stats.workers)
