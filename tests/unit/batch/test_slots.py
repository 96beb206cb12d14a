"""The concurrency that fits the limit of open files, and the numbers of worker processes of a batch."""

from __future__ import annotations

import math
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.batch import spec as batch_spec
from runner.batch.result import BatchStats
from runner.batch.spec import (
    CHANNEL_FILES,
    MAX_STORING,
    NODE_FILES,
    RUN_FILES,
    STORED_FILES,
    WORKER_FILES,
    BatchSpec,
    fit_concurrency,
    slot_files,
)
from runner.envs.placement import Placement
from runner.errors import ConfigError
from runner.pool.worker import MAX_THREADS
from runner.types import WorkerCounts, Workers, WorkerState, WorkerStatus
from tests.support.batches import resolved_batch
from tests.support.episodes import END


def spec(
    concurrency: int, *, repeat: int = 256, env: str = "Maze", model: str | None = None, workers: Workers = 0
) -> BatchSpec:
    return BatchSpec(env=env, agent="oracle", repeat=repeat, concurrency=concurrency, model=model, workers=workers)


@given(limit=st.integers(64, 30_000), concurrency=st.integers(1, 256), repeat=st.integers(1, 300), model=st.booleans())
def test_all_episodes_fit_and_no_more_is_lowered_than_necessary(
    limit: int, concurrency: int, repeat: int, model: bool
) -> None:
    requested = spec(concurrency, repeat=repeat, model="m" if model else None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_spec, "open_file_limit", lambda: limit)
        fitting, note = fit_concurrency(requested, RUN_FILES)
    needed = RUN_FILES + slot_files(requested) * min(fitting.concurrency, repeat)
    assert needed <= limit
    assert (note is None) == (fitting == requested)
    if note is not None:
        assert fitting.concurrency < concurrency
        assert needed + slot_files(requested) > limit


def test_the_note_has_all_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_spec, "open_file_limit", lambda: 256)
    _, note = fit_concurrency(spec(256), RUN_FILES)
    assert note == (
        "concurrency lowered from 256 to 37: the limit of open files is 256, the process needs 32 and each episode 6; "
        "raise it with ulimit -n"
    )
    _, note = fit_concurrency(spec(256, workers=2), RUN_FILES)
    assert note == (
        "concurrency lowered from 256 to 96: the limit of open files is 256, a worker process needs 16 and each "
        "episode 5; raise it with ulimit -n"
    )
    for env, agent, n_files in (("SQLGym", "oracle", 14), ("SciWorld", "random", 6)):
        batch = resolved_batch(Placement(transport="http"), env=env, agent=agent)
        assert slot_files(batch.spec, batch.env_files) == n_files


@given(limit=st.integers(73, 3000), workers=st.integers(1, 8), model=st.booleans())
def test_all_episodes_fit_the_processes_that_hold_their_files(limit: int, workers: int, model: bool) -> None:
    requested = spec(256, model="m" if model else None, workers=workers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_spec, "open_file_limit", lambda: limit)
        fitting, _ = fit_concurrency(requested, RUN_FILES)

    def fits(concurrency: int) -> bool:
        in_driver = RUN_FILES + MAX_STORING + MAX_THREADS + workers * CHANNEL_FILES
        in_worker = WORKER_FILES + math.ceil(concurrency / workers) * (slot_files(requested) - STORED_FILES)
        return max(in_driver, in_worker) <= limit

    assert fits(fitting.concurrency)
    assert fitting.concurrency == 256 or not fits(fitting.concurrency + 1)


def test_a_limit_without_room_for_one_episode_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_spec, "open_file_limit", lambda: NODE_FILES + 5)
    with pytest.raises(ConfigError, match="No episode of Maze fits the limit of 69 open files"):
        fit_concurrency(spec(1), NODE_FILES)


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
