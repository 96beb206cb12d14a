from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.episode.live_items import (
    ended_item,
    span_items,
    started_item,
    timestep_item,
    token_item,
    truncate,
    worker_item,
)
from runner.events import subjects
from runner.events.codec import LiveRow, decode, encode
from runner.events.live import (
    MAX_ITEM,
    MAX_TEXT,
    EpisodeEnded,
    EpisodeStarted,
    LiveBatch,
    LiveItem,
    SpanClosed,
    Timestep,
    TokenText,
)
from runner.events.subjects import DurableNames
from runner.types import (
    Action,
    BatchProgress,
    EpisodeHeader,
    EpisodePaused,
    EpisodeResumed,
    ErrorInfo,
    Outcome,
    Span,
    StreamDelta,
    TimeStep,
    TimestepPlayed,
    TokensStreamed,
    ToolCall,
    WorkerCounts,
    WorkerInfo,
    WorkerState,
    WorkerStatus,
)
from tests.support.episodes import episode_header, finished_record, make_trajectory
from tests.support.examples import examples
from tests.support.schemas import validate

AT = datetime(2026, 1, 2, tzinfo=UTC)


def make_step(**changes: Any) -> TimeStep:  # noqa: ANN401
    fields: dict[str, Any] = {
        "index": 0,
        "chats": [[{"role": "user", "content": "hello"}]],
        "action": Action("go"),
        "observation": [{"role": "user", "content": "a wall"}],
        "reward": 0.5,
        "done": False,
        "available_tool_schemas": [{"type": "function"}],
    }
    return TimeStep(**{**fields, **changes})


def round_trip(item: LiveItem | bytes, channel: subjects.LiveChannel) -> LiveItem:
    """Return the item after encoding, validation against the schema, and decoding."""
    data = item if isinstance(item, bytes) else msgspec.json.encode(item)
    payload = b'{"node":"n","boot":"b","dropped":0,"items":[%b]}' % data
    subject = subjects.live_subject(channel, "n")
    validate(subject, payload)
    row = decode(subject, None, payload, DurableNames())
    assert isinstance(row, LiveRow)
    assert row.raw == ()
    (only,) = row.batch.items
    decoded: LiveItem = msgspec.json.decode(msgspec.json.encode(only), type=LiveItem)
    return decoded


def played(reset_observation: Any = None, **changes: Any) -> Timestep:  # noqa: ANN401
    event = TimestepPlayed(at=AT, episode_id="e", seq=1, step=make_step(**changes), reset_observation=reset_observation)
    item = round_trip(bytes(timestep_item(event)), "timestep")
    assert isinstance(item, Timestep)
    return item


def streamed(delta: StreamDelta) -> TokenText:
    item = round_trip(token_item(TokensStreamed(at=AT, episode_id="e", seq=1, step=2, delta=delta)), "token")
    assert isinstance(item, TokenText)
    return item


def started(header: EpisodeHeader) -> EpisodeStarted:
    item = round_trip(started_item(AT, 0, header), "episode")
    assert isinstance(item, EpisodeStarted)
    return item


def ended(steps: list[TimeStep], **fields: Any) -> EpisodeEnded:  # noqa: ANN401
    header = episode_header()
    record = finished_record(header, make_trajectory(header, steps, **fields))
    item = round_trip(ended_item(3, record), "episode")
    assert isinstance(item, EpisodeEnded)
    assert (item.episode_id, item.seq) == (header.episode_id, 3)
    return item


def test_each_span_is_a_separate_item_with_its_own_sequence_number() -> None:
    spans = [Span(id=n, parent=None, name="env.step", category="environment", track="slot 0", start_ns=n, end_ns=n + 5)
             for n in (1, 2)]  # fmt: skip
    items = [round_trip(item, "span") for item in span_items(AT, "e", 7, spans)]
    assert items == [SpanClosed(at=AT, episode_id="e", seq=7 + n, span=span) for n, span in enumerate(spans)]


