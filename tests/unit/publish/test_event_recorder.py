from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from datetime import datetime, timedelta, timezone

import msgspec
import pytest

from runner.batch.result import BatchResult
from runner.batch.workspace import Workspace
from runner.events.codec import DurableRow, decode, headers_for
from runner.events.durable import BatchCompleted, EpisodeCompleted, FieldStatus
from runner.events.subjects import DurableNames
from runner.publish.outbox import KEEP_ACKED_S, LOCAL, Ack, EventRecorder, Outbox, OutboxEvent, SinkCounts, batch_event
from runner.store import EpisodeIndex
from runner.store.index_schema import SCHEMA
from runner.types import Outcome, Tokens
from tests.support.episodes import END, RecordedEpisode, as_json, make_step, new_id, newest_rows
from tests.support.publishing import open_outbox
from tests.support.schemas import validate
from tests.unit.publish.conftest import ManualWallClock

NAMES = DurableNames()
OTHER_NAMES = DurableNames(episode_completed="lab.episodes", eval_batch="lab.batches", field_status="lab.status")


@pytest.fixture
def index(outbox: Outbox) -> EpisodeIndex:
    return outbox.index


def _new_episode(index: EpisodeIndex, currency: str | None = None) -> RecordedEpisode:
    return RecordedEpisode(
        index._store, index, node="node1", profile="lab", model="small", task_index=7, currency=currency
    )


def _event_of(index: EpisodeIndex, names: DurableNames = NAMES) -> OutboxEvent:
    (event,) = Outbox(index, names).pending(LOCAL, 10)
    return event


def _batch_result(**fields: object) -> BatchResult:
    known: dict[str, object] = {
        "batch_id": new_id(),
        "battery_id": None,
        "env": "Maze",
        "agent": "oracle",
        "model": None,
        "baseline": True,
        "mode": "strict",
        "data_label": "",
        "status": "completed",
        "n_planned": 3,
        "n_episodes": 3,
        "n_rated": 2,
        "n_success": 1,
        "n_errors": 1,
        "outcomes": {"success": 1, "failure": 1, "error": 1},
        "mean_reward": 0.5,
        "success_rate": 0.5,
        "success_interval": (0.1, 0.9),
        "mean_rounds": 3.0,
        "duration_s": 1.0,
        "tokens": Tokens(),
        "episodes": [],
        "problems": [],
    }
    return msgspec.convert({**known, **fields}, BatchResult)


def test_an_episode_event_contains_the_record(index: EpisodeIndex) -> None:
    record = _new_episode(index, currency="EUR").record_episode()
    event = _event_of(index)
    assert (event.id, event.source, event.time) == (f"episode:{record.episode_id}", "node1", END)
    assert event.subject == event.type == "agentgym.episode.completed.v1"
    assert validate(event.type, event.payload) == {
        "episode_id": record.episode_id,
        "env": "Maze",
        "reward": 0.75,
        "rounds": 3,
        "duration_s": 1.5,
        "success": True,
        "score": 0.75,
        "duration_sec": 1.5,
        "outcome": "success",
        "agent": "oracle",
        "model": "small",
        "task_index": 7,
        "tokens": as_json(Tokens(30, 6)),
        "batch_id": record.batch_id,
        "node": "node1",
        "profile": "lab",
        "cost": record.cost,
        "unscored": False,
        "fallback": None,
        "models": ["small"],
        "currency": "EUR",
        "agentgym": {"score": 0.25, "success": False},
    }


def test_an_episode_event_names_the_fallback_that_answered(index: EpisodeIndex, outbox: Outbox) -> None:
    recording = _new_episode(index)
    recording.start()
    recording.play(make_step(0, endpoint="gateway", model="m"))
    recording.play(make_step(1, endpoint="ollama", model="small", warnings=("gateway: HTTP 500",)))
    recording.end()
    sent = _event_of(index)
    event = validate(sent.type, sent.payload)
    assert (event["fallback"], event["model"], event["models"]) == ("ollama", "small", ["small", "m"])
    index.close()
    (outbox.data_dir / "index.sqlite").unlink()
    with open_outbox(outbox.data_dir) as rebuilt:
        assert rebuilt.pending(LOCAL, 9) == [sent]


def test_a_file_and_its_recorded_row_produce_the_same_event(index: EpisodeIndex) -> None:
    recording = _new_episode(index)
    record = recording.record_episode(duration_s=0.1 + 0.2, outcome=Outcome.TRUNCATED, success=False)
    recorded = _event_of(index)
    assert msgspec.json.decode(recorded.payload)["duration_s"] == record.duration_s == 0.1 + 0.2
    index.select("DELETE FROM episodes")
    index.reconcile()
    assert _event_of(index) == recorded


