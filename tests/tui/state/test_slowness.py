"""The present bottleneck, by the live items that a console receives."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from agentgym_tui.presenters.bottleneck import METRICS_S, WAIT_S, present_bottleneck
from agentgym_tui.state.normalize import MAX_VALUE
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.state.servers import WINDOW_S
from runner.events.live import ModelMetrics
from runner.types import Phases
from tests.support.console.live_items import (
    START,
    FakeClock,
    episode_id,
    heartbeat,
    live,
    model_health,
    progress,
    started,
    timestep,
    token,
)

WAITING = Phases(model=4.0, decode=0.5, env=0.1, own=0.1)


def metrics(**fields: object) -> ModelMetrics:
    values = {"at": START, "endpoint": "lab", "server": "vllm", "waiting": 12.0, "kv_cache": 0.97, **fields}
    return msgspec.convert(values, ModelMetrics)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> RunStore:
    """Return a store with a running batch that uses a model."""
    store = RunStore(now=clock)
    store.apply_events([live(started(model="small", agent="react"), progress())])
    return store


def play(store: RunStore, phases: Phases | None, index: int = 0, **fields: object) -> None:
    store.apply_events([live(timestep(0, index, phases=phases, endpoint="lab", **fields))])


def test_without_steps_nothing_is_named(store: RunStore) -> None:
    assert present_bottleneck(store).cause == "none"
    play(store, None)
    assert present_bottleneck(store).sentence == ""


def test_a_queue_at_the_server_is_named_while_its_metrics_are_new(store: RunStore, clock: FakeClock) -> None:
    play(store, WAITING)
    store.apply_events([live(metrics())])
    assert present_bottleneck(store).sentence == "waiting for the model: 12 requests queued at vLLM, KV cache 97%"
    clock.at += METRICS_S + 1
    assert present_bottleneck(store).cause == "model"


def test_only_new_steps_count_unless_there_are_few(store: RunStore, clock: FakeClock) -> None:
    for index in range(20):
        play(store, Phases(env=9.0), index)
    clock.at += WINDOW_S + 1
    assert present_bottleneck(store).cause == "environment"
    for index in range(20, 26):
        play(store, Phases(own=1.0), index)
    assert present_bottleneck(store).cause == "own"


def test_an_endpoint_that_fails_is_named_while_no_other_answers(store: RunStore, clock: FakeClock) -> None:
    store.apply_events([live(model_health("lab", "down", "no connection: refused"))])
    bottleneck = present_bottleneck(store)
    assert bottleneck.sentence == "an endpoint fails: lab (no connection: refused); no other one answers"
    play(store, Phases(env=9.0))
    assert present_bottleneck(store).cause == "environment"
    clock.at += 30
    assert present_bottleneck(store).cause == "endpoint"


def test_a_request_that_waits_long_counts_before_its_step_ends(store: RunStore, clock: FakeClock) -> None:
    request = token(step=0, text="", endpoint="lab")
    store.apply_events([live(heartbeat(), request)])
    clock.at += WAIT_S - 1
    assert present_bottleneck(store).cause == "none"
    clock.at += 31
    expected = "waiting for the model for 100% of the time (35 s per step); its server does not show why"
    assert present_bottleneck(store).sentence == expected
    store.apply_events([live(token(seq=2, step=0, text="I go", endpoint="lab", at=START + timedelta(seconds=35)))])
    assert present_bottleneck(store).cause == "none"


def test_a_batch_that_may_send_no_request_waits_for_the_rate_limit(store: RunStore, clock: FakeClock) -> None:
    store.apply_events([live(model_health("lab", "up", None, requests_per_minute=3))])
    for index in range(3):
        play(store, Phases(model=4.0), index)
    assert present_bottleneck(store).cause == "model"
    clock.at += WAIT_S + 1
    bottleneck = present_bottleneck(store)
    assert (bottleneck.cause, bottleneck.sentence) == (
        "own",
        "waiting for the rate limit of lab: at most 3 requests/min",
    )
    store.apply_events([live(token(seq=4, step=3, text="", endpoint="lab"))])
    assert present_bottleneck(store).cause == "model"


def test_a_batch_without_a_model_waits_for_no_endpoint(clock: FakeClock) -> None:
    store = RunStore(now=clock)
    store.apply_events([live(started(), progress(), model_health("lab", "down"), metrics())])
    assert present_bottleneck(store).cause == "none"
    store.apply_events([live(timestep(0, 0, phases=Phases(env=1.0, own=0.1)))])
    assert present_bottleneck(store).cause == "environment"


def test_steps_of_another_batch_do_not_count(store: RunStore) -> None:
    other = started(1, batch_id="01J0000000AAAAAAAAAAA00009", model="small")
    step = timestep(1, 0, phases=Phases(env=9.0), at=START + timedelta(seconds=9), episode_id=episode_id(1))
    store.apply_events([live(other, step)])
    assert [each.batch_id for each in store.endpoint_registry.steps_of(other.batch_id)]
    play(store, Phases(own=9.0))
    batch = store.batch_registry.active()
    assert batch is not None
    expected = "own" if batch.batch_id != other.batch_id else "environment"
    assert present_bottleneck(store).cause == expected


def test_numbers_from_the_bus_can_always_be_shown(store: RunStore) -> None:
    play(store, Phases(model=1e308, env=-5.0, own=1e308))
    store.apply_events([live(metrics(waiting=1e308, kv_cache=-1.0, server="\x1b[31m" * 500, tokens_per_s=1e300))])
    (step,) = store.episodes[episode_id(0)].steps
    assert step.phases == Phases(model=MAX_VALUE, env=0.0, own=MAX_VALUE)
    assert len(present_bottleneck(store).sentence) < 400
