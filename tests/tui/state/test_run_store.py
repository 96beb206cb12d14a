from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

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


def streamed_text(played: Episode) -> str:
    return played.streaming.text if played.streaming is not None else ""


def test_an_episode_end_before_its_steps_loses_no_step(run_store: RunStore) -> None:
    first, *between, last = episode_items(0)
    run_store.apply_events([live(first, last)])
    played = run_store.episodes[episode_id(0)]
    assert (played.outcome, played.n_missing, played.steps) == ("success", len(between), [])
    run_store.apply_events([live(*between), live(*between)])
    assert [s.index for s in played.steps] == [0, 1, 2]
    assert (played.n_missing, played.outcome, played.rounds) == (0, "success", 3)


def test_an_episode_is_assembled_from_its_items(run_store: RunStore) -> None:
    run_store.apply_events([live(*episode_items(0)[:-1], token(0, 4, "I thi", 3), token(0, 5, "nk", 3))])
    played = run_store.episodes[episode_id(0)]
    assert (played.env, played.agent, played.node) == ("Wordle", "oracle", NODE)
    assert [s.index for s in played.steps] == [0, 1, 2]
    assert (played.rounds, played.reward, played.tokens.prompt, streamed_text(played)) == (3, 0.75, 360, "I think")
    assert played.reset_observation == [{"role": "user", "content": "observation 0"}]
    assert run_store.running_episodes() == [played]
    run_store.apply_events([live(ended(0, 6))])
    assert (played.outcome, played.streaming, run_store.running_episodes(), run_store.n_ended) == (
        "success",
        None,
        [],
        1,
    )


def test_repeated_items_are_skipped_and_gaps_are_counted(run_store: RunStore) -> None:
    items = episode_items(0, 5)
    run_store.apply_events([live(*items[:2], *items[:3]), live(*items[4:])])
    played = run_store.episodes[episode_id(0)]
    assert [s.index for s in played.steps] == [0, 1, 3, 4]
    assert played.n_missing == 1
    assert played.outcome == "success"


def test_a_late_subscriber_reads_missing_steps_from_the_file(run_store: RunStore) -> None:
    run_store.apply_events([live(heartbeat(), timestep(0, 2), timestep(0, 3))])
    late = run_store.episodes[episode_id(0)]
    assert (late.env, late.n_missing, late.running) == ("", 3, True)
    run_store.merge_episode(episode(0, 4, outcome=None))
    assert (late.env, late.n_missing, len(late.steps), late.reward) == ("Wordle", 0, 4, 1.0)
    run_store.apply_events([live(timestep(0, 3), timestep(0, 4))])
    assert late.n_missing == 0
    run_store.apply_events([live(timestep(0, 6))])
    assert ([s.index for s in late.steps], late.n_missing) == ([0, 1, 2, 3, 4, 6], 1)


def test_steps_from_a_file_take_precedence_over_clipped_live_steps(run_store: RunStore) -> None:
    run_store.apply_events([live(started(0), timestep(0, 0, left_out=7))])
    run_store.merge_episode(episode(0, 1, outcome=None))
    assert run_store.episodes[episode_id(0)].steps[0].left_out == 0
    reversed_order = RunStore()
    reversed_order.merge_episode(episode(0, 1, outcome=None))
    reversed_order.apply_events([live(started(0), timestep(0, 0, left_out=7))])
    assert reversed_order.episodes[episode_id(0)].steps[0].left_out == 0
    assert reversed_order.episodes[episode_id(0)].n_missing == 0


def test_the_text_of_a_failed_endpoint_is_discarded(run_store: RunStore) -> None:
    restart = msgspec.structs.replace(token(0, 2, "", 0), restart=True)
    run_store.apply_events([live(started(0), token(0, 1, "half an ans"), restart)])
    assert streamed_text(run_store.episodes[episode_id(0)]) == ""
    run_store.apply_events([live(token(0, 3, "whole", 0))])
    assert streamed_text(run_store.episodes[episode_id(0)]) == "whole"


