from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from agentgym_tui.state.models import BusLink, Episode
from agentgym_tui.state.normalize import ulid_prefix, ulid_time
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.state.steps import episode_size
from agentgym_tui.state.streaming_answer import MAX_ARGUMENT_CHARS, MAX_CALLS, MAX_FAILURES, MAX_STREAMED_CHARS
from runner.events.decoded import RawRow
from runner.events.live import TokenText
from runner.subscribe.messages import BusMessage, Notice
from runner.types import Outcome, Tokens
from tests.support.console.samples import (
    NODE,
    PROFILE,
    START,
    FakeClock,
    batch_id,
    batch_state,
    busy_store,
    completed,
    durable,
    ended,
    env_health,
    episode,
    episode_id,
    episode_items,
    foreign,
    heartbeat,
    hostile_episode,
    live,
    model_health,
    node_list,
    progress,
    row,
    span,
    span_closed,
    started,
    step,
    timestep,
    token,
)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> RunStore:
    return RunStore(now=clock)


def streamed_text(played: Episode) -> str:
    return played.streaming.text if played.streaming is not None else ""


def test_an_end_that_comes_before_its_steps_loses_none(store: RunStore) -> None:
    first, *between, last = episode_items(0)
    store.apply_events([live(first, last)])
    played = store.episodes[episode_id(0)]
    assert (played.outcome, played.n_missing, played.steps) == ("success", len(between), [])
    store.apply_events([live(*between), live(*between)])
    assert [s.index for s in played.steps] == [0, 1, 2]
    assert (played.n_missing, played.outcome, played.rounds) == (0, "success", 3)


def test_an_episode_is_put_together_from_its_items(store: RunStore) -> None:
    store.apply_events([live(*episode_items(0)[:-1], token(0, 4, "I thi", 3), token(0, 5, "nk", 3))])
    played = store.episodes[episode_id(0)]
    assert (played.env, played.agent, played.node) == ("Wordle", "oracle", NODE)
    assert [s.index for s in played.steps] == [0, 1, 2]
    assert (played.rounds, played.reward, played.tokens.prompt, streamed_text(played)) == (3, 0.75, 360, "I think")
    assert played.reset_observation == [{"role": "user", "content": "observation 0"}]
    assert store.running_episodes() == [played]
    store.apply_events([live(ended(0, 6))])
    assert (played.outcome, played.streaming, store.running_episodes(), store.n_ended) == ("success", None, [], 1)


def test_what_came_before_is_left_out_and_a_gap_is_counted(store: RunStore) -> None:
    items = episode_items(0, 5)
    store.apply_events([live(*items[:2], *items[:3]), live(*items[4:])])
    played = store.episodes[episode_id(0)]
    assert [s.index for s in played.steps] == [0, 1, 3, 4]
    assert played.n_missing == 1
    assert played.outcome == "success"


def test_who_comes_late_knows_what_is_missing_and_reads_it_from_the_file(store: RunStore) -> None:
    store.apply_events([live(heartbeat(), timestep(0, 2), timestep(0, 3))])
    late = store.episodes[episode_id(0)]
    assert (late.env, late.n_missing, late.running) == ("", 3, True)
    store.merge_episode(episode(0, 4, outcome=None))
    assert (late.env, late.n_missing, len(late.steps), late.reward) == ("Wordle", 0, 4, 1.0)
    store.apply_events([live(timestep(0, 3), timestep(0, 4))])
    assert late.n_missing == 0
    store.apply_events([live(timestep(0, 6))])
    assert ([s.index for s in late.steps], late.n_missing) == ([0, 1, 2, 3, 4, 6], 1)


def test_steps_of_a_file_count_more_than_live_ones_that_were_cut(store: RunStore) -> None:
    store.apply_events([live(started(0), timestep(0, 0, left_out=7))])
    store.merge_episode(episode(0, 1, outcome=None))
    assert store.episodes[episode_id(0)].steps[0].left_out == 0
    again = RunStore()
    again.merge_episode(episode(0, 1, outcome=None))
    again.apply_events([live(started(0), timestep(0, 0, left_out=7))])
    assert again.episodes[episode_id(0)].steps[0].left_out == 0
    assert again.episodes[episode_id(0)].n_missing == 0


def test_text_of_an_endpoint_that_failed_is_taken_back(store: RunStore) -> None:
    again = msgspec.structs.replace(token(0, 2, "", 0), restart=True)
    store.apply_events([live(started(0), token(0, 1, "half an ans"), again)])
    assert streamed_text(store.episodes[episode_id(0)]) == ""
    store.apply_events([live(token(0, 3, "whole", 0))])
    assert streamed_text(store.episodes[episode_id(0)]) == "whole"


