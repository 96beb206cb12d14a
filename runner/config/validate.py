"""Conversion of plain data to a ``Profile``; problems are reported with their key paths."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from runner.config.constraints import find_violations
from runner.config.diagnostics import (
    MAX_PROBLEMS,
    FormatValue,
    KeyPath,
    Problem,
    expected_at,
    is_server_variable,
    known_keys,
)
from runner.config.document import YamlValue
from runner.config.expand import Expanded
from runner.config.field_types import Amount, HostName, VariableValue
from runner.config.profile import Price, Profile, RateLimit

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