def test_reasoning_text_and_tool_calls_are_assembled_separately(run_store: RunStore) -> None:
    later = START + timedelta(seconds=2)
    run_store.apply_events([live(started(0), token(0, 1, "", endpoint="gateway", model="m"))])
    run_store.apply_events(
        [live(token(0, 2, "so ", part="reasoning", n=4, ttft_s=0.5), token(0, 3, "on", part="reasoning", n=1))]
    )
    calls = [token(0, 5, "", part="call", tool="guess", n=1), token(0, 6, '{"a"', part="call", tool="guess", n=2)]
    other = token(0, 7, "{}", part="call", call=1, tool="look", n=3, at=later)
    run_store.apply_events([live(token(0, 4, "I go", n=2), *calls, other)])
    answer = run_store.episodes[episode_id(0)].streaming
    assert answer is not None
    assert (answer.endpoint, answer.model, answer.reasoning, answer.text) == ("gateway", "m", "so on", "I go")
    assert [(call.tool, call.arguments) for call in answer.calls] == [("guess", '{"a"'), ("look", "{}")]
    assert (answer.ttft_s, answer.n_tokens, answer.tokens_per_s) == (0.5, 13, 4.5)
    run_store.apply_events([live(timestep(0, 0, seq=8))])
    assert run_store.episodes[episode_id(0)].streaming is None


def test_a_streaming_answer_is_bounded(run_store: RunStore) -> None:
    long = "x" * 50_000
    parts: list[dict[str, Any]] = [{}, {"part": "reasoning"}, *({"part": "call", "call": n % 40} for n in range(80))]
    run_store.apply_events([live(started(0), *(token(0, seq, long, **part) for seq, part in enumerate(parts * 2, 1)))])
    run_store.apply_events([live(*(token(0, 200 + n, "", failure=long) for n in range(50)))])
    answer = run_store.episodes[episode_id(0)].streaming
    assert answer is not None
    assert max(len(answer.text), len(answer.reasoning)) == MAX_STREAMED_CHARS
    assert len(answer.calls) == MAX_CALLS
    assert {len(call.arguments) for call in answer.calls} == {MAX_ARGUMENT_CHARS}
    assert answer.n_text_dropped == answer.n_reasoning_dropped == 2 * len(long) - MAX_STREAMED_CHARS
    assert {call.n_dropped for call in answer.calls} == {4 * len(long) - MAX_ARGUMENT_CHARS}
    assert len(answer.failures) == MAX_FAILURES


def endpoint_answers(store: RunStore) -> bool:
    return store.endpoints["gateway"].is_answering


def failover_tokens(seq: int, step: int = 0) -> list[TokenText]:
    """The gateway fails in the middle of an answer, and the next endpoint takes over."""
    failure = "gateway: the connection broke"
    return [
        token(0, seq, "", step, endpoint="gateway"),
        token(0, seq + 1, "half an ans", step),
        token(0, seq + 2, "", step, failure=failure, restart=True),
        token(0, seq + 3, "", step, endpoint="ollama"),
    ]


def test_a_failover_is_reported_immediately_and_only_once(run_store: RunStore) -> None:
    run_store.apply_events(
        [live(model_health("gateway", "up", None), model_health("ollama", "up", None), started(0), *failover_tokens(1))]
    )
    answer = run_store.episodes[episode_id(0)].streaming
    assert answer is not None
    assert (answer.text, answer.endpoint, answer.failures) == ("", "ollama", ("gateway: the connection broke",))
    (failover,) = run_store.failovers
    assert (failover.env, failover.failed, failover.reason, failover.endpoint) == (
        "Wordle",
        ("gateway",),
        "the connection broke",
        "ollama",
    )
    assert [endpoint.is_answering for endpoint in run_store.endpoints.values()] == [False, True]
    run_store.apply_events([live(timestep(0, 0, seq=5, endpoint="ollama", warnings=["gateway: the connection broke"]))])
    run_store.apply_events([live(*failover_tokens(6, 1))])
    assert (len(run_store.failovers), run_store.n_failovers) == (1, 1)
    run_store.apply_events([live(timestep(0, 1, seq=10, endpoint="gateway"))])
    assert [(each.failed, each.endpoint) for each in run_store.failovers] == [(("gateway",), "ollama"), ((), "gateway")]
    assert run_store.endpoints["gateway"].is_answering
    assert run_store.episodes[episode_id(0)].fallback == "ollama"


def test_a_retry_on_the_first_endpoint_is_no_fallback(run_store: RunStore) -> None:
    failures = [token(0, n, "", failure=f"{name}: HTTP 500") for n, name in ((1, "gateway"), (3, "ollama"))]
    run_store.apply_events([live(started(0), failures[0], token(0, 2, "", endpoint="ollama"), failures[1])])
    run_store.apply_events([live(token(0, 4, "", endpoint="gateway"))])
    answer = run_store.episodes[episode_id(0)].streaming
    assert answer is not None
    assert answer.skipped_endpoints == []
    assert [each.endpoint for each in run_store.failovers] == ["ollama"]
    warnings = ["gateway: HTTP 500", "ollama: HTTP 500"]
    run_store.apply_events([live(timestep(0, 0, seq=5, endpoint="gateway", warnings=warnings))])
    assert run_store.episodes[episode_id(0)].fallback is None
    assert [each.endpoint for each in run_store.failovers] == ["ollama", "gateway"]
    run_store.apply_events([live(timestep(0, 1, seq=6, endpoint="ollama", warnings=warnings))])
    assert run_store.episodes[episode_id(0)].fallback == "ollama"


