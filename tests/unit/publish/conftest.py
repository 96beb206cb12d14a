from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from runner.publish.outbox import Outbox
from runner.util.clock import Clock
from tests.support.publishing import open_outbox


class ManualWallClock:
    """Time of the outbox, advanced by tests."""

    def __init__(self) -> None:
        self.now = datetime(2026, 3, 4, 5, 6, 7, 890123, UTC)

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> ManualWallClock:
    return ManualWallClock()


@pytest.fixture
def outbox(tmp_path: Path, clock: ManualWallClock) -> Iterator[Outbox]:
    with open_outbox(tmp_path, clock=Clock(now=lambda: clock.now)) as outbox:
        yield outbox
