from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import msgspec
import pytest

from runner.batch.result import BatchResult
from runner.events.codec import DurableRow, decode, headers_for
from runner.events.durable import BatchCompleted, EpisodeCompleted, FieldStatus
from runner.events.subjects import DurableNames
from runner.publish.event_factory import batch_event, enqueue_missing, episode_event, status_event
from runner.publish.outbox import LOCAL, Ack, Outbox
from runner.store import EpisodeIndex, EpisodeStore, open_index
from runner.types import Outcome, Tokens
from tests.support.episodes import END, RecordedEpisode, as_json, new_id
from tests.support.schemas import validate

NAMES = DurableNames()
OTHER_NAMES = DurableNames(episode_completed="lab.episodes", eval_batch="lab.batches", field_status="lab.status")


@pytest.fixture
def index(tmp_path: Path) -> Iterator[EpisodeIndex]:
    index = open_index(EpisodeStore(tmp_path))
    yield index
    index.close()


def _new_episode(index: EpisodeIndex) -> RecordedEpisode:
    return RecordedEpisode(index._store, index, node="node1", profile="lab", model="small", task_index=7)


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
    record = _new_episode(index).record_episode()
    event = episode_event(record, NAMES)
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
    }


def test_a_file_and_its_index_row_produce_the_same_event(index: EpisodeIndex) -> None:
    record = _new_episode(index).record_episode(duration_s=0.1 + 0.2, outcome=Outcome.TRUNCATED, success=False)
    (row,) = index.recent()
    assert episode_event(row, NAMES) == episode_event(record, NAMES)


def test_a_batch_event_contains_the_result() -> None:
    result = _batch_result(tokens=Tokens(30, 6, 2, 1), cost=0.5, latency_s=1.25)
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
        latency_s=1.25,
        n_rated=2,
        n_errors=1,
    )


def test_a_batch_event_is_added_once(outbox: Outbox) -> None:
    result = _batch_result()
    assert outbox.add(batch_event(result, NAMES, node="node1", time=END)) == 1
    outbox.ack(LOCAL, [Ack(f"batch:{result.batch_id}", "S", 1)])
    changed = msgspec.structs.replace(result, n_episodes=4)
    assert outbox.add(batch_event(changed, NAMES, node="node1", time=END)) == 0


def test_a_status_event_contains_the_status() -> None:
    boot = new_id()
    event = status_event("idle", NAMES, n=3, role="node", node="node1", profile="lab", boot=boot, pid=42, time=END)
    assert (event.id, event.type) == (f"status:{boot}:3", "agentgym.field.status.v1")
    status = FieldStatus(node="node1", config="lab", status="idle", role="node", boot=boot, pid=42)
    validate(event.type, event.payload)
    assert msgspec.json.decode(event.payload, type=FieldStatus) == status


def test_subjects_come_from_the_profile_and_types_are_fixed(index: EpisodeIndex) -> None:
    record = _new_episode(index).record_episode()
    event = episode_event(record, OTHER_NAMES)
    assert (event.subject, event.type) == ("lab.episodes", "agentgym.episode.completed.v1")
    headers = headers_for(event.type, event.id, event.source, event.time)
    decoded = decode(event.subject, headers, event.payload, OTHER_NAMES)
    assert isinstance(decoded, DurableRow)
    assert isinstance(decoded.event, EpisodeCompleted)
    assert decoded.id == event.id


def test_missing_events_are_enqueued_oldest_first(index: EpisodeIndex, outbox: Outbox) -> None:
    ids = sorted(_new_episode(index).record_episode().episode_id for _ in range(4))
    index.reconcile()
    outbox.add(episode_event(index._store.load(ids[1]), NAMES))
    assert enqueue_missing(index, outbox, NAMES) == 3
    assert [event.id for event in outbox.pending(LOCAL, 9)] == [f"episode:{ids[n]}" for n in (1, 0, 2, 3)]
    assert enqueue_missing(index, outbox, NAMES) == 0


def test_a_lost_outbox_is_refilled_from_the_episode_files(index: EpisodeIndex, outbox: Outbox) -> None:
    events = [episode_event(_new_episode(index).record_episode(), NAMES) for _ in range(3)]
    outbox.add(*events)
    outbox.close()
    outbox.path.write_bytes(b"not a SQLite database" * 100)
    reopened = Outbox(outbox.path)
    assert enqueue_missing(index, reopened, NAMES) == 3
    assert reopened.pending(LOCAL, 9) == sorted(events, key=lambda event: event.id)
    reopened.close()


def test_enqueueing_many_episodes_is_fast(index: EpisodeIndex, outbox: Outbox) -> None:
    record = _new_episode(index).record_episode()
    (row,) = index.select("SELECT * FROM episodes")
    ids = [new_id() for _ in range(10_000)]
    with index._transaction() as connection:
        placeholders = ", ".join("?" for _ in row)
        connection.executemany(
            f"INSERT INTO episodes VALUES ({placeholders})", [(episode_id, *row[1:]) for episode_id in ids]
        )
    started = time.process_time()
    assert enqueue_missing(index, outbox, NAMES) == 10_001
    first = time.process_time() - started
    started = time.process_time()
    assert enqueue_missing(index, outbox, NAMES) == 0
    second = time.process_time() - started
    assert first < 5
    assert second < 0.5
    assert outbox.known_ids() == {f"episode:{episode_id}" for episode_id in [*ids, record.episode_id]}
