from __future__ import annotations

from datetime import timedelta

import pytest

from agentgym_tui.state.clock_skew import MAX_SENDERS, ClockSkewEstimator
from runner.events.codec import encode
from runner.events.live import LiveBatch
from runner.subscribe.buffer import RawMessage
from tests.support.console.samples import HOSTILE, START, heartbeat


def timed_message(offset_s: float, source: str = "n", **fields: str) -> RawMessage:
    at = (START + timedelta(seconds=offset_s)).isoformat()
    return RawMessage("s", {"ce-time": at, "ce-source": source, **fields}, b"", "S", 1, START)


def test_the_fastest_message_sets_the_skew_of_a_sender_and_the_largest_skew_comes_first() -> None:
    clocks = ClockSkewEstimator()
    for offset in (-30.0, -0.5, -4.0):
        clocks.sample([timed_message(offset)])
    clocks.sample([timed_message(3.5, "ahead"), RawMessage("no.time", {}, b"")])
    assert [tuple(skew) for skew in clocks.skews] == [("ahead", 3.5), ("n", -0.5)]


@pytest.mark.parametrize("n", [2, 3, 7])
def test_every_sender_of_a_batch_is_sampled_in_turn(n: int) -> None:
    clocks = ClockSkewEstimator()
    for _ in range(3 * n):
        clocks.sample([timed_message(float(offset), f"n{offset}") for offset in range(n)])
    assert {skew.sender for skew in clocks.skews} == {f"n{offset}" for offset in range(n)}


def test_live_batches_are_sampled() -> None:
    clocks, batch = ClockSkewEstimator(), LiveBatch(node="pmoves-4090", boot="b", dropped=0, items=[heartbeat()])
    payload = encode(batch)
    clocks.sample([RawMessage("agentgym.live.health.v1.n", {}, payload, "L", 1, START - timedelta(seconds=2))])
    assert [tuple(skew) for skew in clocks.skews] == [("pmoves-4090", 2.0)]


@pytest.mark.parametrize("time_text", ["", "yesterday", "2026-03-04T05:06:07", "9999-12-31T23:59:59-23:00", HOSTILE])
def test_invalid_times_are_ignored(time_text: str) -> None:
    clocks = ClockSkewEstimator()
    clocks.sample([RawMessage("s", {"ce-time": time_text, "ce-source": "n"}, b"", "S", 1, START)])
    clocks.sample([RawMessage("agentgym.live.x", {}, b"[" * 100_000, "S", 1, START)])
    assert clocks.skews == [] or time_text.startswith("9999")


def test_the_number_of_senders_is_bounded() -> None:
    clocks = ClockSkewEstimator()
    for n in range(MAX_SENDERS + 5):
        clocks.sample([timed_message(1.0, f"n{n}")])
    assert len(clocks.skews) == MAX_SENDERS
