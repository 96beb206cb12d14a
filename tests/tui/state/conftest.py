from __future__ import annotations

import pytest

from agentgym_tui.state.run_store import RunStore
from tests.support.console.samples import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def run_store(clock: FakeClock) -> RunStore:
    return RunStore(now=clock)