def test_every_episode_event_has_a_live_item() -> None:
    first = started(EpisodeHeader(episode_id="e", batch_id="b", env="Maze", started_at=AT, agent="oracle", seed=1))
    assert (first.env, first.agent, first.seed, first.seq) == ("Maze", "oracle", 1, 0)
    for pause in (EpisodePaused(at=AT, episode_id="e", seq=1), EpisodeResumed(at=AT, episode_id="e", seq=2)):
        assert round_trip(pause, "episode") == pause
    last = ended(
        [make_step(), make_step(index=1)],
        outcome=Outcome.ERROR,
        error_info=ErrorInfo("ValueError", "x" * 100_000, "a traceback"),
    )
    assert (last.reward, last.rounds, last.outcome) == (1.0, 2, Outcome.ERROR)
    assert last.error is not None
    assert len(last.error["message"].encode()) == MAX_TEXT
    progress = BatchProgress(
        at=AT,
        batch_id="b",
        seq=0,
        n_done=3,
        n_planned=9,
        n_success=1,
        mean_reward=None,
        eta_s=None,
        n_rated=2,
        errors=1,
    )
    assert round_trip(progress, "batch") == progress


WORKERS = st.builds(WorkerCounts, n=st.integers(0, 256), starting=st.integers(0, 256), lost=st.integers(0, 2**62))


@settings(deadline=None)
@given(
    id_=st.text(), host=st.text(), pid=st.none() | st.integers(0, 2**31), state=st.sampled_from(get_args(WorkerStatus))
)
def test_the_state_of_a_worker_survives_encoding(id_: str, host: str, pid: int | None, state: WorkerStatus) -> None:
    change = WorkerState(at=AT, batch_id="b", seq=4, id=id_, host=host, pid=pid, state=state)
    assert round_trip(worker_item(change), "batch") == WorkerState(
        at=AT, batch_id="b", seq=4, id=truncate(id_), host=truncate(host), pid=pid, state=state
    )


@settings(deadline=None)
@given(
    WORKERS | st.none(), st.builds(WorkerInfo, host=st.text(), id=st.text(), kind=st.sampled_from(["process", "ray"]))
)
def test_progress_has_the_numbers_of_workers_and_a_started_episode_its_worker(
    counts: WorkerCounts | None, worker: WorkerInfo
) -> None:
    numbers: dict[str, Any] = {"n_done": 3, "n_planned": 9, "n_success": 1, "mean_reward": None, "n_rated": 2}
    item = round_trip(BatchProgress(at=AT, batch_id="b", seq=0, eta_s=None, workers=counts, **numbers), "batch")
    assert isinstance(item, BatchProgress)
    assert item.workers == counts
    item = started(EpisodeHeader(episode_id="e", batch_id="b", env="Maze", started_at=AT, worker=worker))
    assert item.worker == WorkerInfo(host=truncate(worker.host), id=truncate(worker.id), kind=worker.kind)


def test_an_overflowing_reward_stays_finite() -> None:
    assert math.isfinite(ended([make_step(index=n, reward=1.7e308) for n in range(2)]).reward)


def test_a_short_timestep_is_unchanged() -> None:
    reset: Any = [{"role": "system", "content": "play"}]
    longest: Any = [{"role": "user", "content": "a" * MAX_TEXT}]
    call = ToolCall("1", "move", '{"to": "wall"}')
    timing = {"cost": math.nan, "ttft_s": 0.25, "tokens_per_s": 40.0}
    item = played(reset, action=Action(None, [call]), observation=longest, **timing)
    assert item.chats == [[{"role": "user", "content": "hello"}]]
    assert item.observation == longest
    assert item.action.tool_calls == [call]
    assert (item.cost, item.ttft_s, item.tokens_per_s, item.left_out) == (None, 0.25, 40.0, 0)
    assert (item.reset_observation, played().reset_observation) == (reset, None)


@pytest.mark.parametrize(
    "delta",
    [
        StreamDelta(text="up", n=3, ttft_s=0.5),
        StreamDelta(text='{"to"', part="call", call=1, tool="move", n=1),
        StreamDelta(endpoint="ollama", model="m"),
        StreamDelta(failure="gateway: no connection", restart=True),
    ],
)
def test_a_stream_delta_is_published_unchanged(delta: StreamDelta) -> None:
    item = streamed(delta)
    assert item.step == 2
    assert {name: getattr(item, name) for name in StreamDelta.__struct_fields__} == msgspec.structs.asdict(delta)


