"""What both sides of ARE's sockets need: bytes of the protocol, and the tools of an agent as JSON Schema.

Standard library only, since ARE's process loads it, too. The schemas come from the Python types of the arguments:
ARE's own ``AppTool.to_open_ai`` yields no valid JSON Schema: its types are Python's (``list[str] | None``), and every
argument is required.
"""

from __future__ import annotations

import enum
import json
import re
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Protocol, Union

MAX_FRAME_BYTES = 16 << 20
"""Maximum size of a frame's JSON object, in both directions; ``runner.envs.are.client`` describes the frames."""
MAX_NAME_CHARS = 64
"""Longest name of a function that OpenAI's API accepts."""
WAIT = "wait"
"""Name of the tool that lets simulated time pass; ARE's own tools are named ``App__function``."""
DEFAULT_WAIT_S = 10
MAX_WAIT_S = 3600
"""Maximum simulated seconds of one wait."""
WAIT_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": WAIT,
        "description": (
            "Let simulated time pass without doing anything. It ends early when a message or a notification arrives. "
            "Every other tool takes one simulated second."
        ),
        "parameters": {
            "type": "object",
            "properties": {
                "seconds": {
                    "type": "integer",
                    "description": "Simulated seconds to wait at most.",
                    "minimum": 1,
                    "maximum": MAX_WAIT_S,
                    "default": DEFAULT_WAIT_S,
                }
            },
            "required": [],
            "additionalProperties": False,
        },
    },
}

_SCALARS: dict[object, str] = {
    str: "string",
    bytes: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
    None: "null",
    dict: "object",
    list: "array",
    set: "array",
    frozenset: "array",
    tuple: "array",
}
_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9_-]")


class ToolArgument(Protocol):
    """An argument of a tool, as ARE's ``AppToolArg``."""

    name: str
    description: str | None
    has_default: bool
    default: Any
    type_obj: Any


def function_schema(name: str, description: str | None, arguments: Iterable[ToolArgument]) -> dict[str, Any]:
    listed = list(arguments)
    parameters = {
        "type": "object",
        "properties": {argument.name: argument_schema(argument) for argument in listed},
        "required": [argument.name for argument in listed if not argument.has_default],
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "function": {"name": name, "description": (description or "").strip(), "parameters": parameters},
    }


def argument_schema(argument: ToolArgument) -> dict[str, Any]:
    """An optional argument with the default None is described by its other types, since it can be left out."""
    kind = argument.type_obj
    if argument.has_default and argument.default is None:
        kind = _without_none(kind)
    schema = type_schema(kind)
    if argument.description:
        schema["description"] = argument.description.strip()
    if argument.has_default and argument.default is not None and _is_json(argument.default):
        schema["default"] = argument.default
    return schema


def type_schema(kind: object) -> dict[str, Any]:
    """Return the JSON Schema of a Python type; ``{}``, which accepts any value, for a type that JSON has no form of."""
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": [member.value for member in kind if _is_json(member.value)]}
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return {"enum": list(parts)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [type_schema(part) for part in parts]}
    if origin is typing.Annotated:
        return type_schema(parts[0])
    if isinstance(origin, type):
        return _generic_schema(origin, parts)
    name = _SCALARS.get(kind) if kind is None or isinstance(kind, type) else None
    return {"type": name} if name else {}


def _generic_schema(origin: type, parts: tuple[Any, ...]) -> dict[str, Any]:
    if issubclass(origin, Mapping):
        values = type_schema(parts[1]) if len(parts) == 2 else {}
        return {"type": "object", "additionalProperties": values} if values else {"type": "object"}
    if issubclass(origin, tuple):
        if len(parts) == 2 and parts[1] is Ellipsis:
            return {"type": "array", "items": type_schema(parts[0])}
        return {"type": "array", "minItems": len(parts), "maxItems": len(parts)}
    if issubclass(origin, Iterable):
        items = type_schema(parts[0]) if parts else {}
        return {"type": "array", "items": items} if items else {"type": "array"}
    return {}


def _without_none(kind: object) -> object:
    if typing.get_origin(kind) not in (Union, types.UnionType):
        return kind
    others = tuple(part for part in typing.get_args(kind) if part is not type(None))
    return Union[others]  # noqa: UP007 - a union of a tuple of types


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def unique_names(names: Iterable[str]) -> list[str]:
    """Return the names as OpenAI accepts them: other characters replaced by ``_``, cut to length, and distinct."""
    taken = {WAIT}
    unique: list[str] = []
    for original in names:
        base = _NOT_IN_NAME.sub("_", original)[:MAX_NAME_CHARS] or "_"
        name, number = base, 1
        while name in taken:
            number += 1
            suffix = f"_{number}"
            name = base[: MAX_NAME_CHARS - len(suffix)] + suffix
        taken.add(name)
        unique.append(name)
    return unique