def test_a_batch_event_contains_the_result() -> None:
    result = _batch_result(tokens=Tokens(30, 6, 2, 1), cost=0.5, currency="EUR", latency_s=1.25)
    now = datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    event = batch_event(result, NAMES, node="node1", time=now)
    assert (event.id, event.source, event.time) == (f"batch:{result.batch_id}", "node1", now)
    assert event.type == "agentgym.eval.batch.completed.v1"
    validate(event.type, event.payload)
    assert msgspec.json.decode(event.payload, type=BatchCompleted) == BatchCompleted(
        batch_id=result.batch_id,
        env="Maze",
        n_episodes=3,
        mean_reward=0.5,
        success_rate=0.5,
        status="completed",
        agent="oracle",
        model=None,
        node="node1",
        battery_id=None,
        tokens=Tokens(30, 6, 2, 1),
        cost=0.5,
        currency="EUR",
        latency_s=1.25,
        n_rated=2,
        n_errors=1,
        n_planned=result.n_planned,
    )


def test_a_status_event_contains_the_status(workspace: Workspace) -> None:
    recorder = EventRecorder(workspace, NAMES, role="node")
    for _ in range(2):
        recorder.record_status("running")
    recorder.record_status("idle")
    first, event = recorder.outbox.pending(LOCAL, 10)
    assert [first.id, event.id] == [f"status:{workspace.boot}:0", f"status:{workspace.boot}:1"]
    assert event.type == "agentgym.field.status.v1"
    status = FieldStatus(
        node=workspace.node, config=workspace.profile, status="idle", role="node", boot=workspace.boot, pid=os.getpid()
    )
    validate(event.type, event.payload)
    assert msgspec.json.decode(event.payload, type=FieldStatus) == status


def test_subjects_come_from_the_profile_and_types_are_fixed(index: EpisodeIndex) -> None:
    _new_episode(index).record_episode()
    event = _event_of(index, OTHER_NAMES)
    assert (event.subject, event.type) == ("lab.episodes", "agentgym.episode.completed.v1")
    headers = headers_for(event.type, event.id, event.source, event.time)
    decoded = decode(event.subject, headers, event.payload, OTHER_NAMES)
    assert isinstance(decoded, DurableRow)
    assert isinstance(decoded.event, EpisodeCompleted)
    assert decoded.id == event.id


def test_an_episode_keeps_the_subject_of_the_profile_that_played_it(workspace: Workspace) -> None:
    EventRecorder(workspace, OTHER_NAMES, role="run")
    _new_episode(workspace.index).record_episode()
    assert _event_of(workspace.index).subject == "lab.episodes"
    assert Outbox(workspace.index).pending(LOCAL, 10, without=["lab.episodes"]) == []


def test_files_that_are_new_in_the_index_are_announced_oldest_first(index: EpisodeIndex, outbox: Outbox) -> None:
    ids = sorted(_new_episode(index).record_episode().episode_id for _ in range(4))
    assert outbox.n_pending([LOCAL]) == 4
    for path in index.data_dir.glob("*.sqlite*"):
        path.unlink()
    index.reconcile()
    assert [event.id for event in outbox.pending(LOCAL, 9)] == [f"episode:{each}" for each in ids]
    index.reconcile()
    assert outbox.n_pending([LOCAL]) == 4


def test_a_lost_outbox_announces_all_episode_files_with_the_same_ids(outbox: Outbox) -> None:
    for _ in range(3):
        _new_episode(outbox.index).record_episode()
    events = outbox.pending(LOCAL, 9)
    assert len(events) == 3
    outbox.index.close()
    outbox.close()
    for path in outbox.data_dir.glob("*.sqlite"):
        path.write_bytes(b"not a SQLite database" * 100)
    with open_outbox(outbox.data_dir) as reopened:
        assert reopened.pending(LOCAL, 9) == sorted(events, key=lambda event: event.id)


def test_a_changed_file_is_not_announced_again(index: EpisodeIndex, outbox: Outbox) -> None:
    recording = _new_episode(index)
    recording.record_episode()
    outbox.ack(LOCAL, [Ack(_event_of(index).id, "S", 1)])
    os.utime(recording.file, ns=(1, 1))
    index.reconcile()
    assert len(newest_rows(index)) == 1
    assert outbox.pending(LOCAL, 9) == []