def test_long_texts_of_a_stream_delta_are_truncated() -> None:
    long = "x" * 2 * MAX_TEXT
    delta = StreamDelta(text=long, tool=long, endpoint=long, model=long, failure=long)
    item = streamed(delta)
    texts = [item.text, item.tool, item.endpoint, item.model, item.failure]
    assert all(0 < len((text or "").encode()) <= MAX_TEXT for text in texts)


def test_a_valid_message_is_unchanged_beside_invalid_ones() -> None:
    plain: Any = {"role": "user", "content": "naïve \x1b \N{GRINNING FACE}", "name": None}
    calls: Any = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "move", "arguments": "{}"}}]}
    invalid: Any = {None: "no name", "role": "user", "content": "\ud800"}
    assert played(chats=[[plain, plain]]).chats == [[plain, plain]]
    assert played(chats=[[plain, calls]], observation=[plain]).chats == [[plain, calls]]
    mixed = played(chats=[[plain, invalid], [plain]], action=Action("\ud800", [ToolCall("1", "move", "{}")]))
    assert (mixed.chats[0][0], mixed.chats[1]) == (plain, [plain])
    assert mixed.chats[0][1]["role"] == "user"
    assert mixed.action.tool_calls == [ToolCall("1", "move", "{}")]


def test_the_number_of_short_messages_is_limited() -> None:
    step = make_step(chats=[[{}] * 140_000, [{"role": "user", "content": "last"}]])
    event = TimestepPlayed(at=AT, episode_id="e", seq=1, step=step)
    item = msgspec.json.decode(bytes(timestep_item(event)), type=Timestep)
    assert item.chats[1] == [{"role": "user", "content": "last"}]
    assert len(item.chats[0]) + item.left_out == 140_000
    assert item.left_out > 0


@pytest.mark.parametrize("letter", ["a", "ä", "\N{GRINNING FACE}", "\ud800"])
def test_long_texts_are_truncated_with_their_full_length(letter: str) -> None:
    text = letter * (MAX_TEXT + 1)
    item = played(
        observation=[{"role": "tool", "content": text, "tool_call_id": "1"}],
        action=Action(text, [ToolCall("1", "say", text), ToolCall("2", "say", "short")]),
    )
    assert item.observation[0]["full_length"] == {"content": len(text)}
    assert item.action.full_length == {"text": len(text), "tool_calls/0/arguments": len(text)}
    for cut in (item.observation[0]["content"], item.action.text, item.action.tool_calls[0].arguments):
        assert cut is not None
        assert len(cut.encode()) <= MAX_TEXT
        assert cut.endswith("…")


def test_a_long_chat_loses_its_oldest_messages() -> None:
    chat = [{"role": "user", "content": f"{number} " + "\x00" * 2000} for number in range(100)]
    item = played(chats=[chat])
    assert item.left_out > 0
    assert len(item.chats[0]) + item.left_out == 100
    assert item.chats[0][-1] == chat[-1]
    assert len(encode(LiveBatch(node="n", boot="b", dropped=0, items=[item]))) < MAX_ITEM + 10_000


def test_the_size_of_tool_calls_is_limited() -> None:
    item = played(action=Action(None, [ToolCall(str(n), "say", "\x01" * 3000) for n in range(200)]))
    assert 0 < len(item.action.tool_calls) < 200


class Foreign:
    def __str__(self) -> str:
        raise RuntimeError


def test_values_without_a_json_form_become_text() -> None:
    endless: list[Any] = []
    endless += [endless, endless]
    message = {
        "role": "user",
        "content": [1 << 80, math.inf, {1: "one", "\ud800": b"bytes"}, Foreign(), (1, 2), {3}],
        "x": endless,
    }
    item = played(observation=[message, "a bare text"])
    content = item.observation[0]["content"]
    assert content[:2] == [hex(1 << 80), None]
    assert content[3:5] == ["<Foreign>", [1, 2]]
    assert item.observation[1] == {"role": "unknown", "content": "a bare text"}


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text() | st.integers(), inner),
)


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.lists(ANYTHING, max_size=3), max_size=3))
def test_arbitrary_chats_can_be_encoded(chats: list[Any]) -> None:
    played(chats=chats)