def test_an_endpoint_in_cooldown_is_not_answering_until_its_health_is_up(run_store: RunStore) -> None:
    run_store.apply_events([live(model_health("gateway", "up", None, rest_s=27.0))])
    assert endpoint_answers(run_store) is False
    run_store.apply_events([live(model_health("gateway", "up", None))])
    assert endpoint_answers(run_store) is True
    run_store.apply_events([live(started(0), token(0, 1, "", failure="gateway: HTTP 500"))])
    assert run_store.endpoints["gateway"].failure == "HTTP 500"
    run_store.apply_events([live(model_health("gateway", "up", None))])
    assert run_store.endpoints["gateway"].failure is None


def test_the_usage_of_a_batch_adds_finished_and_running_episodes(run_store: RunStore) -> None:
    usage: dict[str, Any] = {"tokens": Tokens(100, 10), "cost": 0.5}
    run_store.apply_events(
        [live(*episode_items(0)), live(started(1), timestep(1, 0, **usage), timestep(1, 1, **usage))]
    )
    batch = run_store.batches[batch_id(0)]
    assert run_store.usage_of(batch) == (
        Tokens(560, 110),
        1.0,
    )  # a node that sends no totals: the sum of the known episodes
    run_store.apply_events([live(progress(0, tokens=Tokens(5_000, 500), cost=2.0))])
    assert run_store.usage_of(batch) == (Tokens(5_200, 520), 3.0)
    run_store.apply_events([live(ended(1, 3))])
    assert run_store.usage_of(batch) == (Tokens(5_000, 500), 2.0)


def test_text_of_a_finished_step_is_not_shown(run_store: RunStore) -> None:
    run_store.apply_events([live(started(0), timestep(0, 0), token(0, 2, "old", 0))])
    assert streamed_text(run_store.episodes[episode_id(0)]) == ""
    run_store.apply_events([live(token(0, 3, "one", 1), token(0, 4, "two", 2))])
    assert streamed_text(run_store.episodes[episode_id(0)]) == "two"


def test_durable_and_live_events_arrive_in_any_order(run_store: RunStore) -> None:
    run_store.apply_events([durable(completed(0))])
    assert run_store.episodes[episode_id(0)].outcome == "success"
    run_store.apply_events([live(*episode_items(0))])
    assert len(run_store.episodes) == 1
    assert len(run_store.episodes[episode_id(0)].steps) == 3
    assert run_store.running_episodes() == []
    assert len(run_store.rewards["Wordle"]) == 1


def test_an_episode_of_another_runner_is_counted_once(run_store: RunStore) -> None:
    run_store.apply_events([foreign(1), foreign(2, success=False), foreign(1)])
    assert [each.outcome for each in run_store.episodes.values()] == ["success", "failure"]
    assert len(run_store.rewards["Maze"]) == 2


def test_environments_keep_the_order_of_the_profile(run_store: RunStore) -> None:
    run_store.apply_events([live(env_health("Other"), env_health("Wordle"))])
    run_store.apply_profile(PROFILE)
    run_store.apply_list(node_list())
    assert list(run_store.envs) == [*(name for _, name, _ in PROFILE), "Other"]
    assert (run_store.envs["Wordle"].status, run_store.envs["Wordle"].tier) == ("embedded", "lightweight")
    assert run_store.envs["Maze"].status is None
    assert run_store.agents == ["oracle", "random", "scripted"]


def test_stored_rows_are_counted_once_and_end_running_episodes(run_store: RunStore) -> None:
    run_store.apply_events([live(*episode_items(0)), live(started(1))])
    rows = [row(n, success=n % 2 == 0, outcome=Outcome.SUCCESS) for n in range(5, -1, -1)]
    run_store.apply_stored([row(6, outcome=Outcome.CANCELLED, success=False), *rows])
    run_store.apply_stored(rows)
    wordle = run_store.envs["Wordle"]
    assert (wordle.n_rated, wordle.n_success, wordle.baseline) == (6, 3, True)
    assert [point.episode_id for point in run_store.rewards["Wordle"]] == [episode_id(n) for n in range(7)]
    assert run_store.running_episodes() == []


