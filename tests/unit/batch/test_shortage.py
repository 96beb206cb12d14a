"""What interrupts a batch: files, memory or threads that run out, and budgets of cost, tokens and errors in a row."""

from __future__ import annotations

import asyncio
import gc
import itertools
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from ulid import ULID

from runner.batch.batch import Batch
from runner.batch.observers import BatchItem, EpisodeStored
from runner.batch.result import BatchResult
from runner.batch.spec import BatchRequest, BatchSpec, ResolvedBatch, resolve_batch, unpriced_note
from runner.batch.stopping import BudgetWatch
from runner.batch.workspace import Workspace
from runner.config import AgentSettings, Profile
from runner.config.profile import EndpointConfig, Price
from runner.errors import ConfigError
from runner.events.live import EpisodeStarted
from runner.inference.profile_models import Models
from runner.node import batch_player
from runner.node.batch_player import BatchCallbacks, BatchPlayer
from runner.node.batch_queue import BatchQueue, QueuedBatch
from runner.store import episode_store
from runner.types import BatchProgress, Budget, Limits, Outcome, StepResult, Tokens, Usage
from runner.util.files import replace_file
from tests.conftest import Install
from tests.support.batches import place_spec, resolved_batch
from tests.support.episodes import episode_header, finished_record, make_step, make_trajectory
from tests.support.fakes import Counter, UpAgent
from tests.support.waiting_batch import wait_until

REPEAT = 8


class Starving(Counter):
    """Raises ``error`` in each task from index 3 on."""

    error: BaseException | None = None

    def step(self, action: Any) -> Any:  # noqa: ANN401
        if self.task_index >= 3 and self.error is not None:
            raise self.error
        return super().step(action)


class Stuck(Counter):
    """No step ends: the first task blocks its thread, so its slot is lost; the others end with their time limit."""

    let_go = threading.Event()

    async def step(self, action: Any) -> Any:  # type: ignore[override]  # noqa: ANN401
        if self.task_index == 0:
            self.let_go.wait(60)
        await asyncio.Event().wait()


@pytest.fixture
def workspace(workspace: Workspace, install: Install) -> Iterator[Workspace]:
    envs = {name: f"{__name__}:{name}" for name in ("Starving", "Stuck", "Flaky")}
    install(envs=envs, agents={"up": "tests.support.fakes:UpAgent", "spender": f"{__name__}:Spender"})
    Stuck.let_go = threading.Event()
    yield workspace
    Starving.error, Flaky.broken = None, frozenset()
    Stuck.let_go.set()


def make_batch(workspace: Workspace, concurrency: int = 1, **rest: Any) -> Batch:  # noqa: ANN401
    spec = resolved_batch(env="Starving", agent="up", repeat=REPEAT, concurrency=concurrency)
    return Batch(spec, workspace, **rest)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(24, "Too many open files"), "no more open files (the limit is "),
        (MemoryError(), "no more memory; free memory, or lower the concurrency"),
    ],
)
def test_a_shortage_stores_an_error_and_interrupts_the_batch_which_then_plays_the_task_again(
    workspace: Workspace, error: BaseException, text: str
) -> None:
    Starving.error = error
    result = make_batch(workspace).run()
    assert (result.status, result.interrupted_by) == ("interrupted", "resources")
    assert (result.interruption or "").startswith(text)
    assert [episode.outcome for episode in result.episodes] == [Outcome.SUCCESS] * 3 + [Outcome.ERROR]
    stored = [workspace.store.load(episode.episode_id) for episode in result.episodes]
    assert [record.error.type for record in stored if record.error] == ["resources"]
    Starving.error = None
    resumed = make_batch(workspace, 4, batch_id=result.batch_id, earlier_episodes=stored).run()
    assert (resumed.status, resumed.interruption, resumed.interrupted_by) == ("completed", None, None)
    assert sorted(episode.task_index for episode in resumed.episodes) == list(range(REPEAT))
    assert resumed.outcomes == {"success": REPEAT}


