"""Conversion of ARE's values to JSON: bounded, without addresses of memory, and without secrets."""

from __future__ import annotations

import base64
import dataclasses
import enum
import json
import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

MAX_TEXT_CHARS = 64_000
"""Maximum length of a text that an agent sees; longer texts are cut, and end with their full length."""
MAX_EVENT_CHARS = 2_000
"""Maximum length of a text in an event of the evaluation."""
MAX_ITEMS = 100
MAX_DEPTH = 6
MASK = "***"

_ADDRESS = re.compile(r" at 0x[0-9a-f]{6,16}")
_SECRET = re.compile(r"passw|secret|token|api_?key|credential|authorization", re.IGNORECASE)


def as_text(value: object, limit: int = MAX_TEXT_CHARS) -> str:
    """Return a result as ARE's own agents see it, ``str(value)``, without addresses and cut to ``limit`` characters."""
    return cut(_ADDRESS.sub("", str(value)), limit)


def cut(text: str, limit: int) -> str:
    """A cut text ends with the full length; no lone surrogates."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def as_json(value: object, limit: int = MAX_EVENT_CHARS, depth: int = MAX_DEPTH) -> Any:  # noqa: ANN401
    """Return a value as JSON data: dataclasses as objects, enums as their values, bytes as Base64, others as text."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, enum.Enum):
        return as_json(value.value, limit, depth)
    if isinstance(value, str):
        return cut(value, limit)
    if isinstance(value, bytes):
        return cut(base64.b64encode(value).decode(), limit)
    if depth == 0:
        return as_text(value, limit)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
        return _mapping(fields, limit, depth)
    if isinstance(value, Mapping):
        return _mapping(value, limit, depth)
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json(item, limit, depth - 1) for item in list(value)[:MAX_ITEMS]]
    return as_text(value, limit)


def _mapping(value: Mapping[Any, Any], limit: int, depth: int) -> dict[str, Any]:
    items = list(value.items())[:MAX_ITEMS]
    return {cut(str(key), 200): as_json(item, limit, depth - 1) for key, item in items if key != "self"}


def arguments_of(action: Any) -> dict[str, Any]:  # noqa: ANN401 - ARE's Action
    """Return the arguments of an action without ``self``; those with placeholders as resolved by ARE."""
    given = getattr(action, "resolved_args", None) or getattr(action, "args", None) or {}
    return {str(key): value for key, value in given.items() if key != "self"}


def without_secrets(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as JSON data; at any depth, values are masked whose names are those of secrets."""
    masked: dict[str, Any] = _masked({key: as_json(value) for key, value in arguments.items()})
    return masked


def _masked(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return {key: MASK if _SECRET.search(key) else _masked(item) for key, item in value.items()}
    return [_masked(item) for item in value] if isinstance(value, list) else value


def take_within(items: Iterable[dict[str, Any]], max_items: int, max_chars: int) -> list[dict[str, Any]]:
    taken: list[dict[str, Any]] = []
    for item in islice(items, max_items):
        max_chars -= len(json.dumps(item))
        if max_chars < 0:
            break
        taken.append(item)
    return taken
