"""Batches that are changed while they wait or play, and extended before and after their end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ulid import ULID

from runner.batch.observers import BatchItem
from runner.batch.result import BatchResult
from runner.batch.spec import BatchSpec, extension, resolve_spec
from runner.batch.workspace import Workspace
from runner.config import AgentSettings, Profile
from runner.config.profile import RateLimit
from runner.errors import ConfigError
from runner.node.batch_player import BatchCallbacks, BatchPlayer
from runner.node.batch_queue import BatchQueue, QueuedBatch
from runner.node.handlers import ControlHandler
from runner.store import EpisodeRecord
from runner.types import BatchProgress
from tests.conftest import Install
from tests.support.batches import place_spec
from tests.support.episodes import RecordedEpisode, new_id
from tests.support.hooked_agent import HookedAgent
from tests.unit.node.conftest import Send


def start(send: Send, agent: str = "oracle", **args: object) -> str:
    batch_id = str(ULID())
    assert send("start", batch_id=batch_id, envs=["Maze"], agent=agent, workers=0, **args)["ok"]
    return batch_id


def spec_of(handler: ControlHandler, batch_id: str) -> BatchSpec:
    queued = handler.queue.get(batch_id)
    assert queued is not None
    return queued.spec


def test_a_waiting_batch_gets_new_settings_and_keeps_the_others(handler: ControlHandler, send: Send) -> None:
    batch_id = start(send, repeat=3, seed=5, budget={"tokens": 7, "errors_in_a_row": 2})
    before = spec_of(handler, batch_id)
    changes: dict[str, Any] = {"concurrency": 3, "requests_per_minute": 30, "max_rounds": 10}
    for _ in range(2):
        (state,) = send("set", batch_id=batch_id, budget={"tokens": 9}, **changes)["result"]
        assert state["budget"] == {"cost": None, "tokens": 9, "errors_in_a_row": 2}
        assert (state["concurrency"], state["requests_per_minute"]) == (3, 30)
        assert state["limits"]["max_rounds"] == 10
    after = spec_of(handler, batch_id)
    assert after.plan() == before.plan()
    assert (after.workers, after.limits.max_duration_s) == (before.workers, before.limits.max_duration_s)


@pytest.mark.parametrize(
    ("op", "args", "code"),
    [
        ("set", {"max_rounds": 16}, "refused"),
        ("set", {"concurrency": 257}, "refused"),
        ("set", {"requests_per_minute": 0}, "bad_request"),
        ("set", {"script": ["quit"]}, "bad_request"),
        ("extend", {"repeat": 1}, "refused"),
        ("extend", {"attempts": 0}, "bad_request"),
        ("extend", {"repeat": 600_000}, "refused"),
    ],
)
def test_a_change_that_the_profile_or_the_numbers_forbid_changes_nothing(
    handler: ControlHandler, send: Send, op: str, args: dict[str, object], code: str
) -> None:
    batch_id = start(send, repeat=2, attempts=2)
    before = spec_of(handler, batch_id)
    assert send(op, batch_id=batch_id, **args)["error"]["code"] == code
    assert spec_of(handler, batch_id) == before


def test_what_has_ended_is_extended_by_a_new_batch_but_not_changed(handler: ControlHandler, send: Send) -> None:
    old = start(send, repeat=2, attempts=2, seed=5)
    handler.queue.set_status(old, "completed")
    assert send("set", batch_id=old, concurrency=2)["error"]["code"] == "not_running"
    for repeat, attempts, n_batches in ((2, 2, 1), (4, None, 2), (4, 2, 2), (None, 3, 3), (5, 4, 4), (5, 4, 4)):
        states = send("extend", batch_id=old, repeat=repeat, attempts=attempts)["result"]
        assert len(states) == n_batches
    assert [state["extends"] for state in states] == [None, old, old, old]
    assert {state["battery_id"] for state in states[1:]} == {old}
    planned = [each for state in states for each in spec_of(handler, state["batch_id"]).plan()]
    assert sorted((each.task_index, each.attempt, each.seed) for each in planned) == [
        (task, attempt, 5 + attempt) for task in range(5) for attempt in range(4)
    ]
    assert send("extend", batch_id=states[-1]["batch_id"], repeat=6, attempts=4)["result"][-1]["extends"] == old
    assert handler.queue.ended_batteries() == {}
    assert send("cancel", batch_id=old)["ok"], "the extensions belong to the run"
    assert {batch.status for batch in handler.queue.extensions([old])} == {"cancelled"}
    reopened = BatchQueue(handler.batch_player.workspace.data_dir)
    assert len(reopened.extensions([old])) == 4


def test_an_extension_plays_what_a_cancelled_batch_has_left(
    workspace: Workspace, handler: ControlHandler, send: Send
) -> None:
    old = start(send, repeat=3)
    RecordedEpisode(
        workspace.store, workspace.index, batch_id=old, task_index=1, attempt=0, episode_id=new_id()
    ).record_episode()
    handler.queue.set_status(old, "cancelled")
    for is_dry in (True, False, False):
        states = send("extend", batch_id=old, repeat=4, dry_run=is_dry)["result"]
        assert [(state["n_planned"], state["extends"]) for state in states] == [(3, None), (3, old)]
        assert len(handler.queue.extensions([old])) == (not is_dry)
    planned = spec_of(handler, states[1]["batch_id"]).plan()
    assert [each.task_index for each in planned] == [0, 2, 3]


def test_a_dry_run_is_refused_for_the_same_reasons_and_changes_nothing(handler: ControlHandler, send: Send) -> None:
    batch_id = start(send, repeat=2)
    before = spec_of(handler, batch_id)
    (state,) = send("set", batch_id=batch_id, concurrency=3, dry_run=True)["result"]
    assert (state["concurrency"], spec_of(handler, batch_id)) == (3, before)
    assert send("set", batch_id=batch_id, workers="ray", dry_run=True)["error"]["message"] == "Ray is not installed"
    assert send("extend", batch_id=batch_id, repeat=1, dry_run=True)["error"]["code"] == "refused"


def test_single_episodes_cannot_be_extended(handler: ControlHandler, send: Send) -> None:
    chosen = BatchSpec(env="Maze", agent="oracle", chosen=((0, 0),))
    handler.queue.add(QueuedBatch(batch_id=(batch_id := str(ULID())), battery_id=None, spec=chosen))
    assert "single episodes" in send("extend", batch_id=batch_id, repeat=9)["error"]["message"]


@given(
    numbers=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=2, max_size=5),
    task_index=st.integers(0, 5),
    named=st.booleans(),
)
def test_a_batch_and_its_extensions_play_every_episode_once(
    numbers: list[tuple[int, int]], task_index: int, named: bool
) -> None:
    (repeat, attempts), *later = numbers
    tasks = tuple(range(task_index, task_index + repeat))[::-1] if named else None
    first = tasks[0] if tasks else task_index
    played = [BatchSpec(env="Maze", agent="oracle", repeat=repeat, attempts=attempts, task_index=first, tasks=tasks)]
    for more_tasks, more_attempts in later:
        repeat = repeat if named else max(repeat, more_tasks)
        attempts = max(attempts, more_attempts)
        if (new := extension(played, repeat, attempts)) is not None:
            new.check_numbers()
            played.append(new)
    planned = [(each.task_index, each.attempt) for spec in played for each in spec.plan()]
    expected = [(task_index + task, attempt) for task in range(repeat) for attempt in range(attempts)]
    assert sorted(planned) == expected
    with pytest.raises(ConfigError, match="fewer"):
        extension(played, repeat, attempts - 1)


def test_the_results_of_a_batch_and_its_extension_are_one_row(
    workspace: Workspace, handler: ControlHandler, send: Send
) -> None:
    old = start(send)
    handler.queue.set_status(old, "completed")
    _, new = send("extend", batch_id=old, repeat=2)["result"]
    for task_index, state in enumerate(({"batch_id": old, "battery_id": None}, new)):
        ids = {name: state[name] for name in ("batch_id", "battery_id")}
        RecordedEpisode(
            workspace.store, workspace.index, **ids, task_index=task_index, attempt=0, episode_id=new_id()
        ).record_episode()
    for batch_id, n in ((old, 2), (new["batch_id"], 1)):
        (row,) = send("results", batch_id=batch_id)["result"]["rows"]
        assert row["n"] == n
    found = send("episodes", query=f"battery:{old}")["result"]
    assert {each["task_index"] for each in found} == {0, 1}


class Played:
    """A batch of four tasks that is played, with a call after each stored episode."""

    def __init__(self, workspace: Workspace, handler: ControlHandler, monkeypatch: pytest.MonkeyPatch) -> None:
        self.items: list[BatchItem] = []
        self.results: list[BatchResult] = []
        self.after: dict[int, Callable[[], object]] = {}
        self.on_item: Callable[[BatchItem], object] = lambda item: None
        self.on_result: Callable[[BatchResult], object] = lambda result: None
        self.records: list[EpisodeRecord] = []
        self.player = BatchPlayer(
            workspace,
            handler.queue,
            BatchCallbacks(on_item=self._note, on_result=self._end, on_busy=lambda _: None),
            place=place_spec,
        )
        msgspec.structs.force_setattr(handler, "batch_player", self.player)
        insert = workspace.index.insert

        def on_stored(record: EpisodeRecord, content: EpisodeRecord | None) -> None:
            insert(record, content)
            self.records.append(record)
            self.after.pop(len(self.records), lambda: None)()

        monkeypatch.setattr(workspace.index, "insert", on_stored)

    def _note(self, item: BatchItem) -> None:
        self.items.append(item)
        self.on_item(item)

    def _end(self, result: BatchResult) -> None:
        self.results.append(result)
        self.on_result(result)

    def play(self) -> None:
        self.player.start()
        self.player.drain()
        assert self.player.join(60)
        self.player.storage.close()


@pytest.fixture
def played(workspace: Workspace, handler: ControlHandler, monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(workspace, handler, monkeypatch)


def test_a_playing_batch_goes_on_with_its_new_settings_and_plans(
    handler: ControlHandler, send: Send, played: Played
) -> None:
    batch_id, replies = start(send, repeat=4), list[Any]()
    played.after[1] = lambda: replies.append(send("set", batch_id=batch_id, concurrency=2, max_rounds=14))
    played.after[3] = lambda: replies.append(send("extend", batch_id=batch_id, repeat=5, attempts=2))
    played.play()
    assert [reply["ok"] for reply in replies] == [True, True]
    assert sorted((record.task_index, record.attempt) for record in played.records) == [
        (task, attempt) for task in range(5) for attempt in range(2)
    ]
    (result,) = played.results
    assert (result.status, result.n_episodes, result.n_planned) == ("completed", 10, 10)
    assert (played.records[0].limits, played.records[-1].limits) == ("", "14 rounds")
    ended = handler.queue.get(batch_id)
    assert ended is not None
    assert (ended.status, ended.n_done, ended.spec.concurrency) == ("completed", 10, 2)
    progress = [item.n_planned for item in played.items if isinstance(item, BatchProgress)]
    assert progress == sorted(progress)


@pytest.mark.parametrize("command", ["pause", "cancel"])
def test_a_command_between_two_settings_is_not_lost(
    handler: ControlHandler, send: Send, played: Played, command: str
) -> None:
    batch_id = start(send, repeat=2)
    played.after[2] = lambda: send("extend", batch_id=batch_id, repeat=4)
    left = [command]

    def on_item(item: BatchItem) -> None:
        if isinstance(item, BatchProgress) and item.n_done == 2 and left:  # the last item with the old plan
            assert send(left.pop(), batch_id=batch_id)["ok"]
        elif isinstance(item, BatchProgress) and item.paused:
            assert send("resume", batch_id=batch_id)["ok"]

    played.on_item = on_item
    played.play()
    assert not left
    paused = [item for item in played.items if isinstance(item, BatchProgress) and item.paused]
    ended = handler.queue.get(batch_id)
    assert ended is not None
    expected = (True, "completed", 4) if command == "pause" else (False, "cancelled", 2)
    assert (bool(paused), ended.status, ended.n_done) == expected
    assert [result.status for result in played.results] == [ended.status]


def test_new_settings_between_two_parts_of_adaptive_repeats_are_those_of_the_next_part(
    handler: ControlHandler, send: Send, played: Played
) -> None:
    battery_id, replies = start(send, repeat=40, until_width=0.01), list[Any]()

    def on_result(result: BatchResult) -> None:
        if not replies:
            replies.append(send("set", batch_id=result.batch_id, concurrency=2))

    played.on_result = on_result
    played.play()
    assert [reply["ok"] for reply in replies] == [True]
    parts = [batch.spec for batch in handler.queue.in_battery(battery_id)]
    assert [(spec.task_index, spec.repeat, spec.concurrency) for spec in parts] == [(0, 32, 2), (32, 8, 2)]
    assert sorted(record.task_index for record in played.records) == list(range(40))


def test_what_a_batch_has_used_of_its_budget_counts_after_a_change(
    handler: ControlHandler, send: Send, played: Played, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(task_index: int, step: int) -> None:
        raise ValueError(f"task {task_index}")

    install(agents={"hooked": "tests.support.hooked_agent:HookedAgent"})
    monkeypatch.setattr(HookedAgent, "before_act", staticmethod(fail))
    batch_id = start(send, "hooked", repeat=9, concurrency=1, budget={"errors_in_a_row": 9})
    played.after[2] = lambda: send("set", batch_id=batch_id, budget={"errors_in_a_row": 4})
    played.play()
    ended = handler.queue.get(batch_id)
    assert ended is not None
    assert (ended.status, len(played.records)) == ("interrupted", 4)
    assert (ended.interruption or "").startswith("4 episodes in a row ended with an error")


def test_the_lower_rate_limit_of_profile_and_batch_holds() -> None:
    limits = {"ollama": RateLimit(requests_per_minute=60, concurrent_requests=2)}
    agent = AgentSettings(mode="api", local_fallback="m", rate_limits=limits)
    spec = BatchSpec(env="Maze", agent="react", model="m", requests_per_minute=90, concurrent_requests=1)
    batch = resolve_spec(Profile(id="p", agent=agent), spec)
    expected = {
        "gateway": RateLimit(requests_per_minute=90, concurrent_requests=1),
        "ollama": RateLimit(requests_per_minute=60, concurrent_requests=1),
    }
    assert batch.rate_limits == expected
    assert batch.setup.models is not None
    assert batch.setup.models.rate_limits == expected
