"""Adaptive repeats: which part follows, once, and before all others that wait."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from runner.batch.result import BatchResult
from runner.batch.spec import BatchSpec
from runner.batch.stopping import first_part
from runner.batch.workspace import Workspace
from runner.node.batch_player import BatchCallbacks, BatchPlayer
from runner.node.batch_queue import BatchQueue, QueuedBatch, queue_entries, recover_queue
from runner.node.session import look_after
from runner.store.pruning import delete_episodes
from runner.types import Outcome, Tokens
from tests.support.batches import place_spec
from tests.support.episodes import RecordedEpisode, make_step, new_id

WIDE = 0.5
"""A width that the interval of 6 successes is below, and that of 6 mixed ones is not."""


def ignore(_: object) -> None: ...


@pytest.fixture
def queue(workspace: Workspace) -> BatchQueue:
    return BatchQueue(workspace.data_dir)


def play_part(workspace: Workspace, queue: BatchQueue, part: QueuedBatch, n_success: int, n: int = 6) -> None:
    """Store ``n`` episodes of a part, which are enough for the rule, and end it."""
    for number in range(n):
        is_success = number < n_success
        recording = RecordedEpisode(
            workspace.store,
            workspace.index,
            batch_id=part.batch_id,
            battery_id=part.battery_id,
            env=part.spec.env,
            agent="react",
            model=part.spec.model,
            task_index=part.spec.task_index + number,
        )
        outcome = Outcome.SUCCESS if is_success else Outcome.FAILURE
        recording.start()
        recording.reset()
        recording.play(make_step(0, tokens=Tokens(prompt=1)))
        recording.end(outcome=outcome, success=is_success)
    queue.set_status(part.batch_id, "completed", n_done=n)


def player(workspace: Workspace, queue: BatchQueue, on_result: Callable[[BatchResult], None] = ignore) -> BatchPlayer:
    return BatchPlayer(workspace, queue, BatchCallbacks(ignore, on_result, on_busy=ignore), place=place_spec)


def add(queue: BatchQueue, width: float, **fields: object) -> QueuedBatch:
    whole = msgspec.convert({"env": "Maze", "agent": "react", "model": "m", "repeat": 100, **fields}, BatchSpec)
    (part,) = queue_entries(new_id(), [first_part(whole, width)])
    queue.add(part)
    return part


def stopped(queue: BatchQueue) -> list[tuple[int, int]]:
    return [(batch.spec.task_index, batch.spec.repeat) for batch in queue.with_status("interrupted")]


def test_the_next_part_plays_at_once_before_other_batches(workspace: Workspace, queue: BatchQueue) -> None:
    part = add(queue, 0.01, agent="oracle", model=None, repeat=40, task_index=7)
    queue.add(QueuedBatch(batch_id=new_id(), battery_id=None, spec=BatchSpec(env="Maze", agent="oracle")))
    results: list[BatchResult] = []
    runner = player(workspace, queue, results.append)
    runner.start()
    runner.drain()
    assert runner.join(60)
    runner.storage.close()
    assert [(result.battery_id, result.n_episodes) for result in results] == [
        (part.battery_id, 32),
        (part.battery_id, 8),
        (None, 1),
    ]
    (following,) = [each for each in queue.in_battery(part.battery_id or "") if each.batch_id != part.batch_id]
    assert following.spec == msgspec.structs.replace(part.spec, task_index=39, repeat=8)
    assert (following.status, following.n_done) == ("completed", 8)


@pytest.mark.parametrize("reason", ["narrow", "cancelled", "interrupted", "budget", "maximum", "other model"])
def test_no_part_follows(workspace: Workspace, queue: BatchQueue, reason: str) -> None:
    budget = {"tokens": 6} if reason == "budget" else None
    part = add(queue, WIDE, repeat=32 if reason == "maximum" else 100, budget=budget)
    if reason == "other model":
        other = msgspec.structs.replace(part, spec=msgspec.structs.replace(part.spec, model="x"))
        play_part(workspace, queue, other, 6)
    play_part(workspace, queue, part, 6 if reason == "narrow" else 3)
    if reason in ("cancelled", "interrupted"):
        queue.set_status(part.batch_id, "cancelled" if reason == "cancelled" else "interrupted")
    else:
        look = look_after(workspace.index, part)
        assert look is not None
        assert (look.n_success, look.n, look.is_spent) == (6 if reason == "narrow" else 3, 6, reason == "budget")
    player(workspace, queue).restore_parts()
    parts = [(0, 32)] if reason == "interrupted" else [(32, 32)] if reason == "other model" else []
    assert stopped(queue) == parts


def test_a_part_that_a_killed_node_did_not_queue_can_be_resumed(workspace: Workspace, queue: BatchQueue) -> None:
    part = add(queue, WIDE)
    play_part(workspace, queue, part, 3)
    for _ in range(2):
        player(workspace, queue).restore_parts()
        assert stopped(queue) == [(32, 32)]
    reopened = BatchQueue(workspace.data_dir)
    assert [each.spec.adaptive for each in reopened.with_status("interrupted")] == [part.spec.adaptive]


def test_chosen_episodes_of_a_lost_queue_are_no_range_of_tasks(workspace: Workspace, queue: BatchQueue) -> None:
    batch_id = new_id()
    for task_index in (3, 900):
        RecordedEpisode(
            workspace.store, workspace.index, batch_id=batch_id, task_index=task_index, attempt=0, n_planned=4
        ).record_episode()
    (workspace.data_dir / "nats").mkdir()
    (workspace.data_dir / "batches.jsonl").unlink()
    restored = BatchQueue(workspace.data_dir)
    recover_queue(restored, workspace, ())
    batch = restored.get(batch_id)
    assert batch is not None
    assert (batch.spec.chosen, batch.status) == (((3, 0), (900, 0)), "completed")


def test_no_part_is_added_for_a_run_whose_episodes_were_deleted(workspace: Workspace, queue: BatchQueue) -> None:
    part = add(queue, WIDE)
    play_part(workspace, queue, part, 6)
    episode_ids = [str(row[0]) for row in workspace.index.select("SELECT episode_id FROM episodes")]
    delete_episodes(workspace.store, workspace.index, part.batch_id, episode_ids)
    player(workspace, queue).restore_parts()
    assert [batch.batch_id for batch in queue.with_status("interrupted", "queued")] == []
