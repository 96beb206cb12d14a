"""Tool calls of model messages in the OpenAI shape; quick to import, because formats of episodes need them, too."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, count
from typing import Any

from runner.util.json_accessors import as_dict, as_list, as_text, encode_json

MAX_TOOL_CALLS = 64


def parse_tool_calls(value: object) -> list[dict[str, Any]]:
    """Return the tool calls of a message in the OpenAI shape; omit calls without a function name."""
    calls = []
    for number, call in enumerate(map(as_dict, as_list(value)[:MAX_TOOL_CALLS])):
        function = as_dict(call.get("function"))
        if name := as_text(function.get("name")):
            calls.append(tool_call(number, as_text(call.get("id")), name, arguments_text(function.get("arguments"))))
    return with_unique_ids(calls)


def with_unique_ids(calls: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tool calls with unique ids, because a tool result refers to its call by id."""
    calls = list(calls)
    if len({call["id"] for call in calls}) == len(calls):
        return calls
    used: set[str] = set()
    unique = []
    for call in calls:
        id = next(id for id in chain([call["id"]], map("call_{}".format, count())) if id not in used)
        used.add(id)
        unique.append({**call, "id": id})
    return unique


def tool_call(number: int, id: str, name: str, arguments: str) -> dict[str, Any]:
    """Return a tool call in the OpenAI shape; an empty id is replaced by ``call_<number>``."""
    return {
        "id": id[:200] or f"call_{number}",
        "type": "function",
        "function": {"name": name[:200], "arguments": arguments or "{}"},
    }


def arguments_text(value: object) -> str:
    """Return the arguments of a tool call as JSON text; some servers send a JSON object instead of a text."""
    return as_text(value) if value is None or isinstance(value, str) else encode_json(value).decode()
