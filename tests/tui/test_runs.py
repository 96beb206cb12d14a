from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentgym_tui.store.run_store import RunStore
from runner.events.live_items import EpisodeItem
from tests.tui.bus_messages import values
from tests.tui.samples import FakeClock, live, token


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(values(EpisodeItem), max_size=30))
def test_what_comes_in_one_message_is_taken_as_if_each_item_came_alone(items: list[EpisodeItem]) -> None:
    together, alone = RunStore(now=FakeClock()), RunStore(now=FakeClock())
    together.take([live(*items)])
    alone.take([live(item) for item in items])
    assert list(together.episodes.values()) == list(alone.episodes.values())
    assert (together.n_missing, together.n_malformed) == (alone.n_missing, alone.n_malformed)
    assert together.batches == alone.batches


@settings(max_examples=100, deadline=None)
@given(st.lists(st.permutations(range(12)), min_size=1, max_size=3), st.data())
def test_items_are_counted_once_in_whatever_order_and_messages_they_come(
    orders: list[list[int]], data: st.DataObject
) -> None:
    store = RunStore(now=FakeClock())
    for order in orders:
        cut = data.draw(st.integers(0, 12))
        store.take([live(*(token(0, seq, f"{seq} ") for seq in part)) for part in (order[:cut], order[cut:])])
    (episode,) = store.episodes.values()
    assert store.n_missing == episode.n_missing == 0
    assert episode.streaming is not None
    assert sorted(episode.streaming.text.split()) == sorted(map(str, range(12)))


def test_who_answered_last_does_not_fail_by_what_failed_before() -> None:
    """Both were told in one message, of two episodes."""
    store = RunStore(now=FakeClock())
    failed = token(1, 1, "", endpoint="second", failure="main: down")
    store.take([live(token(0, 0, "", endpoint="main"), failed, token(0, 1, "text"))])
    assert store.models["main"].failure is None
