"""Tool calls in a model's reply: native ones, and those that it wrote down as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from runner.agents.model.parsing import ACTION_MARK, EXPECTED_FORMAT, ActionStyle, parse_action
from runner.inference.chat_format import flatten_tool_calls
from runner.inference.lenient_json import as_dict, as_text, decode_json
from runner.types import Action, InvalidAction, Message, ToolCall, ToolSchema

_DECODER = json.JSONDecoder(strict=False)
_TOLD = re.compile(r"([\w.-]{1,100})\(\s*\Z")
"""How an earlier call is told to an endpoint that takes no tools, so models write it, too: ``move({"to": "left"})``."""
_BEFORE = 120


def parse_reply(
    message: Message, style: ActionStyle, schemas: Sequence[ToolSchema], *, as_calls: bool
) -> Action | InvalidAction:
    """What a reply does: its calls, else the call or the action in its text.

    The first call counts; later ones are kept where their arguments can be read, as each is answered.

    Args:
        message: the reply, without what the model thought.
        style: where the environment's actions are in a text.
        schemas: the tools there are.
        as_calls: whether the model was asked for calls.
    """
    text = message["content"] or ""
    calls = _native(message)
    if not calls and schemas and style != "raw" and (call := _written(text, schemas)):
        calls = [call]
    if calls and not _readable(calls[0]):
        told = flatten_tool_calls([message])[0]["content"] or ""
        return InvalidAction(told, f"the arguments of {calls[0].name} as a JSON object")
    if calls:
        return Action(tool_calls=[calls[0], *filter(_readable, calls[1:])])
    if action := parse_action(text, style):
        return Action(text=action)
    return InvalidAction(text, f"one tool call, or {EXPECTED_FORMAT[style]}" if as_calls else EXPECTED_FORMAT[style])


def tool_names(schemas: Sequence[ToolSchema]) -> list[str]:
    """The names of tools."""
    return [as_text(as_dict(schema.get("function")).get("name")) for schema in schemas]


def _native(message: Message) -> list[ToolCall]:
    functions = [(as_text(call.get("id")), as_dict(call.get("function"))) for call in message.get("tool_calls", [])]
    return [
        ToolCall(id, as_text(function.get("name")), as_text(function.get("arguments")) or "{}")
        for id, function in functions
    ]


def _readable(call: ToolCall) -> bool:
    return isinstance(decode_json(call.arguments.encode("utf-8", "replace")), dict)


def _written(text: str, schemas: Sequence[ToolSchema]) -> ToolCall | None:
    """The call that begins with the first brace, after the last mark where there is one; fenced or not."""
    body = text.rpartition(ACTION_MARK)[2]
    start = body.find("{")
    if start < 0:
        return None
    try:
        value, _ = _DECODER.raw_decode(body, start)
        told = _TOLD.search(body[max(0, start - _BEFORE) : start])
        if told and told[1] in tool_names(schemas):
            return ToolCall("call_0", told[1], json.dumps(value))
        return _as_call(value)
    except (ValueError, RecursionError):
        return None


def _as_call(value: dict[str, Any]) -> ToolCall | None:
    """A call of AgentGym's form (``function_name``), of OpenAI's or of one of its kin, else None."""
    inner = as_dict(value.get("function")) or value
    name = as_text(inner.get("function_name")) or as_text(inner.get("name"))
    arguments = inner.get("arguments", inner.get("parameters"))
    if not name or (arguments is None and "function_name" not in inner):
        return None
    return ToolCall("call_0", name, arguments if isinstance(arguments, str) else json.dumps(arguments or {}))
