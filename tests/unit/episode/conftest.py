from __future__ import annotations

import pytest

from tests.support.fakes import Counter, UpAgent


@pytest.fixture(autouse=True)
def _reset_fakes() -> None:
    Counter.closed.clear()
    UpAgent.closed.clear()
