from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from agentgym_tui.presenters.episode_facts import StepRows
from agentgym_tui.presenters.live import transcript_title
from agentgym_tui.state.episode import Episode
from agentgym_tui.state.episodes import MAX_ARGUMENT_CHARS, MAX_CALLS, MAX_STREAMED_CHARS
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.state.servers import MAX_FAILURES
from runner.events.live import Heartbeat, TokenText
from runner.types import Tokens
from tests.support.console.line_views import line_text
from tests.support.console.samples import (
    START,
    FakeClock,
    batch_id,
    completed,
    durable,
    empty_store,
    ended,
    episode_id,
    episode_items,
    live,
    model_health,
    progress,
    started,
    timestep,
    token,
)


def streamed_text(played: Episode) -> str:
    return played.streaming.text if played.streaming is not None else ""


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
    assert (len(run_store.failovers), run_store.endpoint_registry.n_failovers) == (1, 1)
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
    run_store.apply_events([durable(completed(1, fallback="ollama")), durable(completed(2))])  # without their steps
    assert [run_store.episodes[episode_id(n)].fallback for n in (1, 2)] == ["ollama", None]


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


def test_the_seconds_without_a_token_are_counted_by_the_clock_of_the_node() -> None:
    clock = FakeClock()
    store = empty_store(clock)
    requested_at, now = START, START + timedelta(seconds=7)
    store.apply_events([live(started(0)), live(token(seq=1, text="", endpoint="gateway", at=requested_at))])
    played = store.episodes[episode_id(0)]
    assert store.answer_wait_s(played) is None
    store.apply_events([live(Heartbeat(at=now))])
    assert store.answer_wait_s(played) == 7.0
    clock.at += 5.0
    assert store.answer_wait_s(played) == 12.0
    assert "gateway · waiting 12 s" in line_text(transcript_title(played, 0, "", 100, 12.0))
    assert "waiting for gateway · 12 s" in "".join(cell.text for cell in StepRows(played, lambda: 12.0).line(0, 80))
    store.apply_events([live(token(seq=2, text="hm", at=now + timedelta(seconds=1)))])
    assert store.answer_wait_s(store.episodes[episode_id(0)]) == 4.0
    assert "silent 4 s" in line_text(transcript_title(played, 0, "", 100, 4.0))
    store.apply_events([live(ended(0, seq=3))])
    assert store.answer_wait_s(store.episodes[episode_id(0)]) is None
