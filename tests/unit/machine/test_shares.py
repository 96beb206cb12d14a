"""Shares of measured amounts: nothing is lost or counted twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.machine.sampler import ShareLedger

STEPS = st.lists(
    st.tuples(
        st.floats(0.0, 100.0, allow_subnormal=False),
        st.one_of(
            st.tuples(st.just("start"), st.integers(0, 4)),
            st.tuples(st.just("stop"), st.integers(0, 4)),
            st.tuples(st.just("add"), st.one_of(st.none(), st.floats(-1e6, 1e6, allow_subnormal=False))),
        ),
    ),
    max_size=40,
)


@given(STEPS)
def test_the_shares_and_what_no_episode_used_are_the_total(steps: list[tuple[float, tuple[str, float | None]]]) -> None:
    ledger, now, running = ShareLedger(), 0.0, set[str]()
    total = shares = 0.0
    for seconds, (action, value) in steps:
        now += seconds
        episode = str(value)
        if action == "add":
            ledger.add(value, now)
            total += value or 0.0
        elif action == "start" and episode not in running:
            running.add(episode)
            ledger.start(episode, now)
        elif action == "stop" and episode in running:
            running.discard(episode)
            amount = ledger.stop(episode, now)
            assert amount is None or amount >= 0
            shares += amount or 0.0
    shares += sum(amount or 0.0 for amount in ledger.running.values())
    assert shares + ledger.carry + ledger.unassigned == pytest.approx(total, rel=1e-6, abs=1e-3)


@given(st.lists(st.tuples(st.floats(0.1, 10.0), st.floats(0.0, 1000.0)), min_size=1, max_size=10), st.integers(1, 5))
def test_episodes_that_run_from_the_first_to_the_last_reading_share_all(
    intervals: list[tuple[float, float]], n: int
) -> None:
    ledger, now = ShareLedger(), 5.0
    for index in range(n):
        ledger.start(str(index), now)
    ledger.add(None, now)
    for seconds, amount in intervals:
        now += seconds
        ledger.add(amount, now)
    shares = [ledger.stop(str(index), now) for index in range(n)]
    total = sum(amount for _, amount in intervals)
    assert [*shares] == [pytest.approx(total / n, abs=1e-6)] * n


def test_an_episode_alone_gets_what_was_used_while_it_ran() -> None:
    ledger = ShareLedger()
    ledger.add(None, 0.0)
    ledger.add(200.0, 2.0)  # 100 per second, no episode
    ledger.start("a", 3.0)
    ledger.add(200.0, 4.0)
    assert ledger.stop("a", 5.0) == pytest.approx(100 + 100)  # the last second at the rate before
    assert round(ledger.unassigned, 6) == 300 and round(ledger.carry, 6) == -100
    ledger.add(200.0, 6.0)
    assert round(ledger.unassigned, 6) == 400 and ledger.carry == 0