def test_a_file_that_is_restored_after_its_delivery_is_not_announced_again(
    index: EpisodeIndex, outbox: Outbox, clock: ManualWallClock
) -> None:
    recording = _new_episode(index)
    recording.record_episode()
    outbox.ack(LOCAL, [Ack(_event_of(index).id, "S", 1)])
    clock.advance(KEEP_ACKED_S + 1)
    assert outbox.prune() == 1
    content = recording.file.read_bytes()
    recording.file.unlink()
    index.reconcile()
    recording.file.write_bytes(content)
    index.reconcile()
    assert len(newest_rows(index)) == 1
    assert outbox.n_pending([LOCAL]) == 0


def test_a_deleted_file_keeps_the_acknowledgements_of_its_event(index: EpisodeIndex, outbox: Outbox) -> None:
    outbox.register_sinks("egress")
    recording = _new_episode(index)
    recording.record_episode()
    content, event = recording.file.read_bytes(), _event_of(index)
    outbox.ack("egress", [Ack(event.id, "S", 1)])
    recording.file.unlink()
    index.reconcile()
    assert outbox.n_pending([LOCAL, "egress"]) == 0
    assert outbox.counts() == {LOCAL: SinkCounts(), "egress": SinkCounts(acked=1)}
    recording.file.write_bytes(content)
    index.reconcile()
    assert outbox.pending(LOCAL, 9) == [event]
    assert outbox.pending("egress", 9) == []
    assert outbox.counts() == {LOCAL: SinkCounts(pending=1), "egress": SinkCounts(acked=1)}


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE episodes ADD COLUMN later",
        "DROP INDEX results; ALTER TABLE episodes DROP COLUMN unscored",
        "DROP TABLE damaged",
        f"PRAGMA user_version = {SCHEMA.version + 1}",
    ],
)
def test_an_index_with_other_episode_columns_keeps_its_acknowledgements(
    change: str, index: EpisodeIndex, outbox: Outbox
) -> None:
    for _ in range(2):
        _new_episode(index).record_episode()
    acked, waiting = (event.id for event in outbox.pending(LOCAL, 9))
    outbox.ack(LOCAL, [Ack(acked, "S", 1)])
    rows = newest_rows(index)
    index.close()
    with closing(sqlite3.connect(outbox.data_dir / "index.sqlite")) as other:
        other.executescript(change)
    for _ in range(2):
        with open_outbox(outbox.data_dir) as reopened:
            assert newest_rows(reopened.index) == rows
            assert [event.id for event in reopened.pending(LOCAL, 9)] == [waiting]
            assert reopened.counts() == {LOCAL: SinkCounts(pending=1, acked=1)}
            assert reopened.index.select("PRAGMA user_version") == [(SCHEMA.version,)]
    with open_outbox(outbox.data_dir) as reopened:
        _new_episode(reopened.index).record_episode()
        assert (len(newest_rows(reopened.index)), reopened.n_unwritten) == (3, 0)


def test_an_episode_with_an_impossible_row_blocks_no_other(index: EpisodeIndex, outbox: Outbox) -> None:
    for _ in range(2):
        _new_episode(index).record_episode()
    damaged, good = outbox.pending(LOCAL, 9)
    with index.transaction() as connection:
        damage = "UPDATE episodes SET outcome = 'impossible' WHERE 'episode:' || episode_id = ?"
        connection.execute(damage, (damaged.id,))
    assert outbox.pending(LOCAL, 9) == outbox.pending(LOCAL, 9) == [good]
    (letter,) = outbox.dead_letters()
    assert letter.id == damaged.id
    assert "impossible" in letter.reason


def test_many_episodes_are_announced_fast(index: EpisodeIndex, outbox: Outbox) -> None:
    record = _new_episode(index).record_episode()
    (row,) = index.select("SELECT * FROM episodes")
    ids = [new_id() for _ in range(3_000)]
    placeholders = ", ".join("?" for _ in row)
    started = time.process_time()
    with index.transaction() as connection:
        connection.executemany(
            f"INSERT INTO episodes VALUES ({placeholders})", [(episode_id, *row[1:]) for episode_id in ids]
        )
    assert time.process_time() - started < 1.5
    started = time.process_time()
    pending = outbox.pending(LOCAL, 20_000)
    assert time.process_time() - started < 0.6
    assert {event.id for event in pending} == {f"episode:{episode_id}" for episode_id in [*ids, record.episode_id]}
    outbox.ack(LOCAL, [Ack(event.id) for event in pending])
    started = time.process_time()
    assert outbox.pending(LOCAL, 1000) == []
    assert time.process_time() - started < 0.1
