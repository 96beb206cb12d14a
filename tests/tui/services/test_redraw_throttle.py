from __future__ import annotations

import pytest

from agentgym_tui.services.timers import MAX_INTERVAL_S, MIN_INTERVAL_S, RedrawThrottle
from tests.support.console.live_items import FakeClock


@pytest.mark.parametrize(
    ("worked_s", "apart_s"), [(0.0, MIN_INTERVAL_S), (0.01, MIN_INTERVAL_S), (0.03, 0.15), (3.0, MAX_INTERVAL_S)]
)
def test_the_more_there_is_to_do_the_less_often_it_draws(worked_s: float, apart_s: float) -> None:
    clock, worked = FakeClock(), FakeClock(0.0)
    pace = RedrawThrottle(clock, worked)
    assert pace.wait_s == 0
    pace.mark_redrawn()
    worked.at += worked_s
    assert pace.wait_s == pytest.approx(apart_s)
    clock.at += apart_s / 2
    assert pace.wait_s == pytest.approx(apart_s / 2)
    clock.at += apart_s
    assert pace.wait_s == 0
