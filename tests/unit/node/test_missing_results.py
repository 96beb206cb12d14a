"""Results of ended batches that are published from the episode files."""

from __future__ import annotations

from typing import Any

import pytest

from runner.batch.result import BatchResult
from runner.batch.spec import BatchSpec
from runner.batch.workspace import Workspace
from runner.node.batch_player import BatchCallbacks, BatchPlayer
from runner.node.batch_queue import BatchQueue, QueuedBatch, Status
from runner.types import Outcome
from tests.support.batches import place_spec
from tests.support.episodes import RecordedEpisode, new_id


def ignore(_: object) -> None: ...


def published(workspace: Workspace, batch_id: str, status: Status) -> BatchResult:
    """Return the result of an ended batch of 2 tasks whose event is missing."""
    results: list[BatchResult] = []
    queue = BatchQueue(workspace.data_dir)
    spec = BatchSpec(env="Maze", agent="oracle", repeat=2)
    queue.add(QueuedBatch(batch_id=batch_id, battery_id=None, spec=spec, status=status))
    callbacks = BatchCallbacks(on_item=ignore, on_result=results.append, on_busy=ignore)
    BatchPlayer(workspace, queue, callbacks, place=place_spec).publish_missing_results(set())
    (result,) = results
    return result


def record(workspace: Workspace, batch_id: str, task_index: int, **end: Any) -> None:  # noqa: ANN401
    recording = RecordedEpisode(
        workspace.store, workspace.index, batch_id=batch_id, task_index=task_index, attempt=0, episode_id=new_id()
    )
    recording.record_episode(**end)


@pytest.mark.parametrize("first", [Outcome.INTERRUPTED, Outcome.CANCELLED])
def test_a_resumed_batch_has_one_episode_for_each_task(workspace: Workspace, first: Outcome) -> None:
    batch_id = new_id()
    record(workspace, batch_id, 0, outcome=first, success=False)
    record(workspace, batch_id, 0)
    record(workspace, batch_id, 1)
    result = published(workspace, batch_id, "completed")
    assert (result.n_episodes, result.n_planned, result.n_rated, result.success_rate) == (2, 2, 2, 1.0)


def test_a_cancelled_batch_has_the_episodes_that_it_started(workspace: Workspace) -> None:
    batch_id = new_id()
    record(workspace, batch_id, 0, outcome=Outcome.INTERRUPTED, success=False)
    record(workspace, batch_id, 0, outcome=Outcome.CANCELLED, success=False)
    result = published(workspace, batch_id, "cancelled")
    assert (result.status, result.n_episodes, result.n_rated, result.success_rate) == ("cancelled", 1, 0, None)
