"""Decoded batches: grouping live items into chunks, in the console and in the decode worker, changes no result."""

from __future__ import annotations

import tracemalloc

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agentgym_tui.sessions.decode_worker import decode_payload
from agentgym_tui.state.coalesce import PORTION_WORK, coalesce_batch, coalesce_batches, split_portions
from agentgym_tui.state.data_model import StreamingToolCall
from agentgym_tui.state.merged_items import (
    CHUNK_TYPES,
    AnswerChunk,
    DecodedBatch,
    FinishedAnswers,
    SpanChunk,
    StepChunk,
)
from agentgym_tui.state.run_store import RunStore
from runner.events.codec import LiveRow, decode, raw_row
from runner.events.live import LazyBatch, LazyItem
from runner.events.subjects import DurableNames
from runner.subscribe.messages import BusMessage, Notice, SubscriptionItem
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


def decode_items(*items: LazyItem) -> DecodedBatch:
    return coalesce_batch(LiveRow(batch=LazyBatch(node=NODE, boot=BOOT, dropped=0, items=list(items))))


def live_row(message: BusMessage) -> LiveRow:
    assert isinstance(message.decoded, LiveRow)
    return message.decoded


@pytest.mark.long
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(ITEMS, max_size=12))
def test_one_batch_of_items_has_the_same_effect_as_one_batch_per_item(items: list[LazyItem]) -> None:
    together, apart, items = RunStore(), RunStore(), with_valid_sequence(items)
    together.apply_events([decode_items(*items)])
    for item in items:
        apart.apply_events([decode_items(item)])
    assert episode_fields(together) == episode_fields(apart)
    assert (together.n_items, together.n_malformed) == (apart.n_items, apart.n_malformed)


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(TOKENS.filter(lambda item: item.episode_id == episode_id(0)), max_size=6), max_size=3))
def test_failovers_do_not_depend_on_how_items_are_batched(messages: list[list[LazyItem]]) -> None:
    numbered = [[replace(item, seq=10 * n + m) for m, item in enumerate(items)] for n, items in enumerate(messages)]
    together, apart = RunStore(), RunStore()
    for items in numbered:
        together.apply_events([decode_items(*items)])
        for item in items:
            apart.apply_events([decode_items(item)])
    assert episode_fields(together) == episode_fields(apart)
    assert list(together.failovers) == list(apart.failovers)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(ITEMS, max_size=6))
def test_the_worker_decodes_a_message_like_the_console(items: list[LazyItem]) -> None:
    try:
        payload = msgspec.json.encode(LazyBatch(node=NODE, boot=BOOT, dropped=0, items=items))
    except UnicodeEncodeError:
        assume(False)
    row = decode("agentgym.live.episode.v1.n", None, payload, DurableNames())
    if reply := decode_payload(payload):
        assert isinstance(row, LiveRow)
        assert msgspec.msgpack.decode(reply, type=DecodedBatch) == coalesce_batch(row)
    elif isinstance(row, LiveRow):
        with pytest.raises(OverflowError):
            msgspec.msgpack.encode(coalesce_batch(row))


def test_items_of_an_episode_are_grouped_into_chunks() -> None:
    spans = [span_closed(span(number), seq=20 + number) for number in range(3)]
    steps = [timestep(index=index) for index in range(2)]
    words = [token(seq=10, text="a "), token(1, seq=4, text="b "), token(seq=11, text="c ")]
    batch = coalesce_batch(live_row(live(*steps, *words, *spans)))
    assert batch.n_items == 8
    assert [
        (type(chunk), chunk.episode_id, chunk.seqs) for chunk in batch.updates if isinstance(chunk, CHUNK_TYPES)
    ] == [
        (StepChunk, episode_id(0), [1, 2]),
        (AnswerChunk, episode_id(0), [10, 11]),
        (AnswerChunk, episode_id(1), [4]),
        (SpanChunk, episode_id(0), [20, 21, 22]),
    ]


def test_an_endpoint_stays_answering_when_another_one_answers_in_the_same_step() -> None:
    items = [token(seq=1, text="", endpoint="a"), token(seq=2, text="so "), token(seq=3, text="", endpoint="b")]
    store = RunStore()
    store.apply_events([decode_items(*items, token(seq=4, text="what"))])
    assert {name: endpoint.is_answering for name, endpoint in store.endpoints.items()} == {"a": True, "b": True}


def test_finished_answers_keep_only_their_sequence_numbers() -> None:
    items = [token(seq=1, step=0, text="old"), token(seq=2, step=1, text="new"), token(seq=3, step=1, text="er")]
    finished, newest = decode_items(*items).updates
    assert isinstance(finished, FinishedAnswers) and finished.seqs == [1]
    assert isinstance(newest, AnswerChunk) and newest.texts == ["new", "er"]


@pytest.mark.parametrize(("part", "call", "tool"), [("reasoning", 0, ""), ("call", 1, "guess")])
def test_reasoning_and_tool_calls_are_grouped_like_text(part: DeltaPart, call: int, tool: str) -> None:
    first = token(seq=1, text="", part=part, call=call, tool=tool) if tool else token(seq=1, text="a ", part=part)
    (chunk,) = decode_items(first, *(token(seq=n, text="b ", part=part, call=call) for n in range(2, 5))).updates
    assert isinstance(chunk, AnswerChunk) and (chunk.part, chunk.call, chunk.tool) == (part, call, tool)
    store = RunStore()
    store.apply_events([decode_items(first, *(token(seq=n, text="b ", part=part, call=call) for n in range(2, 5)))])
    (episode,) = store.episodes.values()
    assert episode.streaming is not None
    if tool:
        assert episode.streaming.calls == (StreamingToolCall(1, "guess", "b b b "),)
    else:
        assert episode.streaming.reasoning == "a b b b "


