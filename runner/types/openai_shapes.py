"""Messages and tool calls of the OpenAI shape, whether they are mappings or objects of a client library, as plain data.

``read_call`` and ``read_message`` return None for a value that is neither.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_MESSAGE_FIELDS = ("role", "content", "reasoning_content", "refusal", "tool_calls", "tool_call_id", "name")


def read_call(value: object, number: int) -> tuple[str, str, str] | None:
    """Return id, name and arguments (JSON text) of a tool call.

    ``value`` is ``{"id", "function": {"name", "arguments"}}`` or ``{"id", "name", "arguments"}``, or such an object. A
    call without an id is named after its place ``number`` among those of its action.
    """
    function = _field(value, "function") or value
    id, name, arguments = _field(value, "id"), _field(function, "name"), _field(function, "arguments")
    if not isinstance(name, str):
        return None
    if not isinstance(arguments, str):
        try:
            arguments = json.dumps({} if arguments is None else arguments)
        except (TypeError, ValueError, RecursionError):
            return None
    return id if isinstance(id, str) and id else f"call_{number}", name, arguments


def read_message(value: object) -> dict[str, Any] | None:
    """Return a chat message as a dict, with its tool calls as dicts; a dict of plain data is returned as it is."""
    if isinstance(value, dict):
        message = value
    elif isinstance(value, Mapping):
        message = dict(value)
    else:
        found = {name: getattr(value, name, None) for name in _MESSAGE_FIELDS}
        message = {"content": None, **{name: each for name, each in found.items() if each is not None}}
    if "role" not in message:
        return None
    calls = message.get("tool_calls")
    if isinstance(calls, list | tuple) and not all(isinstance(call, dict) for call in calls):
        message = {**message, "tool_calls": [_call_dict(call, number) for number, call in enumerate(calls)]}
    return message


def _call_dict(value: object, number: int) -> object:
    if isinstance(value, dict) or (call := read_call(value, number)) is None:
        return value
    id, name, arguments = call
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _field(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