def test_each_part_of_an_answer_is_put_together_by_itself(store: RunStore) -> None:
    later = START + timedelta(seconds=2)
    store.apply_events([live(started(0), token(0, 1, "", endpoint="gateway", model="m"))])
    store.apply_events(
        [live(token(0, 2, "so ", part="reasoning", n=4, ttft_s=0.5), token(0, 3, "on", part="reasoning", n=1))]
    )
    calls = [token(0, 5, "", part="call", tool="guess", n=1), token(0, 6, '{"a"', part="call", tool="guess", n=2)]
    other = token(0, 7, "{}", part="call", call=1, tool="look", n=3, at=later)
    store.apply_events([live(token(0, 4, "I go", n=2), *calls, other)])
    answer = store.episodes[episode_id(0)].streaming
    assert answer is not None
    assert (answer.endpoint, answer.model, answer.reasoning, answer.text) == ("gateway", "m", "so on", "I go")
    assert [(call.tool, call.arguments) for call in answer.calls] == [("guess", '{"a"'), ("look", "{}")]
    assert (answer.ttft_s, answer.n_tokens, answer.tokens_per_s) == (0.5, 13, 4.5)
    store.apply_events([live(timestep(0, 0, seq=8))])
    assert store.episodes[episode_id(0)].streaming is None


def test_an_answer_that_streams_in_is_bounded(store: RunStore) -> None:
    long = "x" * 50_000
    parts: list[dict[str, Any]] = [{}, {"part": "reasoning"}, *({"part": "call", "call": n % 40} for n in range(80))]
    store.apply_events([live(started(0), *(token(0, seq, long, **part) for seq, part in enumerate(parts * 2, 1)))])
    store.apply_events([live(*(token(0, 200 + n, "", failure=long) for n in range(50)))])
    answer = store.episodes[episode_id(0)].streaming
    assert answer is not None
    assert max(len(answer.text), len(answer.reasoning)) == MAX_STREAMED_CHARS
    assert len(answer.calls) == MAX_CALLS
    assert {len(call.arguments) for call in answer.calls} == {MAX_ARGUMENT_CHARS}
    assert answer.n_text_dropped == answer.n_reasoning_dropped == 2 * len(long) - MAX_STREAMED_CHARS
    assert {call.n_dropped for call in answer.calls} == {4 * len(long) - MAX_ARGUMENT_CHARS}
    assert len(answer.failures) == MAX_FAILURES


def endpoint_answers(store: RunStore) -> bool:
    return store.endpoints["gateway"].is_answering


def fallen(seq: int, step: int = 0) -> list[TokenText]:
    """The gateway fails in the middle of an answer, and another endpoint is asked."""
    failure = "gateway: the connection broke"
    return [
        token(0, seq, "", step, endpoint="gateway"),
        token(0, seq + 1, "half an ans", step),
        token(0, seq + 2, "", step, failure=failure, restart=True),
        token(0, seq + 3, "", step, endpoint="ollama"),
    ]


def test_that_another_endpoint_is_asked_is_noted_at_once_and_once(store: RunStore) -> None:
    store.apply_events(
        [live(model_health("gateway", "up", None), model_health("ollama", "up", None), started(0), *fallen(1))]
    )
    answer = store.episodes[episode_id(0)].streaming
    assert answer is not None
    assert (answer.text, answer.endpoint, answer.failures) == ("", "ollama", ("gateway: the connection broke",))
    (fall,) = store.failovers
    assert (fall.env, fall.failed, fall.reason, fall.endpoint) == (
        "Wordle",
        ("gateway",),
        "the connection broke",
        "ollama",
    )
    assert [endpoint.is_answering for endpoint in store.endpoints.values()] == [False, True]
    store.apply_events([live(timestep(0, 0, seq=5, endpoint="ollama", warnings=["gateway: the connection broke"]))])
    store.apply_events([live(*fallen(6, 1))])
    assert (len(store.failovers), store.n_failovers) == (1, 1)
    store.apply_events([live(timestep(0, 1, seq=10, endpoint="gateway"))])
    assert [(fall.failed, fall.endpoint) for fall in store.failovers] == [(("gateway",), "ollama"), ((), "gateway")]
    assert store.endpoints["gateway"].is_answering
    assert store.episodes[episode_id(0)].fallback == "ollama"


