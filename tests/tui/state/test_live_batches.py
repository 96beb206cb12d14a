"""Live items that arrive together are applied together, which changes no result."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agentgym_tui.state.episode import StreamingToolCall
from agentgym_tui.state.episodes import SequenceTracker
from agentgym_tui.state.run_store import PORTION_ITEMS, Received, RunStore, group_items, join_live, split_portions
from runner.events.codec import LiveRow, raw_row
from runner.events.live import LazyBatch, LazyItem
from runner.subscribe.messages import BusMessage, Notice
from runner.types import DeltaPart, EpisodePaused
from tests.support.console.bus_messages import LIVE_ITEMS
from tests.support.console.live_items import (
    BOOT,
    NODE,
    START,
    episode_id,
    live,
    span,
    span_closed,
    timestep,
    token,
    user,
)
from tests.support.console.store_lines import episode_fields

TOKENS = st.builds(
    token,
    number=st.integers(0, 1),
    seq=st.integers(0, 9),
    text=st.sampled_from(["", "a ", "bc"]),
    step=st.integers(0, 2),
    part=st.sampled_from(["text", "text", "reasoning", "call"]),
    n=st.integers(0, 2),
    endpoint=st.sampled_from([None, None, "local", "cloud"]),
    failure=st.sampled_from([None, None, None, "local: refused"]),
    restart=st.sampled_from([False, False, True]),
)
ITEMS = st.one_of(LIVE_ITEMS, TOKENS, TOKENS)


def with_valid_sequence(items: list[LazyItem]) -> list[LazyItem]:
    """Return the items with valid sequence numbers, each once per episode."""
    numbered = [replace(item, seq=item.seq % 1_000) if hasattr(item, "seq") else item for item in items]
    return list({(getattr(each, "episode_id", ""), getattr(each, "seq", id(each))): each for each in numbered}.values())


def row_of(*items: LazyItem) -> LiveRow:
    return LiveRow(batch=LazyBatch(node=NODE, boot=BOOT, dropped=0, items=list(items)))


def live_row(message: BusMessage) -> LiveRow:
    assert isinstance(message.decoded, LiveRow)
    return message.decoded


@pytest.mark.long
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(ITEMS, max_size=12))
def test_one_batch_of_items_has_the_same_effect_as_one_batch_per_item(items: list[LazyItem]) -> None:
    together, apart, items = RunStore(), RunStore(), with_valid_sequence(items)
    together.apply_events([row_of(*items)])
    for item in items:
        apart.apply_events([row_of(item)])
    assert episode_fields(together) == episode_fields(apart)
    assert (together.n_items, together.n_malformed) == (apart.n_items, apart.n_malformed)


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(TOKENS.filter(lambda item: item.episode_id == episode_id(0)), max_size=6), max_size=3))
def test_failovers_do_not_depend_on_how_items_are_batched(messages: list[list[LazyItem]]) -> None:
    numbered = [[replace(item, seq=10 * n + m) for m, item in enumerate(items)] for n, items in enumerate(messages)]
    together, apart = RunStore(), RunStore()
    for items in numbered:
        together.apply_events([row_of(*items)])
        for item in items:
            apart.apply_events([row_of(item)])
    assert episode_fields(together) == episode_fields(apart)
    assert list(together.failovers) == list(apart.failovers)


def test_items_of_an_episode_are_one_group_between_items_of_other_kinds() -> None:
    spans = [span_closed(span(number), seq=20 + number) for number in range(3)]
    steps = [timestep(index=index) for index in range(2)]
    words = [token(seq=10, text="a "), token(1, seq=4, text="b "), token(seq=11, text="c ")]
    failed = token(seq=12, text="", failure="local: refused")
    items = live_row(live(*steps, *words, failed, words[0], *spans)).batch.items
    assert [list(group) for group in group_items(items)] == [
        items[:2],
        [items[2], items[4]],
        [items[3]],
        [items[5]],
        [items[6]],
        items[7:],
    ]


def test_an_endpoint_stays_answering_when_another_one_answers_in_the_same_step() -> None:
    items = [token(seq=1, text="", endpoint="a"), token(seq=2, text="so "), token(seq=3, text="", endpoint="b")]
    store = RunStore()
    store.apply_events([row_of(*items, token(seq=4, text="what"))])
    assert {name: endpoint.is_answering for name, endpoint in store.endpoints.items()} == {"a": True, "b": True}


def test_the_newest_answer_replaces_earlier_ones_whose_items_are_not_missing() -> None:
    items = [token(seq=0, step=0, text="old"), token(seq=1, step=1, text="new"), token(seq=2, step=1, text="er")]
    store = RunStore()
    store.apply_events([row_of(*items)])
    (episode,) = store.episodes.values()
    assert episode.streaming is not None and (episode.streaming.step, episode.streaming.text) == (1, "newer")
    assert store.episode_registry.n_missing == 0


@pytest.mark.parametrize(("part", "call", "tool"), [("reasoning", 0, ""), ("call", 1, "guess")])
def test_reasoning_and_tool_calls_are_grouped_like_text(part: DeltaPart, call: int, tool: str) -> None:
    first = token(seq=1, text="", part=part, call=call, tool=tool) if tool else token(seq=1, text="a ", part=part)
    store = RunStore()
    store.apply_events([row_of(first, *(token(seq=n, text="b ", part=part, call=call) for n in range(2, 5)))])
    (episode,) = store.episodes.values()
    assert episode.streaming is not None
    if tool:
        assert episode.streaming.calls == (StreamingToolCall(1, "guess", "b b b "),)
    else:
        assert episode.streaming.reasoning == "a b b b "


@pytest.mark.parametrize(
    ("seqs", "new", "missing"),
    [
        ([0, 1, 2], [0, 1, 2], set()),
        ([3, 4, 5], [0, 1, 2], {0, 1, 2}),
        ([3, 5, 8], [0, 1, 2], {0, 1, 2, 4, 6, 7}),
        ([1, 99], [0, 1], {0, *range(2, 99)}),
        ([5, 4], [0, 1], {0, 1, 2, 3}),
        ([4, 4], [0], {0, 1, 2, 3}),
    ],
)
def test_missing_sequence_numbers_are_awaited_or_counted(seqs: list[int], new: list[int], missing: set[int]) -> None:
    tracker = SequenceTracker()
    assert [place for place, seq in enumerate(seqs) if tracker.accept(seq)] == new and tracker.awaited == missing
    assert not any(map(tracker.accept, seqs))
    late = sorted(missing) or [seqs[-1] + 1]
    assert all(map(tracker.accept, [*late, 200]))
    assert tracker.awaited == set(range(tracker.next_seq)) - {*seqs, *late, 200}
    tracker = SequenceTracker(max_awaited=5)
    assert tracker.accept(10) and tracker.accept(12)
    assert (tracker.awaited, tracker.n_lost, tracker.n_missing) == ({5, 6, 7, 8, 9}, 6, 11)


def test_the_answer_keeps_the_endpoint_of_its_inference() -> None:
    starts = [token(seq=2 * n, step=n, text="", endpoint=f"e{n}", model="m") for n in range(3)]
    items = [each for n, start in enumerate(starts) for each in (start, token(seq=2 * n + 1, step=n, text="so "))]
    store = RunStore()
    store.apply_events([row_of(*items)])
    (episode,) = store.episodes.values()
    assert episode.streaming is not None and (episode.streaming.endpoint, episode.streaming.text) == ("e2", "so ")


def test_the_first_nonempty_reset_observation_is_kept_and_a_repeated_step_does_not_change_it() -> None:
    first, second, repeated = (
        timestep(index=index, reset_observation=texts)
        for index, texts in ((0, []), (1, [user("the beginning")]), (0, [user("another")]))
    )
    for items, observation in (([first, second], [user("the beginning")]), ([first, repeated], [])):
        store = RunStore()
        for item in items:
            store.apply_events([live(item)])
        (episode,) = store.episodes.values()
        assert (len(episode.steps), episode.reset_observation) == (len({each.index for each in items}), observation)


def test_many_items_are_split_into_ordered_portions() -> None:
    paused = [EpisodePaused(at=START, episode_id=episode_id(n % 3), seq=n) for n in range(2 * PORTION_ITEMS + 7)]
    few, notice, raw = row_of(token()), Notice(kind="gap", text="gone", count=1), raw_row("why", b"x")
    received: list[Received] = [few, notice, replace(row_of(*paused), raw=(raw,)), few]
    portions = list(split_portions(received))
    assert [len(portion) for portion in portions] == [3, 1, 2]
    rows = [part for portion in portions for part in portion if isinstance(part, LiveRow)]
    assert [item for row in rows for item in row.batch.items] == [*few.batch.items, *paused, *few.batch.items]
    assert [each for row in rows for each in row.raw] == [raw]
    empty = replace(row_of(), raw=(raw,))
    assert list(split_portions([empty])) == [[empty]]


def test_messages_of_one_subject_and_process_are_joined_between_other_messages() -> None:
    raw, notice = raw_row("why", b"x"), Notice(kind="gap", text="lost", count=1)
    first, second, other = (
        live(token(seq=1, text="a ")),
        live(token(seq=2, text="b "), dropped=3),
        live(span_closed(span(1))),
    )
    second = replace(second, decoded=replace(live_row(second), raw=(raw,)))
    spans, restarted = replace(other, subject=f"{other.subject}.spans"), live(token(seq=3), boot=f"{BOOT}1")
    joined, *others = join_live([first, spans, second, restarted, notice, first])
    batch = LazyBatch(
        node=NODE, boot=BOOT, dropped=3, items=[*live_row(first).batch.items, *live_row(second).batch.items]
    )
    assert joined == LiveRow(batch=batch, raw=(raw,))
    assert others == [live_row(spans), live_row(restarted), notice, live_row(first)]


@pytest.mark.long
def test_the_memory_for_a_batch_of_many_episodes_is_bounded() -> None:
    many = row_of(*(token(n, seq=9_999) for n in range(2_000)))
    store = RunStore(max_episodes=100)
    tracemalloc.start()
    try:
        store.apply_events([many])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(store.episodes) == 100 and store.episode_registry.n_missing == 2_000 * 9_999
    assert peak < 60 << 20


def test_only_the_new_part_of_an_overlapping_chunk_is_applied() -> None:
    store = RunStore()
    store.apply_events([row_of(token(seq=1, text="a "), token(seq=2, text="b "))])
    store.apply_events([row_of(token(seq=2, text="b "), token(seq=3, text="c "))])
    (episode,) = store.episodes.values()
    assert episode.streaming is not None and episode.streaming.text == "a b c "
