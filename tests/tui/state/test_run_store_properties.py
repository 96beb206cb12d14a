from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentgym_tui.safe_text import has_unsafe_chars
from agentgym_tui.state.episode import Episode
from agentgym_tui.state.run_store import RunStore
from runner.events.control import NodeHealth, NodeList
from runner.subscribe.messages import SubscriptionItem
from tests.support.console.bus_messages import NODE_HEALTHS, NODE_LISTS, SUBSCRIPTION_ITEMS, TEXTS
from tests.support.console.samples import FakeClock, episode, hostile_episode, row
from tests.support.console.store_lines import MAX_BYTES, MAX_EPISODES, all_lines, check_bounds

StoreInput = Sequence[SubscriptionItem] | NodeList | NodeHealth | Episode | float | str
INPUTS: st.SearchStrategy[StoreInput] = st.one_of(
    st.lists(SUBSCRIPTION_ITEMS, max_size=4),
    NODE_LISTS,
    NODE_HEALTHS,
    st.builds(hostile_episode, st.integers(0, 3), TEXTS, outcome=st.sampled_from(["error", None])),
    st.builds(episode, st.integers(0, 3), st.integers(0, 3), outcome=st.sampled_from(["success", None])),
    st.floats(0, 20),
    TEXTS,
)


@pytest.mark.long
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(INPUTS, max_size=8))
def test_no_bus_message_breaks_the_store_its_bounds_or_a_view(inputs: list[StoreInput]) -> None:
    clock = FakeClock()
    store = RunStore(now=clock, max_episodes=MAX_EPISODES, max_bytes=MAX_BYTES)
    for each in inputs:
        apply_input(store, clock, each)
        check_bounds(store)
    for line in all_lines(store):
        for cell in line:
            assert not has_unsafe_chars(cell.text)
            assert not {"\n", "\t", "\r"} & set(cell.text)


def apply_input(store: RunStore, clock: FakeClock, store_input: StoreInput) -> None:
    match store_input:
        case NodeList():
            store.apply_list(store_input)
        case NodeHealth():
            store.apply_health(store_input)
        case Episode():
            store.merge_episode(store_input)
        case float():
            clock.at += store_input
            store.tick()
        case str():
            store.apply_profile([(store_input, store_input, store_input)])
            store.apply_stored([row(1, env=store_input, agent=store_input, model=store_input, error_type=store_input)])
        case _:
            store.apply_events(store_input)