def test_an_endpoint_that_is_asked_once_more_has_no_place_taken(store: RunStore) -> None:
    failures = [token(0, n, "", failure=f"{name}: HTTP 500") for n, name in ((1, "gateway"), (3, "ollama"))]
    store.apply_events([live(started(0), failures[0], token(0, 2, "", endpoint="ollama"), failures[1])])
    store.apply_events([live(token(0, 4, "", endpoint="gateway"))])
    answer = store.episodes[episode_id(0)].streaming
    assert answer is not None
    assert answer.skipped_endpoints == []
    assert [fall.endpoint for fall in store.failovers] == ["ollama"]
    told = ["gateway: HTTP 500", "ollama: HTTP 500"]
    store.apply_events([live(timestep(0, 0, seq=5, endpoint="gateway", warnings=told))])
    assert store.episodes[episode_id(0)].fallback is None
    assert [fall.endpoint for fall in store.failovers] == ["ollama", "gateway"]
    store.apply_events([live(timestep(0, 1, seq=6, endpoint="ollama", warnings=told))])
    assert store.episodes[episode_id(0)].fallback == "ollama"


def test_an_endpoint_that_rests_does_not_answer_until_its_health_says_so(store: RunStore) -> None:
    store.apply_events([live(model_health("gateway", "up", None, rest_s=27.0))])
    assert endpoint_answers(store) is False
    store.apply_events([live(model_health("gateway", "up", None))])
    assert endpoint_answers(store) is True
    store.apply_events([live(started(0), token(0, 1, "", failure="gateway: HTTP 500"))])
    assert store.endpoints["gateway"].failure == "HTTP 500"
    store.apply_events([live(model_health("gateway", "up", None))])
    assert store.endpoints["gateway"].failure is None


def test_what_a_batch_has_spent_is_what_is_over_and_what_runs(store: RunStore) -> None:
    took: dict[str, Any] = {"tokens": Tokens(100, 10), "cost": 0.5}
    store.apply_events([live(*episode_items(0)), live(started(1), timestep(1, 0, **took), timestep(1, 1, **took))])
    batch = store.batches[batch_id(0)]
    assert store.usage_of(batch) == (Tokens(560, 110), 1.0)  # of a node that does not add up: all that is known
    store.apply_events([live(progress(0, tokens=Tokens(5_000, 500), cost=2.0))])
    assert store.usage_of(batch) == (Tokens(5_200, 520), 3.0)
    store.apply_events([live(ended(1, 3))])
    assert store.usage_of(batch) == (Tokens(5_000, 500), 2.0)


def test_text_for_a_step_that_was_played_is_not_shown(store: RunStore) -> None:
    store.apply_events([live(started(0), timestep(0, 0), token(0, 2, "old", 0))])
    assert streamed_text(store.episodes[episode_id(0)]) == ""
    store.apply_events([live(token(0, 3, "one", 1), token(0, 4, "two", 2))])
    assert streamed_text(store.episodes[episode_id(0)]) == "two"


def test_durable_and_live_may_come_in_any_order(store: RunStore) -> None:
    store.apply_events([durable(completed(0))])
    assert store.episodes[episode_id(0)].outcome == "success"
    store.apply_events([live(*episode_items(0))])
    assert len(store.episodes) == 1
    assert len(store.episodes[episode_id(0)].steps) == 3
    assert store.running_episodes() == []
    assert len(store.rewards["Wordle"]) == 1


def test_an_episode_of_another_runner_comes_once(store: RunStore) -> None:
    store.apply_events([foreign(1), foreign(2, success=False), foreign(1)])
    assert [each.outcome for each in store.episodes.values()] == ["success", "failure"]
    assert len(store.rewards["Maze"]) == 2


def test_environments_come_in_the_order_of_the_profile(store: RunStore) -> None:
    store.apply_events([live(env_health("Other"), env_health("Wordle"))])
    store.apply_profile(PROFILE)
    store.apply_list(node_list())
    assert list(store.envs) == [*(name for _, name, _ in PROFILE), "Other"]
    assert (store.envs["Wordle"].status, store.envs["Wordle"].tier) == ("embedded", "lightweight")
    assert store.envs["Maze"].status is None
    assert store.agents == ["oracle", "random", "scripted"]


def test_stored_rows_are_counted_once_and_end_what_seems_to_run(store: RunStore) -> None:
    store.apply_events([live(*episode_items(0)), live(started(1))])
    rows = [row(n, success=n % 2 == 0, outcome=Outcome.SUCCESS) for n in range(5, -1, -1)]
    store.apply_stored([row(6, outcome=Outcome.CANCELLED, success=False), *rows])
    store.apply_stored(rows)
    wordle = store.envs["Wordle"]
    assert (wordle.n_rated, wordle.n_success, wordle.baseline) == (6, 3, True)
    assert [point.episode_id for point in store.rewards["Wordle"]] == [episode_id(n) for n in range(7)]
    assert store.running_episodes() == []


