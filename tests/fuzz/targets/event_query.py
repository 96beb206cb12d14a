"""Typed queries of the console: subject patterns, where reading starts, and search words."""

from __future__ import annotations

from datetime import UTC, datetime

from agentgym_tui.state.event_log import parse_patterns, parse_start, resolve_start
from runner.bus.request_server import is_inbox, sender_of
from runner.events.subjects import PATTERN

TOKENS = (b"agentgym.>", b"*", b"10m", b"14:30", b"#12", b"2026-03-04T05:06:07+23:59", b"_INBOX.", b"0001-01-01")
NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


def check(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    patterns = parse_patterns(text)
    if patterns is not None:
        assert all(PATTERN.fullmatch(pattern) and pattern.encode() for pattern in patterns)
        assert parse_patterns(" ".join(patterns)) == patterns
    start = parse_start(text, NOW)
    if start is not None:
        since = resolve_start(start, NOW)
        assert not isinstance(start, datetime) or start.utcoffset() is not None
        assert not isinstance(start, int) or 0 <= start < 10**18
        assert since == start or isinstance(start, datetime)
    if is_inbox(text):
        assert text.isascii() and text.isprintable() and not set(text) & set(" *>")
        assert text.startswith(sender_of(text))
