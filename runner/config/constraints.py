"""Constraints that the types of a profile cannot express: unique names and ports, valid URLs, consistent limits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeAlias
from urllib.parse import urlsplit

from runner.config.diagnostics import FormatValue, KeyPath, Problem, format_key_path
from runner.config.field_types import VARIABLE_NAME_PATTERN
from runner.config.profile import FALLBACK, GATEWAY, EnvironmentEntry, Profile, SkipEntry

_HTTP = ("http", "https")
_VARIABLE_NAME = re.compile(VARIABLE_NAME_PATTERN)
_NATS = ("nats", "tls")

_Entries: TypeAlias = list[tuple[KeyPath, EnvironmentEntry | SkipEntry]]


def find_violations(profile: Profile, format_value: FormatValue) -> list[Problem]:
    entries = list(_entries(profile))
    return [
        *_duplicate_names(entries),
        *_duplicate_ports(entries),
        *_invalid_variables(entries),
        *_invalid_urls(profile, entries, format_value),
        *_invalid_windows(profile, format_value),
        *_unknown_endpoints(profile),
        *_unserved_judge(profile),
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


def _duplicate_names(entries: _Entries) -> Iterator[Problem]:
    first: dict[str, KeyPath] = {}
    for key_path, entry in entries:
        if (other := first.setdefault(entry.name.casefold(), key_path)) != key_path:
            yield (*key_path, "name"), f"duplicate name; {format_key_path(other)} has the same name"


def _duplicate_ports(entries: _Entries) -> Iterator[Problem]:
    first: dict[int, KeyPath] = {}
    for key_path, entry in entries:
        if isinstance(entry, SkipEntry) or entry.port is None:
            continue
        if (other := first.setdefault(entry.port, key_path)) != key_path:
            yield (*key_path, "port"), f"duplicate port {entry.port}; {format_key_path(other)} has the same port"


def _invalid_variables(entries: _Entries) -> Iterator[Problem]:
    for key_path, entry in entries:
        for name in entry.env if isinstance(entry, EnvironmentEntry) else ():
            if not _VARIABLE_NAME.fullmatch(name):
                yield (*key_path, "env", name), "expected a variable's name: letters, digits and _, no digit first"


def _invalid_urls(profile: Profile, entries: _Entries, format_value: FormatValue) -> Iterator[Problem]:
    for key_path, url in _http_urls(profile, entries):
        if url is not None and not _is_url(url, _HTTP):
            yield key_path, f"expected an http:// or https:// URL, got {format_value(key_path, url)}"
    key_path = ("nats", "url")
    for server in profile.nats.url.split(",") if profile.nats.url else ():
        if not _is_url(server.strip(), _NATS):
            value = format_value(key_path, server)
            yield key_path, f"expected nats:// or tls:// URLs separated by commas, got {value}"


def _invalid_windows(profile: Profile, format_value: FormatValue) -> Iterator[Problem]:
    events = profile.nats.streams.events
    if events.duplicate_window_sec > events.max_age_sec:  # the NATS server rejects such a stream
        key_path = ("nats", "streams", "events", "duplicate_window_sec")
        value = format_value(key_path, events.duplicate_window_sec)
        yield key_path, f"expected at most max_age_sec, which is {events.max_age_sec:g}, got {value}"


def _unknown_endpoints(profile: Profile) -> Iterator[Problem]:
    names = list(dict.fromkeys([GATEWAY, *profile.agent.endpoint_names, FALLBACK]))
    for name in profile.agent.rate_limits:
        if name not in names:
            yield ("agent", "rate_limits", name), f"unknown endpoint; known endpoints: {', '.join(names)}"


def _unserved_judge(profile: Profile) -> Iterator[Problem]:
    model, agent = profile.are.judge_model, profile.agent
    own_models = [*(entry.model for entry in agent.endpoints), agent.local_fallback or ""]
    if model is not None and agent.mode != "api" and None not in own_models and model not in own_models:
        yield ("are", "judge_model"), f"no endpoint serves it; known models: {', '.join(filter(None, own_models))}"


def _http_urls(profile: Profile, entries: _Entries) -> Iterator[tuple[KeyPath, str | None]]:
    yield ("agent", "api_endpoint"), profile.agent.api_endpoint
    for index, endpoint in enumerate(profile.agent.endpoints):
        yield ("agent", "endpoints", index, "url"), endpoint.url
    for key_path, entry in entries:
        if isinstance(entry, EnvironmentEntry):
            yield (*key_path, "base_url"), entry.base_url
    yield ("nats", "monitor_url"), profile.nats.monitor_url
    yield ("notify", "url"), profile.notify.url


def _is_url(text: str, schemes: tuple[str, ...]) -> bool:
    if re.search(r"\s", text):
        return False
    try:
        parts = urlsplit(text)
        return parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port or IPv6 address
        return False
