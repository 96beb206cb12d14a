"""What a profile's types cannot say: names and ports stand once, URLs can be used, and limits fit each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeAlias
from urllib.parse import urlsplit

from runner.config.diagnostics import FormatValue, KeyPath, Problem, format_key_path
from runner.config.profile import EnvironmentEntry, Profile, SkipEntry

_HTTP = ("http", "https")
_NATS = ("nats", "tls", "ws", "wss")

_Entries: TypeAlias = list[tuple[KeyPath, EnvironmentEntry | SkipEntry]]


def find_violations(profile: Profile, show: FormatValue) -> list[Problem]:
    """Every rule that the profile breaks."""
    entries = list(_entries(profile))
    return [
        *_repeated_names(entries),
        *_repeated_ports(entries),
        *_bad_urls(profile, entries, show),
        *_bad_windows(profile, show),
    ]


def _entries(profile: Profile) -> Iterator[tuple[KeyPath, EnvironmentEntry | SkipEntry]]:
    environments = profile.environments
    tiers: dict[str, tuple[EnvironmentEntry | SkipEntry, ...]] = {
        "lightweight": environments.lightweight,
        "moderate": environments.moderate,
        "skip": environments.skip,
    }
    for tier, entries in tiers.items():
        for index, entry in enumerate(entries):
            yield ("environments", tier, index), entry


def _repeated_names(entries: _Entries) -> Iterator[Problem]:
    first: dict[str, KeyPath] = {}
    for where, entry in entries:
        if (other := first.setdefault(entry.name.casefold(), where)) != where:
            yield (*where, "name"), f"expected a name that stands once, but {format_key_path(other)} has the same"


def _repeated_ports(entries: _Entries) -> Iterator[Problem]:
    first: dict[int, KeyPath] = {}
    for where, entry in entries:
        if isinstance(entry, SkipEntry) or entry.port is None:
            continue
        if (other := first.setdefault(entry.port, where)) != where:
            yield (
                (*where, "port"),
                f"expected a port that stands once, but {format_key_path(other)} has {entry.port} too",
            )


def _bad_urls(profile: Profile, entries: _Entries, show: FormatValue) -> Iterator[Problem]:
    for where, url in _http_urls(profile, entries):
        if url is not None and not _is_url(url, _HTTP):
            yield where, f"expected an http:// or https:// URL, got {show(where, url)}"
    where = ("nats", "url")
    for server in profile.nats.url.split(",") if profile.nats.url else ():
        if not _is_url(server.strip(), _NATS):
            yield where, f"expected nats://, tls://, ws:// or wss:// URLs joined by commas, got {show(where, server)}"


def _bad_windows(profile: Profile, show: FormatValue) -> Iterator[Problem]:
    """The server makes no stream that would remember ids for longer than messages."""
    events = profile.nats.streams.events
    if events.duplicate_window_sec > events.max_age_sec:
        where = ("nats", "streams", "events", "duplicate_window_sec")
        shown = show(where, events.duplicate_window_sec)
        yield where, f"expected at most max_age_sec, which is {events.max_age_sec:g}, got {shown}"


def _http_urls(profile: Profile, entries: _Entries) -> Iterator[tuple[KeyPath, str | None]]:
    yield ("agent", "api_endpoint"), profile.agent.api_endpoint
    for index, endpoint in enumerate(profile.agent.endpoints):
        yield ("agent", "endpoints", index, "url"), endpoint.url
    for where, entry in entries:
        if isinstance(entry, EnvironmentEntry):
            yield (*where, "base_url"), entry.base_url
    yield ("nats", "monitor_url"), profile.nats.monitor_url


def _is_url(text: str, schemes: tuple[str, ...]) -> bool:
    if re.search(r"\s", text):
        return False
    try:
        parts = urlsplit(text)
        return parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port or an IPv6 address that is none
        return False
