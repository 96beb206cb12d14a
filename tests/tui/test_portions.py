from __future__ import annotations

from agentgym_tui.store.portions import ITEMS, portions
from agentgym_tui.store.run_store import RunStore
from runner.events.rows import LiveRow
from runner.events.seen import Notice, Received, Seen
from tests.tui.bus_samples import episode_id, live, started, token

N_ITEMS = 2 * ITEMS + 7


def test_a_message_of_many_items_comes_in_several_in_order() -> None:
    many = live(started(), *(token(seq=seq) for seq in range(1, N_ITEMS)))
    notice = Notice(kind="gap", text="gone", count=1)
    came: list[Seen] = [live(token(1)), notice, many, live(token(2)), notice]
    cut = list(portions(came))
    assert [len(portion) for portion in cut] == [2, 1, 1, 1, 2]
    assert [seen for portion in cut for seen in portion if isinstance(seen, Notice)] == [notice, notice]
    items = [item for portion in cut[1:4] for seen in portion for item in _items(seen)]
    assert items == _items(many)
    assert all(len(_items(seen)) <= ITEMS for portion in cut for seen in portion)


def test_nothing_is_missing_whatever_was_cut() -> None:
    store = RunStore()
    for portion in portions([live(started(), *(token(seq=seq) for seq in range(1, N_ITEMS)))]):
        store.take(portion)
    assert (store.n_items, store.n_missing) == (N_ITEMS, 0)
    store.take([live(token(seq=N_ITEMS + 3))])
    assert (store.n_missing, store.episodes[episode_id(0)].n_missing) == (3, 3)


def test_what_is_missing_of_episodes_that_made_room_is_not_forgotten() -> None:
    store = RunStore(max_episodes=1)
    store.take([live(started(0), token(0, seq=5))])
    store.take([live(started(1))])
    assert list(store.episodes) == [episode_id(1)]
    assert store.n_missing == 4


def _items(seen: Seen) -> list[object]:
    return [*seen.decoded.batch.items] if isinstance(seen, Received) and isinstance(seen.decoded, LiveRow) else []
