"""The checker accepts every history without a violation, and finds each way to corrupt one."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.history.checker import CHECKS, check
from tests.history.history import HistoryError, is_finished
from tests.history.records import (
    AnyRecord,
    Begin,
    Call,
    End,
    EpisodeFile,
    Fault,
    Live,
    Message,
    Probe,
    Recorder,
    Reset,
    Shown,
    Step,
    StreamRead,
    read_history,
)
from tests.history.report import MIN_EPISODES, silent_observers
from tests.support.histories import make_history
from tests.unit.history.corruptions import CORRUPTIONS, last_states, of_kind, replace_message

SEEDS = st.integers(0, 10**6)


@given(SEEDS)
@settings(max_examples=25, deadline=None)
def test_a_history_that_keeps_the_promises_has_no_violation(seed: int) -> None:
    assert check(make_history(seed)) == []


@pytest.mark.parametrize("name", CORRUPTIONS)
@given(seed=SEEDS)
@settings(max_examples=3, deadline=None)
def test_a_corruption_breaks_its_promise(name: str, seed: int) -> None:
    promise, corrupt = CORRUPTIONS[name]
    violations = check(corrupt(make_history(seed), random.Random(seed)))
    assert promise in {violation.promise for violation in violations}
    assert all(str(violation).startswith(f"{violation.promise}: ") for violation in violations)


def test_every_promise_has_a_corruption() -> None:
    assert {promise for promise, _ in CORRUPTIONS.values()} == CHECKS.keys()


def test_records_survive_their_files(tmp_path: Path) -> None:
    records = make_history(3)
    recorders = [Recorder(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
    for number, record in enumerate(records):
        recorders[number % 2].write(record)
    with (tmp_path / "b.jsonl").open("ab") as file:
        file.write(b'{"record": "step", "at": 1')  # its writer was killed
    assert read_history(sorted(tmp_path.glob("*.jsonl"))) == records


@pytest.mark.parametrize("kind", [Begin, End, StreamRead])
def test_an_incomplete_history_is_refused(kind: type[AnyRecord]) -> None:
    with pytest.raises(HistoryError):
        check([record for record in make_history(1) if not isinstance(record, kind)])


def test_an_observer_that_saw_nothing_is_named() -> None:
    records = [record for record in make_history(1) if not isinstance(record, Live)]
    files = [record for record in records if isinstance(record, EpisodeFile)]
    assert silent_observers(records[:5]) == []
    assert {"live items of own", "episodes in the console"} <= set(silent_observers([*records, *files * MIN_EPISODES]))


def test_a_message_that_was_not_recorded_is_refused() -> None:
    records = make_history(1)
    lost = of_kind(records, Message)[3]
    with pytest.raises(HistoryError, match="were not recorded"):
        check([record for record in records if record is not lost])


def promises_broken(records: list[AnyRecord]) -> set[str]:
    return {violation.promise for violation in check(records)}


def with_interrupted(change: Callable[[dict[str, Any]], object]) -> list[AnyRecord]:
    for seed in range(50):
        records = make_history(seed)
        documents = [each.document for each in of_kind(records, EpisodeFile) if each.document]
        if interrupted := [document for document in documents if not is_finished(document)]:
            change(interrupted[0])
            return records
    raise AssertionError("no history has an interrupted episode")


class TestWhatIsNoViolation:
    def test_a_start_whose_answer_was_lost_promises_nothing(self) -> None:
        records = make_history(1)
        start = next(call for call in of_kind(records, Call) if call.op == "start")
        args = dict(start.args, batch_id="X" * 26)
        assert check([*records, Call(at=start.at, ended_at=start.at + 1, op="start", args=args, reply=None)]) == []

    def test_a_repeated_start_is_one_batch(self) -> None:
        records = make_history(1)
        start = next(call for call in of_kind(records, Call) if call.op == "start")
        again = Call(at=start.at + 5, ended_at=start.at + 6, op="start", args=start.args, reply=start.reply)
        assert check([*records, again]) == []

    def test_the_same_message_read_twice(self) -> None:
        records = make_history(1)
        message = of_kind(records, Message)[0]
        copy = Message(**{name: getattr(message, name) for name in message.__struct_fields__})
        assert check([*records, copy]) == []

    def test_an_event_sent_again_long_after_the_index_was_deleted(self) -> None:
        records = make_history(1)
        first = of_kind(records, Message)[0]
        copy = Message(**{name: getattr(first, name) for name in first.__struct_fields__} | {"at": first.at + 700})
        again = replace_message(records, first.sink, lambda messages: [*messages, copy])
        assert "stored" in promises_broken(again)
        fault = Fault(at=first.at + 650, number=79, kind="delete", target="node", phase="begin", detail="index.sqlite")
        assert "stored" not in promises_broken([*again, fault])

    def test_a_server_that_executed_a_step_without_an_answer(self) -> None:
        assert check(with_interrupted(lambda document: None)) == []

    def test_a_reset_without_a_step_needs_no_file(self) -> None:
        records = make_history(1)
        at = of_kind(records, StreamRead)[0].at
        assert check([*records, Reset(at=at, server="a", instance="x", task_index=0, observation="")]) == []

    def test_a_game_whose_journal_had_no_room(self) -> None:
        records = make_history(1)
        at = of_kind(records, StreamRead)[0].at
        game: list[AnyRecord] = [
            Fault(at=at, number=77, kind="disk_full", target="disk", phase="begin"),
            Reset(at=at, server="a", instance="x", task_index=0, observation=""),
            Step(at=at, server="a", instance="x", action="", observation="", reward=0.0, done=False),
            Fault(at=at, number=77, kind="disk_full", target="disk", phase="end"),
        ]
        assert check([*records, *game]) == []

    def test_an_interruption_that_a_console_shows_after_a_full_disk(self) -> None:
        records = make_history(1)
        at = of_kind(records, StreamRead)[0].at
        shown = Shown(at=at, console="c1", what="episode", id="X" * 26, fields={"outcome": "interrupted"})
        assert "shown" in promises_broken([*records, shown])
        fault = Fault(at=at - 1, number=77, kind="disk_full", target="disk", phase="begin")
        end = Fault(at=at, number=77, kind="disk_full", target="disk", phase="end")
        assert check([*records, shown, fault, end]) == []

    def test_silence_in_a_calm_that_is_too_short(self) -> None:
        records = make_history(1)
        first = of_kind(records, Probe)[0].at - 2.5
        fault = [Fault(at=first, number=78, kind="stop", target="node", phase="begin")]
        fault += [Fault(at=first + 18, number=78, kind="stop", target="node", phase="end")]
        for call in of_kind(records, Call):
            if call.op == "health" and first < call.at < first + 18:
                call.reply = None
        assert check([*records, *fault]) == []

    def test_an_episode_without_a_server(self) -> None:
        records = make_history(1)
        documents = [each.document for each in of_kind(records, EpisodeFile) if each.document]
        document = next(document for document in documents if is_finished(document))
        instance = document["env_episode_id"].rpartition("@")[2]
        document["transport"] = "embedded"
        assert (
            check([each for each in records if not (isinstance(each, Reset | Step) and each.instance == instance)])
            == []
        )


def test_more_than_one_lost_step_of_an_interrupted_episode_is_a_violation() -> None:
    def drop_last(document: dict[str, Any]) -> None:
        last = document["timesteps"].pop()
        document["rounds"] -= 1
        document["reward"] -= last["reward"]

    assert "finished" in promises_broken(with_interrupted(drop_last))


def test_an_episode_in_two_files_is_a_violation() -> None:
    records = make_history(1)
    file = of_kind(records, EpisodeFile)[0]
    copy = EpisodeFile(at=file.at, path="runs/other.json", sha256=file.sha256, document=file.document)
    assert "finished" in promises_broken([*records, copy])


def test_a_lost_store_of_the_foreign_broker_must_be_filled_again() -> None:
    records = make_history(1)
    recreated = replace_message(records, "foreign", lambda messages: messages[2:])
    assert "stored" in promises_broken(recreated)


def test_an_interrupted_batch_needs_a_fault() -> None:
    records: list[AnyRecord] = [record for record in make_history(1) if not isinstance(record, Fault)]
    assert last_states(records, "interrupted")
    assert "accepted" in promises_broken(records)
