"""Parsing of a model's reply into an action: native tool calls, tool calls written as JSON, and plain text.

The rule of an environment finds the action in a plain text; model text is never evaluated. The rules are those of
AgentGym's clients, ``agentenv/agentenv/envs/<environment>.py`` (``lmrlgym.py`` for Maze and Wordle), so an answer
means the same in AgentGym and in this runner. In strict mode, forms that ``dialects`` lists are understood as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from runner.agents.model.dialects import (
    MAYBE_DECORATED,
    Tools,
    action_labels,
    clean_action,
    clean_call,
    find_call,
    is_json_object,
    tool_parameters,
    without_tokens,
)
from runner.inference.chat_format import flatten_tool_calls
from runner.types import Action, InvalidAction, Message, Mode, ToolCall, ToolSchema
from runner.util.json_accessors import as_dict, as_text

ActionStyle: TypeAlias = Literal["once", "first", "last", "sql", "fence", "raw"]
"""Place of the action: the only ``Action:`` line, after the first or last ``Action:``, in a block, or all the text."""

ACTION_MARK = "Action:"
EXPECTED_FORMAT: dict[ActionStyle, str] = {
    "once": 'exactly one line "Action: <action>"',
    "first": 'a line "Action: <action>"',
    "last": 'a line "Action: <action>"',
    "sql": "one query in a ```sql block",
    "fence": "one action between triple backticks",
    "raw": "a text that is not empty",
}

_STYLES: dict[str, ActionStyle] = {
    "babyai": "once",
    "textcraft": "once",
    "maze": "first",
    "wordle": "first",
    "alfworld": "last",
    "sciworld": "last",
    "webshop": "last",
    "sqlgym": "sql",
    "webarena": "fence",
    **dict.fromkeys(("searchqa", "academia", "movie", "sheet", "todo", "weather"), "raw"),
}
_LINE = re.compile(rf"{ACTION_MARK}\s*(.*)")
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9, ]+")
_SQL = re.compile(r"```sql(?:ite)?\b", re.IGNORECASE)
_DECODER = json.JSONDecoder(strict=False)
_CALL_PREFIX = re.compile(r"([\w.-]{1,100})\(\s*\Z")
"""Start of a call such as ``move({"to": "left"})``: models imitate what ``flatten_tool_calls`` makes of their calls."""
_MAX_PREFIX_CHARS = 120


def action_style(env: str) -> ActionStyle:
    """Return the extraction rule of an environment; ``last`` for unknown environments. ``env`` is case-insensitive."""
    return _STYLES.get(env.lower(), "last")


def parse_action(text: str, style: ActionStyle) -> str | None:
    text = text.strip().removesuffix("</s>").rstrip()
    match style:
        case "once":
            actions = _LINE.findall(text)
            action = _NOT_PLAIN.sub("", actions[0]) if len(actions) == 1 else ""
        case "first":
            action = text.partition(ACTION_MARK)[2]
        case "last":
            action = text.rpartition(ACTION_MARK)[2] if ACTION_MARK in text else ""
        case "sql":
            blocks = list(_SQL.finditer(text))
            action = text[blocks[-1].end() :].partition("```")[0] if blocks else ""
        case "fence":
            block, closed, _ = text.partition("```")[2].partition("```")
            # with the backticks, because WebArena's server parses them itself
            action = f"```{block.strip()}```" if closed and block.strip() else ""
        case "raw":
            action = text
    return action.strip() or None


def parse_reply(
    message: Message, style: ActionStyle, schemas: Sequence[ToolSchema], *, as_calls: bool, mode: Mode = "strict"
) -> Action | InvalidAction:
    """Return the action in a reply: native tool calls, else a call written as text, else an action text.

    Only the first call is executed. Later calls are kept if their arguments are valid JSON, since a chat must contain
    an answer to each call. The message lacks the model's reasoning already.
    """
    text = message["content"] or ""
    calls, tools = _native_calls(message), tool_parameters(schemas)
    if not calls and schemas and style != "raw":
        calls = _written_calls(text, tools, mode)
    if mode == "strict":
        calls = [clean_call(call, tools) for call in calls]
    if calls and not is_json_object(calls[0].arguments):
        text = flatten_tool_calls([message])[0]["content"] or ""
        return InvalidAction(text, f"the arguments of {calls[0].name} as a JSON object")
    if calls:
        return Action(tool_calls=[call for call in calls if is_json_object(call.arguments)])
    if action := parse_action(_without_dialect(text, style) if mode == "strict" else text, style):
        return Action(text=action)
    return InvalidAction(text, f"one tool call, or {EXPECTED_FORMAT[style]}" if as_calls else EXPECTED_FORMAT[style])


def _without_dialect(text: str, style: ActionStyle) -> str:
    """Return a text as AgentGym's rules expect it: without template tokens and with a plain ``Action:``."""
    if not MAYBE_DECORATED.search(text):
        return text
    text = without_tokens(text)
    labels = action_labels(text) if style in ("once", "first", "last") else []
    if not labels or (style == "once" and len(labels) > 1):
        return text
    return f"{ACTION_MARK} {clean_action(text, labels[-1] if style == 'last' else labels[0])}"


def _native_calls(message: Message) -> list[ToolCall]:
    functions = [(as_text(call.get("id")), as_dict(call.get("function"))) for call in message.get("tool_calls", [])]
    return [
        ToolCall(id, as_text(function.get("name")), as_text(function.get("arguments")) or "{}")
        for id, function in functions
    ]


def _written_calls(text: str, tools: Tools, mode: Mode) -> list[ToolCall]:
    """Return the call that a text contains, if any; a dialect's call precedes the JSON within its arguments."""
    start = text.find("{", text.rfind(ACTION_MARK) + 1)
    call = _call_at_brace(text, start, tools) if start >= 0 else None
    found = find_call(text, tools) if mode == "strict" else None
    if found and (call is None or found.start < start < found.end):
        call = ToolCall("call_0", found.name, found.arguments)
    return [call] if call else []


def _call_at_brace(text: str, start: int, tools: Tools) -> ToolCall | None:
    """Return the call at the first brace after the last ``Action:``, in a code block or not; None if there is none."""
    try:
        value, _ = _DECODER.raw_decode(text, start)
        prefix = _CALL_PREFIX.search(text[max(0, start - _MAX_PREFIX_CHARS) : start])
        if prefix and prefix[1] in tools:
            return ToolCall("call_0", prefix[1], json.dumps(value))
        return _call_from_json(value)
    except (ValueError, RecursionError):
        return None


def _call_from_json(value: dict[str, Any]) -> ToolCall | None:
    """Return a call of the form of AgentGym's ``controller/utils.py`` (``function_name``) or OpenAI's; else None."""
    inner = as_dict(value.get("function")) or value
    name = as_text(inner.get("function_name")) or as_text(inner.get("name"))
    arguments = inner.get("arguments", inner.get("parameters"))
    if not name or (arguments is None and "function_name" not in inner):
        return None
    return ToolCall("call_0", name, arguments if isinstance(arguments, str) else json.dumps(arguments or {}))
