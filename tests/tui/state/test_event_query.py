from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_tui.state.event_log import ALL_SUBJECTS, parse_patterns, parse_start, resolve_start
from tests.support.examples import examples

pytestmark = pytest.mark.usefixtures("utc")
NOW = datetime(2026, 3, 4, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("all", "all"),
        (" now ", "now"),
        ("1234", 1234),
        ("#7", 7),
        ("10m", NOW - timedelta(minutes=10)),
        ("2d", NOW - timedelta(days=2)),
        ("11:30", NOW - timedelta(minutes=30)),
        ("11:59:30", NOW - timedelta(seconds=30)),
        ("12:30", NOW - timedelta(hours=23, minutes=30)),
        ("2026-03-04 11:00", NOW - timedelta(hours=1)),
        ("2026-03-04T13:00:00+02:00", NOW - timedelta(hours=1)),
        ("", None),
        ("25:00", None),
        ("yesterday", None),
        ("-1", None),
        ("9" * 50, None),
        ("0001-01-01T00:00:00+23:00", None),
    ],
)
def test_a_start_of_the_history_is_parsed(text: str, start: object) -> None:
    assert parse_start(text, NOW) == start


@given(st.text(max_size=30) | st.from_regex(r"[0-9:smhd#. -]{0,20}", fullmatch=True))
@settings(max_examples=examples(200), deadline=None)
def test_any_text_parses_to_a_usable_start_or_none(text: str) -> None:
    start = parse_start(text, NOW)
    if start is not None:
        since = resolve_start(start, NOW)
        assert isinstance(since, str | int) or since >= timedelta()


def test_a_start_in_the_future_begins_now() -> None:
    assert resolve_start(NOW + timedelta(days=1), NOW) == timedelta()
    assert resolve_start(NOW - timedelta(days=1), NOW) == timedelta(days=1)


@pytest.mark.parametrize(
    ("text", "patterns"),
    [
        ("", ALL_SUBJECTS),
        ("a.>", ("a.>",)),
        ("a.*.c, b", ("a.*.c", "b")),
        ("a..b", None),
        ("a.>.b", None),
        ("a>", None),
        ("x" * 300, None),
        (" ".join(f"s{n}" for n in range(50)), None),
    ],
)
def test_subject_patterns_are_parsed(text: str, patterns: tuple[str, ...] | None) -> None:
    assert parse_patterns(text) == patterns
