from __future__ import annotations

import pytest

from agentgym_tui.services import MAX_INTERVAL_S, MIN_INTERVAL_S, RedrawThrottle
from tests.support.console.live_items import FakeClock


@pytest.mark.parametrize(
    ("cpu_s", "interval_s"), [(0.0, MIN_INTERVAL_S), (0.01, MIN_INTERVAL_S), (0.03, 0.15), (3.0, MAX_INTERVAL_S)]
)
def test_the_redraw_interval_grows_with_the_cpu_time_used(cpu_s: float, interval_s: float) -> None:
    clock, cpu_clock = FakeClock(), FakeClock(0.0)
    throttle = RedrawThrottle(clock, cpu_clock)
    assert throttle.wait_s == 0
    throttle.mark_redrawn()
    cpu_clock.at += cpu_s
    assert throttle.wait_s == pytest.approx(interval_s)
    clock.at += interval_s / 2
    assert throttle.wait_s == pytest.approx(interval_s / 2)
    clock.at += interval_s
    assert throttle.wait_s == 0
