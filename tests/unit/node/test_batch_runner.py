"""Cancellations around the end of a batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ulid import ULID

from runner.batch.result import BatchResult
from runner.batch.spec import BatchSpec
from runner.batch.workspace import Workspace
from runner.node.batch_queue import BatchQueue, QueuedBatch
from runner.node.batch_runner import BatchCallbacks, BatchRunner


def ignore(_: object) -> None: ...


@pytest.mark.parametrize("moment", ["on_record", "on_result"])
def test_a_cancellation_is_refused_after_the_end_of_a_batch_and_kept_before(workspace: Workspace, moment: str) -> None:
    queue = BatchQueue(workspace.data_dir / "queue.sqlite")
    queued = QueuedBatch(batch_id=str(ULID()), battery_id=None, spec=BatchSpec(env="Maze", agent="oracle"))
    queue.add(queued)
    accepted: list[bool] = []
    results: list[BatchResult] = []

    def cancel(_: object) -> None:
        accepted.append(runner.command("cancel", queued.batch_id))

    def cancel_at(callback: str) -> Callable[[object], None]:
        return cancel if callback == moment else ignore

    def on_result(result: BatchResult) -> None:
        results.append(result)
        cancel_at("on_result")(result)

    callbacks = BatchCallbacks(on_item=ignore, on_record=cancel_at("on_record"), on_result=on_result, on_busy=ignore)
    runner = BatchRunner(workspace, queue, callbacks)
    runner.start()
    runner.drain()
    assert runner.join(30)
    runner.storage.close()
    expected = "cancelled" if moment == "on_record" else "completed"
    assert accepted == [moment == "on_record"]
    assert [result.status for result in results] == [expected]
    ended = queue.get(queued.batch_id)
    assert ended is not None
    assert (ended.status, ended.n_done) == (expected, 1)
    queue.close()


def test_a_node_with_an_unreadable_queue_is_not_idle(workspace: Workspace, caplog: pytest.LogCaptureFixture) -> None:
    queue = BatchQueue(workspace.data_dir / "queue.sqlite")
    callbacks = BatchCallbacks(on_item=ignore, on_record=ignore, on_result=ignore, on_busy=ignore)
    runner = BatchRunner(workspace, queue, callbacks)
    states = [runner.is_idle]
    queue.close()
    states.append(runner.is_idle)
    assert states == [True, False]
    assert "the batch queue cannot be used" in caplog.text
