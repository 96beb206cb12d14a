from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import pytest
from textual import _wait
from textual._compositor import Compositor
from textual.css.stylesheet import Stylesheet
from textual.pilot import Pilot

from agentgym_tui import safe_text
from tests.support.console.quiet import parse_once, render_what_is_read, wait_until_quiet

PAUSE_S: Final = 0.005
"""Idle time after which a pilot counts the app as settled; a quarter of Textual's default."""


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_wait, "SLEEP_GRANULARITY", PAUSE_S)
    monkeypatch.setattr(_wait, "SLEEP_IDLE", PAUSE_S / 10)  # not zero: a slow machine needs time to wake up
    monkeypatch.setattr(Pilot, "_wait_for_screen", wait_until_quiet)
    monkeypatch.setattr(Stylesheet, "_parse_rules", parse_once)
    monkeypatch.setattr(Compositor, "render_update", render_what_is_read)


@pytest.fixture(autouse=True)
def current_secrets() -> Iterator[None]:
    """Collect the secrets of each test's environment."""
    safe_text._masker.cache_clear()
    yield
    safe_text._masker.cache_clear()


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the local time zone to UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
