"""Budgets that interrupt a batch: its cost, its tokens, and errors in a row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from runner.batch.batch import Batch
from runner.batch.observers import BatchItem
from runner.batch.result import BatchResult
from runner.batch.spec import BatchRequest, resolve_batch, unpriced_note
from runner.batch.stopping import BudgetWatch
from runner.batch.workspace import Workspace
from runner.config import AgentSettings, Profile
from runner.config.profile import EndpointConfig, Price
from runner.errors import ConfigError
from runner.events.live import EpisodeStarted
from runner.inference.profile_models import Models
from runner.types import BatchProgress, Budget, Outcome, StepResult, Tokens, Usage
from tests.conftest import Install
from tests.support.batches import resolved_batch
from tests.support.episodes import episode_header, finished_record, make_step, make_trajectory
from tests.support.fakes import Counter, UpAgent

REPEAT = 6


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


@pytest.fixture
def workspace(workspace: Workspace, install: Install) -> Iterator[Workspace]:
    install(envs={"Flaky": f"{__name__}:Flaky"}, agents={"spender": f"{__name__}:Spender"})
    yield workspace
    Flaky.broken = frozenset()


def play(workspace: Workspace, budget: Budget | None, **rest: Any) -> BatchResult:  # noqa: ANN401
    batch = resolved_batch(env="Flaky", agent="spender", repeat=REPEAT, budget=budget, models=rest.get("models"))
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
    assert again.n_episodes == min(REPEAT, 2 * n_played)
    rest = play(
        workspace,
        None,
        batch_id=result.batch_id,
        earlier_episodes=[workspace.store.load(episode.episode_id) for episode in again.episodes],
    )
    assert (rest.status, sorted(episode.task_index for episode in rest.episodes)) == ("completed", list(range(REPEAT)))


@pytest.mark.parametrize("budget", [Budget(tokens=10 * REPEAT), Budget(cost=0.5 * REPEAT)])
def test_a_batch_that_ends_within_its_budget_or_just_reaches_it_is_completed(
    workspace: Workspace, budget: Budget
) -> None:
    result = play(workspace, budget)
    assert (result.status, result.interruption, result.n_episodes) == ("completed", None, REPEAT)
    assert (result.tokens, result.cost) == (Tokens(prompt=7 * REPEAT, completion=3 * REPEAT), 0.5 * REPEAT)


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
    assert [record.currency for record in stored] == [currency] * REPEAT
    assert {item.currency for item in started if isinstance(item, EpisodeStarted)} == {currency}


def test_the_reason_has_the_currency_and_all_digits_of_a_small_cost() -> None:
    header = episode_header()
    record = finished_record(header, make_trajectory(header, [make_step(0, cost=0.000044)]))
    reason = BudgetWatch(Budget(cost=0.00003), "EUR").add(record)
    assert reason == "its episodes cost 0.000044 EUR, the budget is 0.00003 EUR"


def test_the_reason_counts_the_episodes_whose_cost_is_unknown() -> None:
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
