"""Conversion of plain data to a ``Profile``; problems are reported with their key paths."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import msgspec

from runner.config.diagnostics import (
    MAX_PROBLEMS,
    Expanded,
    FormatValue,
    KeyPath,
    Problem,
    expected_at,
    format_key_path,
    is_server_variable,
    known_keys,
)
from runner.config.document import YamlValue
from runner.config.field_types import VARIABLE_NAME_PATTERN, Amount, HostName, VariableValue
from runner.config.profile import FALLBACK, GATEWAY, EnvironmentEntry, Price, Profile, RateLimit, SkipEntry

_HTTP = ("http", "https")
_VARIABLE_NAME = re.compile(VARIABLE_NAME_PATTERN)
_NATS = ("nats", "tls")
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
_VALUE_TYPES: dict[str | int, Any] = {
    "price": Price,
    "rate_limits": RateLimit,
    "env": VariableValue,
    "resources": Amount,
    "addresses": HostName,
}
"""Type of the values of each mapping whose keys the schema does not define."""
_DEFAULT_ENDPOINT_KEYS = ("mode", "api_endpoint", "local_fallback")
"""Keys of ``agent`` about the gateway and Ollama, which are used by default."""
_FIELD = re.compile(r"Object (contains unknown|missing required) field `(.*)`", re.DOTALL)

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


def build_profile(expanded: Expanded, format_value: FormatValue) -> Profile | list[Problem]:
    """Return the profile, or the problems found.

    msgspec reports one problem per conversion. The invalid key is therefore removed and the conversion repeated, so
    that most files get all their problems at once, up to ``MAX_PROBLEMS``; the search ends at a problem that is not a
    key of a mapping.
    """
    if expanded.problems:
        return expanded.problems[:MAX_PROBLEMS]
    problems: list[Problem] = []
    while True:
        try:
            profile = _with_own_endpoints(msgspec.convert(expanded.data, Profile), expanded.data)
        except msgspec.ValidationError as exc:
            key_path, unknown = _locate(str(exc), expanded.data)
            if _restore_text(expanded, key_path):
                continue
            if any(key_path == reported for reported, _ in problems):  # a required key that was removed as invalid
                return problems
            problems.append((key_path, _reason(key_path, unknown, expanded.data, format_value)))
            if len(problems) == MAX_PROBLEMS or not _remove_key(expanded.data, key_path):
                return problems
        else:
            return problems or find_violations(profile, format_value) or profile


def _with_own_endpoints(profile: Profile, data: YamlValue) -> Profile:
    """Leave out the gateway and Ollama of a profile with ``endpoints`` that sets no key of theirs.

    Its default model is the model of its first endpoint.
    """
    keys, agent = _value_at(data, ("agent",)), profile.agent
    if not isinstance(keys, dict) or not agent.endpoints or not keys.keys().isdisjoint(_DEFAULT_ENDPOINT_KEYS):
        return profile
    model = agent.model if "model" in keys else agent.endpoints[0].model or agent.model
    agent = msgspec.structs.replace(agent, mode="local", local_fallback=None, model=model)
    return msgspec.structs.replace(profile, agent=agent)


def _locate(message: str, data: YamlValue) -> tuple[KeyPath, bool]:
    problem, separator, steps = message.rpartition(" - at `$")
    key_path: KeyPath = ()
    for key, index in _STEP.findall(steps if separator else ""):
        key_path += (_invalid_key(key_path, data) if index == "..." else int(index) if index else key,)
    field = _FIELD.fullmatch(problem if separator else message)
    if field is None:
        return key_path, False
    return (*key_path, field[2]), field[1] == "contains unknown"


def _invalid_key(key_path: KeyPath, data: YamlValue) -> str:
    """The message of msgspec has ``[...]`` in place of a key that the schema does not define; see ``_VALUE_TYPES``."""
    mapping, value_type = _value_at(data, key_path), _VALUE_TYPES.get(key_path[-1] if key_path else "", Any)
    for key, value in mapping.items() if isinstance(mapping, dict) else ():
        try:
            msgspec.convert(value, value_type)
        except msgspec.ValidationError:
            return key
    return "..."


def _value_at(data: YamlValue, key_path: KeyPath) -> YamlValue:
    for step in key_path:
        if isinstance(data, dict) and isinstance(step, str):
            data = data.get(step)
        elif isinstance(data, list) and isinstance(step, int) and step < len(data):
            data = data[step]
        else:
            return None
    return data


def _restore_text(expanded: Expanded, key_path: KeyPath) -> bool:
    """Replace a number, boolean or null at ``key_path`` by its text in ``expanded.texts``; False if it has none.

    A whole number in ``env`` of an environment has a text, too: its digits.
    """
    text = expanded.texts.pop(key_path, None)
    if text is None and is_server_variable(key_path) and type(value := _value_at(expanded.data, key_path)) is int:
        text = str(value)
    if text is None or not key_path:
        return False
    parent, last = _value_at(expanded.data, key_path[:-1]), key_path[-1]
    if isinstance(parent, dict):
        parent[str(last)] = text
    elif isinstance(parent, list) and isinstance(last, int):
        parent[last] = text
    return True


def _remove_key(data: YamlValue, key_path: KeyPath) -> bool:
    parent, last = _value_at(data, key_path[:-1]), key_path[-1] if key_path else None
    if not isinstance(parent, dict) or not isinstance(last, str) or last not in parent:
        return False
    del parent[last]
    return True


def _reason(key_path: KeyPath, unknown: bool, data: YamlValue, format_value: FormatValue) -> str:
    if unknown:
        return f"unknown key; known keys: {', '.join(known_keys(key_path[:-1]))}"
    return f"expected {expected_at(key_path)}, got {format_value(key_path, _value_at(data, key_path))}"
