from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import pytest
from textual import _wait

PAUSE_S: Final = 0.005
"""After each key a pilot waits until nothing was done for so long, a quarter of what it waits by itself."""


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_wait, "SLEEP_GRANULARITY", PAUSE_S)
    monkeypatch.setattr(_wait, "SLEEP_IDLE", PAUSE_S / 10)  # a slow machine needs some of it to wake up


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times of day are shown as they are there."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
