"""The memory limit of all episodes: messages are dropped with bounded work, and what is not kept is counted."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

from agentgym_tui.state.episode import StepState
from agentgym_tui.state.run_store import RunStore
from tests.support.console.samples import ended, episode_id, live, span, span_closed, started, timestep, token

MAX_BYTES = 800_000
N_RUNNING, N_STEPS = 8, 60
OBSERVATION = [{"role": "user", "content": "x" * 3_000}]


class VisitedSteps(list[StepState]):
    """Steps of an episode that count how often one is read."""

    n_visits = 0

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401 - as of ``list``
        type(self).n_visits += 1
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[StepState]:
        type(self).n_visits += len(self)
        return super().__iter__()


def _running_store(n_running: int, max_bytes: int = MAX_BYTES) -> RunStore:
    store = RunStore(max_bytes=max_bytes)
    store.apply_events([live(started(n)) for n in range(n_running)])
    for each in store.episodes.values():
        each.steps = VisitedSteps()
    return store


def test_the_work_for_a_step_does_not_grow_with_the_number_of_steps() -> None:
    store, visits = _running_store(N_RUNNING), list[int]()
    for index in range(N_STEPS):
        before = VisitedSteps.n_visits
        for n in range(N_RUNNING):
            store.apply_events([live(timestep(n, index, observation=OBSERVATION))])
        visits.append(VisitedSteps.n_visits - before)
    assert len(store.episodes) == N_RUNNING
    assert store.episodes[episode_id(0)].steps[-2].left_out
    assert max(visits) <= 30 * N_RUNNING, visits


def test_the_memory_in_use_is_the_sum_of_the_episodes_and_within_its_limit() -> None:
    store = _running_store(N_RUNNING)
    for index in range(N_STEPS):
        for n in range(N_RUNNING):
            closed = span_closed(span(index), n=n, seq=1_000 + index)
            store.apply_events([live(timestep(n, index, observation=OBSERVATION), closed)])
            sizes = [each.size for each in store.episodes.values()]
            assert store.episode_registry.n_bytes == sum(sizes) <= MAX_BYTES


def test_a_step_that_arrives_late_stands_in_its_place_before_steps_without_messages() -> None:
    store = _running_store(1, max_bytes=80_000)
    for index in (*range(5), *range(6, 40)):
        store.apply_events([live(timestep(0, index, observation=OBSERVATION))])
    store.apply_events([live(timestep(0, 5, observation=OBSERVATION))])
    (played,) = store.episodes.values()
    assert [each.index for each in played.steps] == list(range(40))
    assert not played.steps[0].observation and played.steps[0].left_out == 3
    assert played.steps[5].observation
    assert played.steps[-1].observation
    assert played.rounds == 40


def test_items_of_a_running_episode_that_is_not_kept_count_as_missing() -> None:
    store = RunStore(max_episodes=2)
    store.apply_events([live(started(0)), live(started(1)), live(started(2))])
    assert list(store.episodes) == [episode_id(1), episode_id(2)]
    store.apply_events([live(timestep(0, 0), token(0, 2), token(0, 3))])
    assert store.episode_registry.n_missing == 3
    store.apply_events([live(ended(1, seq=1)), live(started(3)), live(timestep(1, 0, seq=2))])
    assert list(store.episodes) == [episode_id(2), episode_id(3)]
    assert store.episode_registry.n_missing == 3


def test_an_episode_that_is_not_kept_is_freed_although_its_batch_was_looked_at() -> None:
    store = RunStore(max_episodes=1)
    store.apply_events([live(started(0))])
    (played,) = store.episodes_of(store.episodes[episode_id(0)].batch_id)
    store.apply_events([live(started(1))])
    assert list(store.episodes) == [episode_id(1)]
    assert gc.get_referrers(played) == []
