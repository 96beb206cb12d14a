"""Command grammar of a text environment: each command declares its tool schema, text pattern and canonical text."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from runner.types import Action, InvalidAction, ToolCall, ToolSchema
from runner.util.json_schema import allowed_values, find_mismatch, show_value

_MAX_CACHED_CHARS = 200
"""Maximum length of a text, in characters, whose parse result is cached."""
_MAX_SHOWN_CHARS = 100
"""Maximum length of arguments that are quoted, in characters."""


class CommandPattern(msgspec.Struct, frozen=True):
    """A command of an environment, as a tool and as text.

    Attributes:
        template: canonical text, with ``{parameter}`` placeholders.
        pattern: pattern of the text; its named groups are the parameters.
        parameters: parameter -> JSON schema (``string`` or ``integer``); all parameters are required.
    """

    name: str
    description: str
    template: str
    pattern: re.Pattern[str]
    parameters: dict[str, dict[str, Any]] = {}

    def schema(self) -> ToolSchema:
        parameters = {
            "type": "object",
            "properties": self.parameters,
            "required": list(self.parameters),
            "additionalProperties": False,
        }
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": parameters},
        }


class Grammar:
    """Commands of one environment; a text stands for the first command whose pattern matches it.

    Args:
        anchor: ``whole`` if a pattern must match the whole text without surrounding spaces, ``start`` if it must match
            the unchanged text from its beginning and may leave a rest.
    """

    def __init__(
        self, commands: Sequence[CommandPattern], expected: str, anchor: Literal["whole", "start"] = "whole"
    ) -> None:
        self.commands = tuple(commands)
        self.expected = expected
        self._anchor = anchor
        self.schemas: list[ToolSchema] = [command.schema() for command in commands]
        self._by_name = {command.name: (command, command.schema()["function"]["parameters"]) for command in commands}
        self._cached_call = functools.lru_cache(maxsize=1024)(self._call)  # agents repeat a few short texts

    def parse(self, text: str) -> Action | InvalidAction:
        call = self._cached_call(text) if len(text) <= _MAX_CACHED_CHARS else self._call(text)
        return InvalidAction(text, self.expected) if call is None else Action(text=text, tool_calls=[call])

    def _call(self, text: str) -> ToolCall | None:
        stripped = text.strip()
        for command in self.commands:
            pattern = command.pattern
            if match := pattern.match(text) if self._anchor == "start" else pattern.fullmatch(stripped):
                return ToolCall(id="call_0", name=command.name, arguments=_arguments(command, match.groupdict()))
        return None

    def render(self, call: ToolCall) -> str | InvalidAction:
        """Return the text of a call, whose numbers may stand as texts and vice versa; else an invalid action."""
        command, parameters = self._by_name.get(call.name, (None, {}))
        if command is None:
            return InvalidAction(call.name, f"one of the tools {', '.join(self._by_name)}")
        try:
            arguments = msgspec.json.decode(call.arguments or "{}", type=dict[str, str | int])
        except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
            return InvalidAction(call.arguments, _expected_call(command, call.arguments, parameters))
        if arguments.keys() != command.parameters.keys():
            return InvalidAction(call.arguments, _expected_call(command, call.arguments, parameters))
        text = command.template.format(**arguments)
        if command.pattern.fullmatch(text):
            return text
        makes = f", which makes {self.expected}; got {show_value(text)}"
        return InvalidAction(text, _expected_call(command, call.arguments, parameters, makes))


def _arguments(command: CommandPattern, groups: dict[str, str]) -> str:
    if not groups:
        return "{}"
    values: dict[str, str | int] = {
        name: int(value) if command.parameters[name]["type"] == "integer" else value for name, value in groups.items()
    }
    return json.dumps(values)  # unlike msgspec, json accepts lone surrogates, which hostile text may contain


def _expected_call(command: CommandPattern, arguments: str, parameters: dict[str, Any], makes: str = "") -> str:
    """``makes`` is the end of the sentence where only the text that the call makes does not match."""
    described = (f"{name} ({_described(schema)})" for name, schema in command.parameters.items())
    expected = f"{command.name} with exactly {', '.join(described) or 'no arguments'}"
    try:
        decoded = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return f"{expected}; got no JSON object"
    reason = find_mismatch(decoded, parameters)
    if reason is not None and decoded.keys() == command.parameters.keys():
        return f"{command.name} with {reason}"
    return f"{expected}; {reason}" if reason else expected + (makes or f"; got {arguments[:_MAX_SHOWN_CHARS]}")


def _described(schema: dict[str, Any]) -> str:
    pattern = schema.get("pattern")
    return f"{allowed_values(schema)} matching {pattern}" if pattern else allowed_values(schema)