def test_models_are_not_mixed_with_baselines(store: RunStore) -> None:
    store.apply_stored([row(2, model="m", success=False), row(1), row(0)])
    wordle = store.envs["Wordle"]
    assert (wordle.n_rated, wordle.n_success, wordle.baseline) == (1, 0, False)


def test_the_oldest_that_are_over_make_room() -> None:
    store = RunStore(max_episodes=3)
    store.apply_events([live(started(0)), *(live(*episode_items(n)) for n in range(1, 5))])
    assert list(store.episodes) == [episode_id(n) for n in (0, 3, 4)]
    store.apply_events([live(timestep(1, 0)), durable(completed(2))])
    assert list(store.episodes) == [episode_id(n) for n in (0, 3, 4)]
    assert store.n_ended == 4


def test_texts_are_bounded_also_of_an_episode_that_goes_on() -> None:
    store = RunStore(max_bytes=100_000)
    store.apply_events([live(*episode_items(0)), live(started(1))])
    for index in range(40):
        store.apply_events([live(timestep(1, index, observation=[{"role": "user", "content": "x" * 10_000}]))])
    assert list(store.episodes) == [episode_id(1)]
    played = store.episodes[episode_id(1)]
    assert len(played.steps) == 40
    assert episode_size(played) < 100_000
    assert played.steps[-1].observation
    assert played.steps[0].left_out == 3
    assert not played.steps[0].observation


def test_an_episode_that_has_just_begun_makes_no_room_where_there_is_enough() -> None:
    store = RunStore(max_bytes=100_000)
    store.apply_events([live(started(0)), live(started(1)), live(span_closed(span(1), n=1))])
    for index in range(20):
        store.apply_events([live(timestep(0, index, observation=[{"role": "user", "content": "x" * 10_000}]))])
    assert not store.episodes[episode_id(0)].steps[0].observation
    assert len(store.episodes[episode_id(1)].spans) == 1


def test_what_was_given_to_the_store_is_not_changed_by_its_bounds() -> None:
    given = episode(0, 3, steps=[step(n, observation=[{"content": "x" * 60_000}]) for n in range(3)], outcome=None)
    store = RunStore(max_bytes=100_000)
    store.merge_episode(given)
    assert all(each.observation for each in given.steps)
    assert not store.episodes[episode_id(0)].steps[0].observation


def test_it_calls_once_for_each_change_and_not_for_a_heartbeat(store: RunStore) -> None:
    calls: list[int] = []
    store.on_change = lambda: calls.append(store.version)
    store.apply_events([live(heartbeat()), live(*episode_items(0))])
    store.apply_events([live(heartbeat())])
    store.apply_events([])
    store.set_link(BusLink(status="connected"))
    store.set_link(BusLink(status="connected"))
    assert calls == [1, 2]


def test_notices_count_up_and_what_does_not_decode_is_counted(store: RunStore) -> None:
    gap = Notice(kind="gap", text="messages are gone", count=3)
    raw = RawRow(reason="not JSON", payload=b"", size=0)
    store.apply_events(
        [gap, gap, BusMessage(subject="s", headers={}, decoded=raw), live(started(0, episode_id="x" * 999))]
    )
    assert [(note.text, note.n) for note in store.notices] == [("messages are gone", 6)]
    assert store.n_malformed == 2
    assert store.episodes == {}


def test_names_are_cut() -> None:
    store = RunStore()
    store.merge_episode(hostile_episode(0, "n" * 1_000_000, steps=[], spans=[], reset_observation=[]))
    assert len(store.episodes[episode_id(0)].env) == 200
    assert all(len(env) == 200 for env in store.envs)


def test_the_busy_sample_is_busy() -> None:
    store = busy_store()
    assert [each.outcome for each in store.episodes.values()] == ["success", "failure", "success", None]
    assert (active := store.active_batch()) is not None
    assert (active.n_done, active.n_planned) == (3, 10)


def test_a_ulid_says_when_it_was_made() -> None:
    assert ulid_time(ulid_prefix(START) + "A" * 16) == START
    assert ulid_prefix(START) < ulid_prefix(START + timedelta(milliseconds=1))
    assert ulid_time("ZZZZZZZZZZ") is None
    assert ulid_time("u") is None
    assert ulid_time("\x1b" * 26) is None


def test_a_queued_batch_is_played_from_its_first_episode_on(store: RunStore) -> None:
    store.apply_list(node_list(batch_state(0, "queued")))
    assert store.active_batch() is None
    store.apply_events([live(started(0))])
    played = store.active_batch()
    assert played is not None
    assert (played.batch_id, played.status) == (batch_id(0), "running")


def test_stored_episodes_and_unusable_files_have_lists_read_again(store: RunStore) -> None:
    store.apply_stored([])
    assert store.n_ended == 1