def test_models_are_not_mixed_with_baselines(run_store: RunStore) -> None:
    run_store.apply_stored([row(2, model="m", success=False), row(1), row(0)])
    wordle = run_store.envs["Wordle"]
    assert (wordle.n_rated, wordle.n_success, wordle.baseline) == (1, 0, False)


def test_the_oldest_finished_episodes_are_evicted() -> None:
    store = RunStore(max_episodes=3)
    store.apply_events([live(started(0)), *(live(*episode_items(n)) for n in range(1, 5))])
    assert list(store.episodes) == [episode_id(n) for n in (0, 3, 4)]
    store.apply_events([live(timestep(1, 0)), durable(completed(2))])
    assert list(store.episodes) == [episode_id(n) for n in (0, 3, 4)]
    assert store.n_ended == 4


def test_the_texts_of_a_running_episode_are_bounded() -> None:
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


def test_a_new_episode_keeps_its_content_while_a_larger_one_is_trimmed() -> None:
    store = RunStore(max_bytes=100_000)
    store.apply_events([live(started(0)), live(started(1)), live(span_closed(span(1), n=1))])
    for index in range(20):
        store.apply_events([live(timestep(0, index, observation=[{"role": "user", "content": "x" * 10_000}]))])
    assert not store.episodes[episode_id(0)].steps[0].observation
    assert len(store.episodes[episode_id(1)].spans) == 1


def test_bounds_do_not_change_the_episode_that_was_merged() -> None:
    merged = episode(0, 3, steps=[step(n, observation=[{"content": "x" * 60_000}]) for n in range(3)], outcome=None)
    store = RunStore(max_bytes=100_000)
    store.merge_episode(merged)
    assert all(each.observation for each in merged.steps)
    assert not store.episodes[episode_id(0)].steps[0].observation


def test_on_change_is_called_once_per_change_and_not_for_heartbeats(run_store: RunStore) -> None:
    calls: list[int] = []
    run_store.on_change = lambda: calls.append(run_store.version)
    run_store.apply_events([live(heartbeat()), live(*episode_items(0))])
    run_store.apply_events([live(heartbeat())])
    run_store.apply_events([])
    run_store.set_link(BusLink(status="connected"))
    run_store.set_link(BusLink(status="connected"))
    assert calls == [1, 2]


def test_equal_notices_and_malformed_messages_are_counted(run_store: RunStore) -> None:
    gap = Notice(kind="gap", text="messages are gone", count=3)
    raw = RawRow(reason="not JSON", payload=b"", size=0)
    run_store.apply_events(
        [gap, gap, BusMessage(subject="s", headers={}, decoded=raw), live(started(0, episode_id="x" * 999))]
    )
    assert [(note.text, note.n) for note in run_store.notices] == [("messages are gone", 6)]
    assert run_store.n_malformed == 2
    assert run_store.episodes == {}


def test_long_names_are_clipped() -> None:
    store = RunStore()
    store.merge_episode(hostile_episode(0, "n" * 1_000_000, steps=[], spans=[], reset_observation=[]))
    assert len(store.episodes[episode_id(0)].env) == 200
    assert all(len(env) == 200 for env in store.envs)


def test_the_busy_sample_has_a_running_batch() -> None:
    store = busy_store()
    assert [each.outcome for each in store.episodes.values()] == ["success", "failure", "success", None]
    assert (active := store.active_batch()) is not None
    assert (active.n_done, active.n_planned) == (3, 10)


def test_a_ulid_contains_its_creation_time() -> None:
    assert ulid_time(ulid_prefix(START) + "A" * 16) == START
    assert ulid_prefix(START) < ulid_prefix(START + timedelta(milliseconds=1))
    assert ulid_time("ZZZZZZZZZZ") is None
    assert ulid_time("u") is None
    assert ulid_time("\x1b" * 26) is None


def test_a_queued_batch_runs_from_its_first_episode_on(run_store: RunStore) -> None:
    run_store.apply_list(node_list(batch_state(0, "queued")))
    assert run_store.active_batch() is None
    run_store.apply_events([live(started(0))])
    played = run_store.active_batch()
    assert played is not None
    assert (played.batch_id, played.status) == (batch_id(0), "running")


def test_applying_stored_episodes_makes_lists_reload(run_store: RunStore) -> None:
    run_store.apply_stored([])
    assert run_store.n_ended == 1
