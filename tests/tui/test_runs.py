from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from agentgym_tui.sessions.digest_process import digested
from agentgym_tui.store.run_store import RunStore
from agentgym_tui.store.runs import TOGETHER, Digest, PastRun, SpanRun, StepRun, TextRun, digest_of
from agentgym_tui.store.state import Episode
from runner.events.codec import DurableNames, decode
from runner.events.live_items import HeardBatch, HeardItem
from runner.events.rows import LiveRow
from runner.events.seen import Received
from tests.tui.bus_messages import HEARD
from tests.tui.bus_samples import BOOT, NODE, episode_id, live, span, span_closed, timestep, token

TOKENS = st.builds(
    token,
    of=st.integers(0, 1),
    seq=st.integers(0, 9),
    text=st.sampled_from(["", "a ", "bc"]),
    step=st.integers(0, 2),
    part=st.sampled_from(["text", "text", "reasoning", "call"]),
    n=st.integers(0, 2),
    endpoint=st.sampled_from([None, None, "local"]),
    failure=st.sampled_from([None, None, None, "local: refused"]),
    restart=st.sampled_from([False, False, True]),
)
ITEMS = st.one_of(HEARD, TOKENS, TOKENS)


def digest(*items: HeardItem) -> Digest:
    return digest_of(LiveRow(batch=HeardBatch(node=NODE, boot=BOOT, dropped=0, items=list(items))))


def row_of(seen: Received) -> LiveRow:
    assert isinstance(seen.decoded, LiveRow)
    return seen.decoded


def told(store: RunStore) -> list[dict[str, Any]]:
    """All there is to tell of its episodes; spans that cannot be read tell nothing but that."""
    known = [{name: getattr(each, name) for name in Episode.__struct_fields__} for each in store.episodes.values()]
    return [{**each, "spans": len(each["spans"])} for each in known]


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(ITEMS, max_size=12))
def test_a_store_knows_the_same_of_episodes_from_one_message_as_from_one_for_each_item(items: list[HeardItem]) -> None:
    together, apart = RunStore(), RunStore()
    together.take([digest(*items)])
    for item in items:
        apart.take([digest(item)])
    assert told(together) == told(apart)
    assert (together.n_items, together.n_malformed) == (apart.n_items, apart.n_malformed)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(ITEMS, max_size=6))
def test_what_the_other_process_says_of_a_message_is_what_is_found_out_here(items: list[HeardItem]) -> None:
    try:
        payload = msgspec.json.encode(HeardBatch(node=NODE, boot=BOOT, dropped=0, items=items))
    except UnicodeEncodeError:
        assume(False)
    row = decode("agentgym.live.episode.v1.n", None, payload, DurableNames())
    if reply := digested(payload):
        assert isinstance(row, LiveRow)
        assert msgspec.msgpack.decode(reply, type=Digest) == digest_of(row)
    elif isinstance(row, LiveRow):
        with pytest.raises(OverflowError):
            msgspec.msgpack.encode(digest_of(row))


def test_items_of_an_episode_come_together() -> None:
    spans = [span_closed(span(number), seq=20 + number) for number in range(3)]
    rounds = [timestep(index=index) for index in range(2)]
    words = [token(seq=10, text="a "), token(1, seq=4, text="b "), token(seq=11, text="c ")]
    found = digest_of(row_of(live(*rounds, *words, *spans)))
    assert found.n_items == 8
    assert [(type(run), run.episode_id, run.seqs) for run in found.runs if isinstance(run, TOGETHER)] == [
        (StepRun, episode_id(0), [1, 2]),
        (TextRun, episode_id(0), [10, 11]),
        (TextRun, episode_id(1), [4]),
        (SpanRun, episode_id(0), [20, 21, 22]),
    ]


def test_of_answers_that_are_over_only_the_numbers_are_left() -> None:
    items = [token(seq=1, step=0, text="old"), token(seq=2, step=1, text="new"), token(seq=3, step=1, text="er")]
    past, newest = digest(*items).runs
    assert isinstance(past, PastRun) and past.seqs == [1]
    assert isinstance(newest, TextRun) and newest.texts == ["new", "er"]


def test_of_a_run_that_came_in_part_before_only_the_rest_is_taken() -> None:
    store = RunStore()
    store.take([digest(token(seq=1, text="a "), token(seq=2, text="b "))])
    store.take([digest(token(seq=2, text="b "), token(seq=3, text="c "))])
    (episode,) = store.episodes.values()
    assert episode.streaming is not None and episode.streaming.text == "a b c "
