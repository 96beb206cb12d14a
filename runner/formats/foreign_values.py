"""Lenient access to the values of foreign files: names, numbers, times, messages, tool calls and token counts."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import msgspec

from runner.types import ErrorInfo, Message, Mode, Outcome, Tokens, ToolSchema
from runner.util.display_text import one_line
from runner.util.json_accessors import as_count, as_dict, as_list, as_text, decode_json

_T = TypeVar("_T")

EXTRA: Final = "agentgym"
MAX_NAME: Final = 200


class OwnFields(msgspec.Struct, kw_only=True):
    """Our own fields of an exported episode, which a reader of the export takes back."""

    env: str = ""
    data_label: str = ""
    mode: Mode = "strict"
    task_index: int | None = None
    seed: int | None = None
    attempt: int | None = None
    outcome: Outcome | None = None
    success: bool | None = None
    duration_s: float | None = None
    evaluation: dict[str, Any] | None = None
    cost: float | None = None
    tokens: Tokens | None = None


def own_fields(extra: object, kind: type[_T]) -> _T | None:
    """Return our own fields of a format's field for extra data; None if there are none, or if they are damaged."""
    own = as_dict(extra).get(EXTRA)
    if not isinstance(own, dict):
        return None
    try:
        return msgspec.convert(own, kind)
    except (msgspec.ValidationError, OverflowError):
        return None


class UnreadableItem(ValueError):
    pass


def name_of(value: object) -> str:
    """Return outside text as a name: one line of at most ``MAX_NAME`` characters; empty unless it is a text."""
    return one_line(as_text(value), MAX_NAME).strip()


def number_of(value: object) -> float | None:
    if type(value) not in (int, float):
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def int_of(value: object) -> int | None:
    return value if type(value) is int else None


def task_of(value: object) -> int | str:
    """Return the number of a task, or its name, which is "" if it is unknown."""
    return value if type(value) is int else as_text(value)


def time_of(value: object) -> datetime | None:
    """Return the time of ISO 8601 text, in UTC where it names no time zone, or of seconds since 1970; else None."""
    try:
        if isinstance(value, str):
            time = datetime.fromisoformat(value[:64])
            return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
        seconds = number_of(value)
        return datetime.fromtimestamp(seconds, UTC) if seconds else None
    except (ValueError, OverflowError, OSError):
        return None


def content_of(content: object) -> str:
    """Images and other parts without text become ``[image]`` and the like."""
    if not isinstance(content, list):
        return as_text(content)
    texts = []
    for part in map(as_dict, content):
        if "text" in part:
            texts.append(as_text(part["text"]))
        elif part.get("type") != "reasoning":
            texts.append(f"[{name_of(part.get('type')) or 'part'}]")
    return "\n".join(texts) if len(texts) > 1 else "".join(texts)


def message_of(value: object) -> Message:
    """Return a message of OpenAI's shape, or of the shapes close to it, as one that an episode can have.

    Raises ``UnreadableItem`` if it is no object with a role.
    """
    fields = as_dict(value)
    role = {"developer": "system", "function": "tool", "ai": "assistant", "human": "user"}.get(
        as_text(fields.get("role")), as_text(fields.get("role"))
    )
    if role not in ("system", "user", "assistant", "tool"):
        raise UnreadableItem("a message has no role")
    content = content_of(fields.get("content"))
    if role == "assistant":
        parts = [as_dict(part) for part in as_list(fields.get("content"))]
        thoughts = "\n".join(as_text(part.get("reasoning")) for part in parts if part.get("type") == "reasoning")
        return reply_of(content, as_text(fields.get("reasoning_content")) or thoughts, fields.get("tool_calls"))
    message: Message = {"role": role, "content": content}
    if role == "tool" and (call := as_text(fields.get("tool_call_id"))):
        message["tool_call_id"] = call
    return message


def reply_of(content: str, reasoning: object, tool_calls: object) -> Message:
    reply: Message = {"role": "assistant", "content": content}
    if thoughts := as_text(reasoning):
        reply["reasoning_content"] = thoughts
    if calls := tool_calls_from(tool_calls):
        reply["tool_calls"] = calls
    return reply


def tool_calls_from(value: object) -> list[dict[str, Any]]:
    """Return tool calls in OpenAI's shape from a list of that shape, or of calls with name and arguments themselves.

    Each may be a text with the JSON of one.
    """
    calls = []
    for number, each in enumerate(as_list(value)):
        call = as_dict(decode_json(each.encode("utf-8", "replace")) if isinstance(each, str) else each)
        function = as_dict(call.get("function"))
        name = as_text(function.get("name") or call.get("name") or call.get("function"))
        arguments = function.get("arguments", call.get("arguments"))
        if not isinstance(arguments, str):
            arguments = msgspec.json.encode(arguments).decode() if isinstance(arguments, dict) else ""
        id = as_text(call.get("id") or call.get("call_id")) or f"call_{number}"
        calls.append({"id": id, "type": "function", "function": {"name": name, "arguments": as_text(arguments)}})
    return calls


def tool_schema_of(tool: dict[str, Any]) -> ToolSchema:
    """Return the function schema of a tool without a level of its own for the function."""
    function = {name: tool[name] for name in ("name", "description", "parameters") if name in tool}
    return {"type": "function", "function": function}


def tokens_of(
    usage: object, prompt: str, completion: str, cached: str, reasoning: str, *, is_cached_apart: bool = False
) -> Tokens | None:
    """``is_cached_apart``: cached tokens are not among those of the prompt."""
    fields = as_dict(usage)
    if prompt not in fields and completion not in fields:
        return None
    counts = Tokens(*(as_count(fields.get(name)) for name in (prompt, completion, reasoning, cached)))
    return msgspec.structs.replace(counts, prompt=counts.prompt + counts.cached) if is_cached_apart else counts


def error_of(value: object, prefix: str = "") -> ErrorInfo | None:
    """Return an error from its type, message and traceback in fields whose names have a prefix; None without any."""
    fields = as_dict(value)
    if not fields:
        return None
    kind, message, trace = (as_text(fields.get(f"{prefix}{name}")) for name in ("type", "message", "traceback"))
    return ErrorInfo(name_of(kind) or "Error", message, trace)
