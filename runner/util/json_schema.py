"""A check of JSON values against the part of JSON Schema that function schemas use: types, enumerations and keys.

Patterns are never evaluated, because a hostile one can take forever, and every keyword that is not known here allows
everything, as does a part of a schema that has another form than expected. Schemas and values come from outside: the
library ``jsonschema`` evaluates patterns, and fails on deep nesting, since it is recursive.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

_MAX_SHOWN = 100
"""Maximum number of characters of a value in a reason."""
_MAX_OPTIONS = 50
"""Maximum number of allowed values that a reason lists."""
_TYPES: Final[Mapping[str, Callable[[object], bool]]] = {
    "string": lambda value: type(value) is str,
    "integer": lambda value: type(value) is int or (type(value) is float and value.is_integer()),
    "number": lambda value: type(value) in (int, float),
    "boolean": lambda value: type(value) is bool,
    "null": lambda value: value is None,
    "array": lambda value: type(value) is list,
    "object": lambda value: type(value) is dict,
}


def find_mismatch(value: object, schema: object) -> str | None:
    """Return why a value, any decoded JSON, does not match a schema, any object; None if it does.

    Keys that an object's schema does not name do not match, unless it names none or has ``additionalProperties``.
    """
    # Not recursive, because values and schemas may be nested deeply.
    pending: list[tuple[str, object, object]] = [("", value, schema)]
    for place, part, expected in pending:  # which grows meanwhile
        if not isinstance(expected, dict):
            continue
        if reason := _own_mismatch(part, expected):
            return f"{place}: {reason}" if place else reason
        if type(part) is dict:
            if reason := _key_mismatch(place, part, expected):
                return reason
            named, others = expected.get("properties"), expected.get("additionalProperties")
            known: Mapping[str, Any] = named if isinstance(named, dict) else {}
            pending += [(_join(place, name), item, known.get(name, others)) for name, item in part.items()]
        elif type(part) is list and (items := expected.get("items")) is not None:
            pending += [(f"{place}[{index}]", item, items) for index, item in enumerate(part)]
    return None


def allowed_values(schema: Mapping[str, Any]) -> str:
    """Return what a schema allows, such as ``one of "up", "down"`` or ``integer``; empty if that is anything."""
    if isinstance(options := schema.get("enum"), list):
        if not options:
            return "no value"
        more = ", …" if len(options) > _MAX_OPTIONS else ""
        return f"one of {', '.join(map(show_value, options[:_MAX_OPTIONS]))}{more}"
    return " or ".join(_type_names(schema))


def _own_mismatch(value: object, schema: Mapping[str, Any]) -> str | None:
    names = _type_names(schema)
    fits = not names or any(_TYPES[name](value) for name in names)
    if fits and isinstance(options := schema.get("enum"), list):
        fits = any(_is_equal(value, option) for option in options)
    return None if fits else f"{allowed_values(schema)}; got {show_value(value)}"


def _type_names(schema: Mapping[str, Any]) -> Sequence[str]:
    """Empty if the schema allows all types, or one that is not known."""
    allowed = schema.get("type")
    names: Sequence[Any] = allowed if isinstance(allowed, list) else (allowed,)
    return names if all(isinstance(name, str) and name in _TYPES for name in names) else ()


def _key_mismatch(place: str, value: Mapping[str, Any], schema: Mapping[str, Any]) -> str | None:
    properties, required = schema.get("properties"), schema.get("required")
    for name in required if isinstance(required, list) else ():
        if isinstance(name, str) and name not in value:
            return f"{_join(place, name)} is missing"
    extra = schema.get("additionalProperties", not properties)
    if extra is False and isinstance(properties, dict | None):
        for name in value:
            if name not in (properties or ()):
                return f"{_join(place, name)} is not one of {'the known keys' if place else 'its arguments'}"
    return None


def _join(place: str, name: str) -> str:
    shown = name if name.isidentifier() and len(name) <= _MAX_SHOWN else show_value(name)
    return f"{place}.{shown}" if place else shown


def _is_equal(value: object, option: object) -> bool:
    try:
        return _is_same(value, option)
    except RecursionError:  # values that are nested deeply
        return False


def _is_same(value: object, option: object) -> bool:
    if isinstance(value, bool) or isinstance(option, bool):  # in Python, True == 1
        return value is option
    if isinstance(value, list) and isinstance(option, list):
        return len(value) == len(option) and all(map(_is_same, value, option))
    if isinstance(value, dict) and isinstance(option, dict):
        return value.keys() == option.keys() and all(_is_same(item, option[key]) for key, item in value.items())
    return bool(value == option)


def show_value(value: object) -> str:
    """Return a value in JSON for a message, cut to 100 characters; of an object or array only that it is one."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):  # a schema in Python may hold anything, and an integer may be too long to be shown
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
