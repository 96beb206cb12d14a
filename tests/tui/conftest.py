from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

import pytest
from textual import _wait
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.css.types import CSSLocation

from agentgym_tui import safe_text

PAUSE_S: Final = 0.005
"""Idle time after which a pilot counts the app as settled; a quarter of Textual's default."""


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_wait, "SLEEP_GRANULARITY", PAUSE_S)
    monkeypatch.setattr(_wait, "SLEEP_IDLE", PAUSE_S / 10)  # not zero: a slow machine needs time to wake up


_PARSED_RULES: dict[tuple[object, ...], list[RuleSet]] = {}


@pytest.fixture(autouse=True)
def shared_styles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse each style sheet once for all apps of a process; Textual itself caches it for one app by the same key."""
    parse_rules = Stylesheet._parse_rules

    def parse_once(sheet: Stylesheet, css: str, read_from: CSSLocation, *args: Any, **kwargs: Any) -> list[RuleSet]:  # noqa: ANN401
        key = (css, read_from, args, *sorted(kwargs.items()), tuple(sorted(sheet._variables.items())))
        if key not in _PARSED_RULES:
            _PARSED_RULES[key] = parse_rules(sheet, css, read_from, *args, **kwargs)
        return _PARSED_RULES[key]

    monkeypatch.setattr(Stylesheet, "_parse_rules", parse_once)


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
