"""Batches of the queue to their end: cancellations, waits, missing results, and the parts of adaptive repeats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from ulid import ULID

from runner.batch.observers import BatchItem
from runner.batch.result import BatchResult
from runner.batch.spec import BatchSpec, ResolvedBatch
from runner.batch.stopping import Waiting, first_part
from runner.batch.workspace import Workspace
from runner.errors import ConfigError, ServerBusy, StoreError
from runner.events.live import QueueChanged
from runner.node.batch_player import BatchCallbacks, BatchPlayer
from runner.node.batch_queue import BatchQueue, QueuedBatch, Status, queue_entries, recover_queue
from runner.node.session import look_after
from runner.store import EpisodeRecord
from runner.store.pruning import delete_episodes
from runner.types import BatchProgress, Outcome, Tokens
from tests.support.batches import place_spec
from tests.support.episodes import RecordedEpisode, make_step, new_id, record_episodes

BATTERY = str(ULID())


def ignore(_: object) -> None: ...


@pytest.fixture
def queue(workspace: Workspace) -> BatchQueue:
    return BatchQueue(workspace.data_dir)


def add(queue: BatchQueue, status: Status = "queued", env: str = "Maze", **spec: Any) -> QueuedBatch:  # noqa: ANN401
    queued = QueuedBatch(
        batch_id=str(ULID()), battery_id=None, spec=BatchSpec(env=env, agent="oracle", **spec), status=status
    )
    queue.add(queued)
    return queued


def player(
    workspace: Workspace,
    queue: BatchQueue,
    place: Callable[[BatchSpec], ResolvedBatch] = place_spec,
    **callbacks: Callable[[Any], None],
) -> BatchPlayer:
    given: dict[str, Any] = dict.fromkeys(("on_item", "on_result", "on_busy"), ignore)
    return BatchPlayer(workspace, queue, BatchCallbacks(**given | callbacks), place=place)


def play_all(runner: BatchPlayer) -> None:
    """Play until the queue is empty."""
    runner.start()
    runner.drain()
    assert runner.join(60)
    runner.storage.close()


def state(queue: BatchQueue, queued: QueuedBatch) -> tuple[Status, int]:
    found = queue.get(queued.batch_id)
    assert found is not None
    return found.status, found.n_done


def interruption(workspace: Workspace, queued: QueuedBatch) -> str | None:
    """Return why a batch was interrupted, as the next node reads it."""
    ended = BatchQueue(workspace.data_dir).get(queued.batch_id)
    return None if ended is None else ended.interruption


@pytest.mark.parametrize("moment", ["stored", "on_result"])
def test_a_cancellation_is_refused_after_the_end_of_a_batch_and_kept_before(
    workspace: Workspace, queue: BatchQueue, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queued = add(queue)
    accepted: list[bool] = []
    results: list[BatchResult] = []

    def cancel() -> None:
        accepted.append(runner.command("cancel", queued.batch_id))

    def on_result(result: BatchResult) -> None:
        results.append(result)
        if moment == "on_result":
            cancel()

    insert = workspace.index.insert

    def on_stored(record: EpisodeRecord, content: EpisodeRecord | None) -> None:
        insert(record, content)
        if moment == "stored":
            cancel()

    monkeypatch.setattr(workspace.index, "insert", on_stored)
    runner = player(workspace, queue, on_result=on_result)
    play_all(runner)
    expected = "cancelled" if moment == "stored" else "completed"
    assert accepted == [moment == "stored"]
    assert [result.status for result in results] == [expected]
    assert state(queue, queued) == (expected, 1)


def test_a_batch_that_ends_on_a_full_disk_keeps_the_number_of_its_episodes(
    workspace: Workspace, queue: BatchQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queued = add(queue, repeat=2)
    failures = [StoreError("the disk is full"), StoreError("the disk is still full")]
    set_status = queue.set_status

    def set_status_later(batch_id: str, status: Status, **fields: Any) -> bool:  # noqa: ANN401
        if status == "completed" and failures:
            raise failures.pop()
        return set_status(batch_id, status, **fields)

    monkeypatch.setattr(queue, "set_status", set_status_later)
    runner = player(workspace, queue)
    play_all(runner)
    assert (state(queue, queued), failures) == (("completed", 2), [])


def test_a_batch_that_is_cancelled_on_a_full_disk_plays_nothing_when_there_is_room_again(
    workspace: Workspace, queue: BatchQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queued = add(queue, repeat=3)
    accepted: list[bool] = []
    save = workspace.store.save

    def save_later(record: EpisodeRecord) -> Path:
        if not accepted:
            accepted.append(runner.command("cancel", queued.batch_id))
            raise StoreError("the disk is full")
        return save(record)

    monkeypatch.setattr(workspace.store, "save", save_later)
    runner = player(workspace, queue)
    play_all(runner)
    assert accepted == [True]
    assert state(queue, queued) == ("cancelled", 1)
    assert len(list(workspace.store.runs.rglob("*.json"))) == 1


def test_a_batch_that_is_cancelled_after_an_interruption_is_published_as_cancelled(
    workspace: Workspace, queue: BatchQueue
) -> None:
    queued = add(queue, "interrupted")
    results: list[BatchResult] = []
    runner = player(workspace, queue, on_result=results.append)
    assert runner.cancel_unstarted(queued)
    runner.publish_missing_results(())
    assert [result.status for result in results] == ["cancelled", "cancelled"]


def test_a_batch_that_is_cancelled_while_its_server_is_searched_in_vain_is_announced(
    workspace: Workspace, queue: BatchQueue
) -> None:
    queued = add(queue, repeat=2)
    results: list[BatchResult] = []

    def cancel_and_fail(spec: BatchSpec) -> ResolvedBatch:
        assert runner.command("cancel", queued.batch_id)
        raise ConfigError("no answer within 2 s")

    runner = player(workspace, queue, cancel_and_fail, on_result=results.append)
    play_all(runner)
    assert (state(queue, queued)[0], [result.status for result in results]) == ("cancelled", ["cancelled"])
    assert (results[0].batch_id, results[0].n_episodes) == (queued.batch_id, 0)


def test_a_batch_waits_for_a_busy_server_and_shows_it(workspace: Workspace, queue: BatchQueue) -> None:
    queued = add(queue)
    items: list[BatchItem] = []
    waits: list[Waiting | None] = []

    def place(spec: BatchSpec) -> ResolvedBatch:
        session = runner.session(queued.batch_id)
        waits.append(None if session is None else session.waiting)
        if len(waits) < 3:
            raise ServerBusy("Maze cannot be played", "http://h: busy", 60.0)
        return place_spec(spec)

    runner = player(workspace, queue, place, on_item=items.append)
    play_all(runner)
    assert state(queue, queued)[0] == "completed"
    assert waits == [None, Waiting("http://h: busy", 60.0), Waiting("http://h: busy", 60.0)]
    progress = [item for item in items if isinstance(item, BatchProgress)]
    assert [item.waiting_for for item in progress][:3] == ["http://h: busy", "http://h: busy", None]
    assert [item.seq for item in progress] == list(range(len(progress)))


def test_a_busy_server_ends_the_batch_only_after_the_wait(workspace: Workspace, queue: BatchQueue) -> None:
    batches = [add(queue, task_index=index) for index in (0, 1)]
    n_tries: Counter[int] = Counter()

    def place(spec: BatchSpec) -> ResolvedBatch:
        n_tries[spec.task_index] += 1
        if spec.task_index and n_tries[1] == 2:
            assert runner.command("cancel", batches[1].batch_id)
        raise ServerBusy("Maze cannot be played", "http://h: busy", 60.0 if spec.task_index else 0.0)

    runner = player(workspace, queue, place)
    play_all(runner)
    assert (state(queue, batches[1])[0], n_tries) == ("cancelled", {0: 1, 1: 2})
    assert interruption(workspace, batches[0]) == "Maze cannot be played"


def test_a_batch_that_continues_is_never_mixed_with_other_data(workspace: Workspace, queue: BatchQueue) -> None:
    queued = add(queue, env="WebShop", repeat=2)
    label = "AgentGym server"
    record_episodes(workspace.data_dir, batch_id=queued.batch_id, env="WebShop", transport="http", data_label=label)
    runner = player(workspace, queue)
    play_all(runner)
    assert interruption(workspace, queued) == (
        "The episodes so far were played over HTTP (strict rules, AgentGym server), the next one would be embedded. "
        "Start the same server again or set transport in the profile, then resume the batch, or start a new one"
    )


def test_every_end_is_passed_on_also_that_of_a_batch_that_cannot_start(workspace: Workspace, queue: BatchQueue) -> None:
    ended: list[BatchResult] = []

    def place(spec: BatchSpec) -> ResolvedBatch:
        if spec.task_index:
            raise ConfigError("the server of Maze is gone")
        return place_spec(spec)

    for index in (1, 0):
        add(queue, task_index=index)
    runner = player(workspace, queue, place, on_end=ended.append)
    play_all(runner)
    assert [(result.status, result.interruption, result.n_episodes) for result in ended] == [
        ("interrupted", "the server of Maze is gone", 0),
        ("completed", None, 1),
    ]


def test_the_reason_of_an_interruption_is_kept_if_the_episodes_are_unreadable(
    workspace: Workspace, queue: BatchQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queued = add(queue)

    def place(spec: BatchSpec) -> ResolvedBatch:
        raise ConfigError(f"the server of {spec.env} is gone")

    def fail(path: Path) -> EpisodeRecord:
        raise StoreError(f"{path} cannot be read")

    record_episodes(workspace.data_dir, batch_id=queued.batch_id)
    runner = player(workspace, queue, place)
    monkeypatch.setattr(workspace.store, "load", fail)
    play_all(runner)
    assert state(queue, queued)[0] == "interrupted"
    assert interruption(workspace, queued) == "the server of Maze is gone"


def test_a_failed_report_of_the_queue_does_not_fail_what_has_changed_it(
    workspace: Workspace, queue: BatchQueue, caplog: pytest.LogCaptureFixture
) -> None:
    queued = QueuedBatch(batch_id=str(ULID()), battery_id=None, spec=BatchSpec(env="Maze", agent="oracle"))

    def fail(item: QueueChanged) -> None:
        raise StoreError(f"{item.n_waiting} batches cannot be reported")

    queue.report_to(fail, workspace.clock)
    queue.add(queued)
    assert queue.set_status(queued.batch_id, "cancelled")
    assert "1 batches cannot be reported" in caplog.text


def test_a_cancellation_after_the_end_of_an_adaptive_part_reaches_the_next_part(
    workspace: Workspace, queue: BatchQueue
) -> None:
    (part,) = queue_entries(BATTERY, [first_part(BatchSpec(env="Maze", agent="oracle", repeat=40, workers=0), 0.01)])
    queue.add(part)
    accepted: list[bool] = []
    results: list[BatchResult] = []

    def on_result(result: BatchResult) -> None:
        results.append(result)
        if result.batch_id == part.batch_id:
            accepted.append(runner.command("cancel", part.batch_id))

    runner = player(workspace, queue, on_result=on_result)
    play_all(runner)
    assert accepted == [True]
    assert [(result.status, result.n_episodes) for result in results] == [("completed", 32), ("cancelled", 0)]
    assert [batch.status for batch in queue.in_battery(BATTERY)] == ["completed", "cancelled"]
    assert [batch.spec.task_index for batch in queue.in_battery(BATTERY)] == [0, 32]


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


WIDE = 0.5
"""A width that the interval of 6 successes is below, and that of 6 mixed ones is not."""


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


def add_part(queue: BatchQueue, width: float, **fields: object) -> QueuedBatch:
    whole = msgspec.convert({"env": "Maze", "agent": "react", "model": "m", "repeat": 100, **fields}, BatchSpec)
    (part,) = queue_entries(new_id(), [first_part(whole, width)])
    queue.add(part)
    return part


def stopped(queue: BatchQueue) -> list[tuple[int, int]]:
    return [(batch.spec.task_index, batch.spec.repeat) for batch in queue.with_status("interrupted")]


def test_the_next_part_plays_at_once_before_other_batches(workspace: Workspace, queue: BatchQueue) -> None:
    part = add_part(queue, 0.01, agent="oracle", model=None, repeat=40, task_index=7)
    queue.add(QueuedBatch(batch_id=new_id(), battery_id=None, spec=BatchSpec(env="Maze", agent="oracle")))
    results: list[BatchResult] = []
    play_all(player(workspace, queue, on_result=results.append))
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
    part = add_part(queue, WIDE, repeat=32 if reason == "maximum" else 100, budget=budget)
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
    part = add_part(queue, WIDE)
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
    part = add_part(queue, WIDE)
    play_part(workspace, queue, part, 6)
    episode_ids = [str(row[0]) for row in workspace.index.select("SELECT episode_id FROM episodes")]
    delete_episodes(workspace.store, workspace.index, part.batch_id, episode_ids)
    player(workspace, queue).restore_parts()
    assert [batch.batch_id for batch in queue.with_status("interrupted", "queued")] == []
