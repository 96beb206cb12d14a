"""A stopwatch that can be paused."""

from __future__ import annotations

from runner.util.clock import Stopwatch
from tests.support.manual_clock import ManualClock


def test_a_stopwatch_does_not_count_its_pauses() -> None:
    clock = ManualClock()
    watch = Stopwatch(clock)
    watch.set_paused(False)
    clock.now += 5
    for _ in range(2):
        watch.set_paused(True)
        clock.now += 30
        assert watch.seconds == 5
    watch.set_paused(False)
    clock.now += 2
    assert watch.seconds == 7