@pytest.mark.parametrize(
    ("seqs", "gaps"),
    [([3, 4, 5], []), ([3, 5, 8], [4, 6, 7]), ([3, 99], None), ([5, 4], None), ([4, 4], None), ([7], [])],
)
def test_gaps_in_sequence_numbers_are_listed_unless_there_are_many(seqs: list[int], gaps: list[int] | None) -> None:
    (chunk,) = decode_items(*(token(seq=seq, text="so ") for seq in seqs)).updates
    assert isinstance(chunk, AnswerChunk) and (chunk.seqs, chunk.gaps) == (seqs, gaps)


def test_finished_answers_keep_the_endpoints_of_their_inferences() -> None:
    starts = [token(seq=2 * n, step=n, text="", endpoint=f"e{n}", model="m") for n in range(3)]
    items = [each for n, start in enumerate(starts) for each in (start, token(seq=2 * n + 1, step=n, text="so "))]
    finished, newest = decode_items(*items).updates
    assert isinstance(finished, FinishedAnswers) and finished.started == [
        (0, 0, "e0", "m"),
        (2, 1, "e1", "m"),
        (4, 2, "e2", "m"),
    ]
    assert isinstance(newest, AnswerChunk) and newest.seqs == [5]
    store = RunStore()
    store.apply_events([decode_items(*items)])
    (episode,) = store.episodes.values()
    assert episode.streaming is not None and (episode.streaming.endpoint, episode.streaming.text) == ("e2", "so ")


def test_the_first_nonempty_reset_observation_is_kept() -> None:
    store = RunStore()
    steps = [timestep(index=0, reset_observation=[]), timestep(index=1, reset_observation=[user("the beginning")])]
    store.apply_events([live(*steps)])
    (episode,) = store.episodes.values()
    assert episode.reset_observation == [user("the beginning")]


def test_a_repeated_step_does_not_change_the_reset_observation() -> None:
    store = RunStore()
    store.apply_events([live(timestep(index=0, reset_observation=[]))])
    store.apply_events(
        [live(timestep(index=0, reset_observation=[user("another")]), timestep(index=1, reset_observation=[]))]
    )
    (episode,) = store.episodes.values()
    assert len(episode.steps) == 2 and episode.reset_observation == []


def test_many_updates_are_split_into_ordered_portions() -> None:
    many = decode_items(
        *(EpisodePaused(at=START, episode_id=episode_id(n % 3), seq=n) for n in range(2 * PORTION_WORK + 7))
    )
    few, notice = decode_items(token()), Notice(kind="gap", text="gone", count=1)
    received: list[SubscriptionItem | DecodedBatch] = [few, notice, many, few]
    portions = list(split_portions(received))
    assert [len(portion) for portion in portions] == [3, 1, 2]
    updates = [
        update for portion in portions for part in portion if isinstance(part, DecodedBatch) for update in part.updates
    ]
    assert updates == [*few.updates, *many.updates, *few.updates]
    assert (
        sum(part.n_items for portion in portions for part in portion if isinstance(part, DecodedBatch))
        == len(many.updates) + 2
    )


def test_a_batch_without_items_is_a_portion() -> None:
    raw = raw_row("why", b"x")
    empty = coalesce_batch(LiveRow(batch=LazyBatch(node=NODE, boot=BOOT, dropped=0, items=[]), raw=(raw,)))
    assert list(split_portions([empty])) == [[empty]] and empty.n_malformed == 1


def test_messages_of_one_subject_and_process_become_one_batch_between_other_messages() -> None:
    raw, notice = raw_row("why", b"x"), Notice(kind="gap", text="lost", count=1)
    first, second, other = (
        live(token(seq=1, text="a ")),
        live(token(seq=2, text="b "), dropped=3),
        live(span_closed(span(1))),
    )
    second = replace(second, decoded=replace(live_row(second), raw=(raw,)))
    spans, restarted = replace(other, subject=f"{other.subject}.spans"), live(token(seq=3), boot=f"{BOOT}1")
    joined, *others = coalesce_batches([first, spans, second, restarted, notice, first])
    assert joined == DecodedBatch(
        node=NODE,
        boot=BOOT,
        dropped=3,
        n_items=2,
        n_malformed=1,
        updates=decode_items(token(seq=1, text="a "), token(seq=2, text="b ")).updates,
    )
    alone = [coalesce_batch(live_row(each)) for each in (spans, restarted, first)]
    assert others == [*alone[:2], notice, alone[2]]


@pytest.mark.long
def test_the_memory_for_a_batch_of_many_episodes_is_bounded() -> None:
    many = decode_items(*(token(n, seq=9_999) for n in range(2_000)))
    store = RunStore(max_episodes=100)
    tracemalloc.start()
    try:
        store.apply_events([many])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(store.episodes) == 100 and store.n_missing == 2_000 * 9_999
    assert peak < 60 << 20


def test_only_the_new_part_of_an_overlapping_chunk_is_applied() -> None:
    store = RunStore()
    store.apply_events([decode_items(token(seq=1, text="a "), token(seq=2, text="b "))])
    store.apply_events([decode_items(token(seq=2, text="b "), token(seq=3, text="c "))])
    (episode,) = store.episodes.values()
    assert episode.streaming is not None and episode.streaming.text == "a b c "