def test_an_episode_that_no_file_was_left_for_is_stored_from_the_spare_files(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[Path] = []

    def fail_once(path: Path, data: bytes) -> None:
        if not failures:
            failures.append(path)
            raise OSError(24, "Too many open files")
        replace_file(path, data)

    monkeypatch.setattr(episode_store, "replace_file", fail_once)
    result = make_batch(workspace).run()
    assert (result.status, result.interrupted_by, result.problems) == ("interrupted", "resources", [])
    (episode,) = result.episodes
    assert failures == [workspace.store.path(result.batch_id, episode.episode_id)]
    assert workspace.store.load(episode.episode_id).outcome is Outcome.SUCCESS
    assert [path.suffix for path in failures[0].parent.iterdir()] == [".json"]


def test_an_episode_that_cannot_be_stored_from_the_spare_files_either_is_kept_in_memory(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, data: bytes) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(episode_store, "replace_file", fail)
    items: list[BatchItem] = []
    batch = make_batch(workspace, observers=[items.append])
    result = batch.run()
    assert (result.status, result.interrupted_by, len(result.problems)) == ("interrupted", "resources", 1)
    (unstored,) = batch.unstored
    assert [unstored.stored.record.episode_id] == [episode.episode_id for episode in result.episodes]
    assert unstored.stored.end.outcome is Outcome.SUCCESS
    assert not any(isinstance(item, EpisodeStored) for item in items), "the end was shown before it was stored"


@pytest.mark.parametrize(("error_number", "n_done"), [(24, 1), (28, REPEAT)])
def test_a_node_stores_what_it_could_not_store_and_continues_only_after_a_full_disk(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, error_number: int, n_done: int
) -> None:
    frees = threading.Event()

    def fail_during_the_batch(path: Path, data: bytes) -> None:
        if not frees.is_set():
            raise OSError(error_number, "no room")
        replace_file(path, data)

    ends: dict[str, Outcome] = {}
    n_done_unstored: list[int] = []

    def on_item(item: BatchItem) -> None:
        if isinstance(item, EpisodeStored):
            assert workspace.store.path(queued.batch_id, item.end.episode_id).exists()
            ends[item.end.episode_id] = item.end.outcome
        if isinstance(item, BatchProgress) and item.interrupted and not frees.is_set():
            n_done_unstored.append(item.n_done)
            frees.set()

    monkeypatch.setattr(episode_store, "replace_file", fail_during_the_batch)
    spec = BatchSpec(env="Starving", agent="up", repeat=REPEAT)
    queued = QueuedBatch(batch_id=str(ULID()), battery_id=None, spec=spec)
    batches = BatchQueue(workspace.data_dir)
    batches.add(queued)
    callbacks = BatchCallbacks(on_item=on_item, on_result=lambda _: None, on_busy=lambda _: None)
    runner = BatchPlayer(workspace, batches, callbacks, place=place_spec)
    runner.start()
    status = "completed" if n_done == REPEAT else "interrupted"
    wait_until(lambda: (found := batches.get(queued.batch_id)) is not None and found.status == status)
    runner.stop()
    assert runner.join(10)
    ended = batches.get(queued.batch_id)
    assert ended is not None and ended.n_done == n_done
    workspace.index.reconcile()
    assert workspace.n_finished(queued.batch_id) == n_done
    assert list(ends.values()) == [Outcome.SUCCESS] * n_done
    assert n_done_unstored == [0]


def test_the_reasons_of_interruptions_are_kept_and_reported(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[str | None] = []

    def on_item(item: BatchItem) -> None:
        reported.extend([item.interruption] if isinstance(item, BatchProgress) else [])

    def refuse(spec: BatchSpec) -> ResolvedBatch:
        raise ConfigError(f"task {spec.task_index} has no server\x1b")

    specs = [BatchSpec(env="Starving", agent="up", task_index=index) for index in range(3)]
    queued = [QueuedBatch(batch_id=str(ULID()), battery_id=None, spec=spec) for spec in specs]
    batches = BatchQueue(workspace.data_dir)
    batches.add(*queued)
    callbacks = BatchCallbacks(on_item=on_item, on_result=lambda _: None, on_busy=lambda _: None)
    monkeypatch.setattr(batch_player, "RETRY_S", 0.01)
    runner = BatchPlayer(workspace, batches, callbacks, place=refuse)
    runner.start()
    wait_until(lambda: len(reported) == 3)
    runner.stop()
    assert runner.join(10)
    assert reported == [f"task {index} has no server␛" for index in range(3)]
    assert [batch.interruption for batch in BatchQueue(workspace.data_dir).with_status("interrupted")] == reported


def fail_from(n_started: int, error: BaseException) -> Callable[[threading.Thread], None]:
    """Return a replacement of ``Thread.start`` that fails for all threads of episodes but the first ones."""
    start = threading.Thread.start
    numbers = itertools.count()

    def start_or_fail(thread: threading.Thread) -> None:
        if thread.name == "episode" and next(numbers) >= n_started:
            raise error
        return start(thread)

    return start_or_fail


@pytest.mark.parametrize(
    ("n_started", "n_kept", "status"), [(3, 1, "completed"), (1, 1, "completed"), (0, 0, "interrupted")]
)
def test_a_batch_plays_with_a_third_of_the_workers_that_the_system_starts(
    workspace: Workspace,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    n_started: int,
    n_kept: int,
    status: str,
) -> None:
    monkeypatch.setattr(threading.Thread, "start", fail_from(n_started, RuntimeError("can't start new thread")))
    gc.collect()  # closes what earlier tests left open
    n_before = len(list(Path("/dev/fd").iterdir()))
    result = make_batch(workspace, 4).run()
    assert (result.status, result.n_episodes) == (status, REPEAT if n_started else 0)
    assert f"concurrency lowered from 4 to {n_kept}: no more threads; raise the limits" in caplog.text
    if not n_started:
        assert (result.interruption or "").startswith("concurrency lowered from 4 to 0: no more threads")
        assert len(list(Path("/dev/fd").iterdir())) == n_before


def test_a_lost_slot_that_cannot_be_replaced_ends_the_batch_while_others_play(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(threading.Thread, "start", fail_from(3, RuntimeError("can't start new thread")))
    limits = Limits(max_duration_s=0.3)
    spec = resolved_batch(env="Stuck", agent="up", repeat=200, concurrency=3, limits=limits)
    result = Batch(spec, workspace, grace_s=0.2, step_grace_s=0.05).run()
    assert (result.status, result.interrupted_by) == ("interrupted", "resources")
    text = r"(a lost slot|\d lost slots) could not be replaced: no more threads; raise the limits"
    assert re.match(text, result.interruption or "")
    assert re.search(text, caplog.text)
    assert "concurrency lowered" not in caplog.text


N_TASKS = 6


class Flaky(Counter):
    """Raises an error in the tasks of ``broken``; a step of any other task is the last one."""

    broken: frozenset[int] = frozenset()

    def step(self, action: Any) -> StepResult:  # noqa: ANN401
        if self.task_index in self.broken:
            raise ValueError("the board \x1b[2J fell\nover")
        return [], 1.0, True


class Spender(UpAgent):
    """Uses 10 tokens at a cost of 0.5 for each answer."""

    last_usage = Usage(endpoint="e", model="m", tokens=Tokens(prompt=7, completion=3), cost=0.5)


def play(workspace: Workspace, budget: Budget | None, **rest: Any) -> BatchResult:  # noqa: ANN401
    batch = resolved_batch(env="Flaky", agent="spender", repeat=N_TASKS, budget=budget, models=rest.get("models"))
    return Batch(batch, workspace, **rest).run()


@pytest.mark.parametrize(
    ("budget", "n_played", "reason"),
    [
        (Budget(cost=1.2), 3, "its episodes cost 1.50 USD, the budget is 1.20 USD"),
        (Budget(tokens=1, cost=100.0), 1, "its episodes used 10 tokens, the budget is 1"),
    ],
)
def test_a_used_up_budget_interrupts_the_batch_and_a_resume_plays_the_rest_with_a_budget_of_its_own(
    workspace: Workspace, budget: Budget, n_played: int, reason: str
) -> None:
    items: list[BatchItem] = []
    result = play(workspace, budget, observers=[items.append])
    assert (result.status, result.interrupted_by, result.interruption) == ("interrupted", "budget", reason)
    assert [episode.outcome for episode in result.episodes] == [Outcome.SUCCESS] * n_played
    last = [item for item in items if isinstance(item, BatchProgress)][-1]
    assert (last.interrupted, last.interruption, last.n_done) == (True, reason, n_played)
    stored = [workspace.store.load(episode.episode_id) for episode in result.episodes]
    again = play(workspace, budget, batch_id=result.batch_id, earlier_episodes=stored)
    assert again.n_episodes == min(N_TASKS, 2 * n_played)
    rest = play(
        workspace,
        None,
        batch_id=result.batch_id,
        earlier_episodes=[workspace.store.load(episode.episode_id) for episode in again.episodes],
    )
    assert (rest.status, sorted(episode.task_index for episode in rest.episodes)) == ("completed", list(range(N_TASKS)))


@pytest.mark.parametrize("budget", [Budget(tokens=10 * N_TASKS), Budget(cost=0.5 * N_TASKS)])
def test_a_batch_that_ends_within_its_budget_or_just_reaches_it_is_completed(
    workspace: Workspace, budget: Budget
) -> None:
    result = play(workspace, budget)
    assert (result.status, result.interruption, result.n_episodes) == ("completed", None, N_TASKS)
    assert (result.tokens, result.cost) == (Tokens(prompt=7 * N_TASKS, completion=3 * N_TASKS), 0.5 * N_TASKS)


def test_only_errors_in_a_row_interrupt_the_batch_and_their_text_is_safe(workspace: Workspace) -> None:
    Flaky.broken = frozenset({0, 2, 3, 4})
    result = play(workspace, Budget(errors_in_a_row=3))
    assert (result.status, result.interrupted_by, result.n_episodes) == ("interrupted", "budget", 5)
    reason = result.interruption or ""
    assert reason.startswith("3 episodes in a row ended with an error; the last one: ")
    assert "fell" in reason
    assert reason.isprintable()
    Flaky.broken = frozenset({0, 2, 4, 5})
    assert play(workspace, Budget(errors_in_a_row=3)).status == "completed"


def test_parallel_episodes_that_run_when_the_budget_is_used_up_end_as_interrupted(workspace: Workspace) -> None:
    batch = resolved_batch(env="Flaky", agent="spender", repeat=40, concurrency=4, budget=Budget(tokens=20))
    result = Batch(batch, workspace).run()
    assert result.status == "interrupted"
    assert 2 <= result.outcomes["success"] <= 5
    assert set(result.outcomes) <= {"success", "interrupted"}


def test_a_budget_of_cost_without_prices_is_refused(workspace: Workspace) -> None:
    request = BatchRequest(env="Maze", budget=Budget(cost=1.0))
    with pytest.raises(ConfigError, match=r"needs prices; set agent\.price .*, or give a budget of tokens"):
        resolve_batch(Profile(id="p"), request)
    priced = Profile(id="p", agent=AgentSettings(price={"m": Price(prompt_per_mtok=1.0)}))
    assert resolve_batch(priced, request).spec.budget == Budget(cost=1.0)
    assert resolve_batch(Profile(id="p"), msgspec.structs.replace(request, agent="oracle")).spec.budget is not None


@pytest.mark.parametrize(
    ("settings", "currency"),
    [(AgentSettings(price={"m": Price()}, currency="EUR"), "EUR"), (AgentSettings(currency="EUR"), None)],
)
def test_episodes_of_a_profile_with_prices_name_its_currency(
    workspace: Workspace, settings: AgentSettings, currency: str | None
) -> None:
    started: list[BatchItem] = []
    result = play(workspace, None, models=Models(settings, {}), observers=[started.append])
    stored = [workspace.store.load(episode.episode_id) for episode in result.episodes]
    assert [record.currency for record in stored] == [currency] * N_TASKS
    assert {item.currency for item in started if isinstance(item, EpisodeStarted)} == {currency}


def test_the_reason_has_currency_and_all_digits_of_a_small_cost_and_the_episodes_without_one() -> None:
    header = episode_header()
    record = finished_record(header, make_trajectory(header, [make_step(0, cost=0.000044)]))
    reason = BudgetWatch(Budget(cost=0.00003), "EUR").add(record)
    assert reason == "its episodes cost 0.000044 EUR, the budget is 0.00003 EUR"
    watch, reason = BudgetWatch(Budget(cost=1.0)), None
    for costs in ([None, 0.4], [None], [], [0.6]):
        header = episode_header()
        steps = [make_step(n, cost=cost, tokens=Tokens(prompt=5)) for n, cost in enumerate(costs)]
        steps.append(make_step(len(costs), tokens=None))  # no answer
        assert reason is None
        reason = watch.add(finished_record(header, make_trajectory(header, steps)))
    unpriced = "without 2 episodes that had answers without a price"
    assert reason == f"its episodes cost 1.00, {unpriced}, the budget is 1.00"


def test_models_without_a_price_are_named_before_the_batch_starts() -> None:
    endpoints = (EndpointConfig(url="http://h/v1", model="other\x1b"), EndpointConfig(url="http://i/v1"))
    settings = AgentSettings(price={"m": Price()}, endpoints=endpoints, local_fallback="local")
    cost = Budget(cost=1.0)
    note = unpriced_note(cost, "m", settings)
    assert note is not None
    assert note.startswith("no price for other␛, local: such answers count as 0 in the budget of cost")
    profile = Profile(id="p", agent=settings)
    resolved = resolve_batch(profile, BatchRequest(env="Maze", model="m", budget=cost))
    assert resolved.warning == note
    priced = AgentSettings(price={"m": Price()}, local_fallback=None)
    assert unpriced_note(cost, "m", priced) is None
    assert unpriced_note(cost, None, settings) is None
    assert unpriced_note(Budget(tokens=1), "m", settings) is None


@pytest.mark.parametrize("between", [Outcome.CANCELLED, Outcome.INTERRUPTED])
def test_an_unfinished_episode_neither_continues_nor_ends_a_row_of_errors(between: Outcome) -> None:
    watch = BudgetWatch(Budget(errors_in_a_row=2))
    header = episode_header()
    reasons = [
        watch.add(finished_record(header, make_trajectory(header, [], outcome=outcome)))
        for outcome in (Outcome.ERROR, between, between, Outcome.ERROR)
    ]
    assert [reason is None for reason in reasons] == [True, True, True, False]
