"""Command grammar of a text environment: each command declares its tool schema, text pattern and canonical text."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from runner.types import Action, InvalidAction, ToolCall, ToolSchema

_MAX_CACHED_CHARS = 200
"""Maximum length of a text, in characters, whose parse result is cached."""


class CommandPattern(msgspec.Struct, frozen=True):
    """A command of an environment, as a tool and as text.

    Attributes:
        name: the tool's name.
        description: description for the tool schema.
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
        """Return the command as an OpenAI function tool."""
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
        commands: the commands, in the order in which they are tried.
        expected: the description of a valid action in error messages to the agent.
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
        self._by_name = {command.name: command for command in commands}
        self._cached_call = functools.lru_cache(maxsize=1024)(self._call)  # agents repeat a few short texts

    def parse(self, text: str) -> Action | InvalidAction:
        """Return the tool call of the first matching command, or an invalid action that describes a valid one."""
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
        """Return the canonical text of a tool call, or an invalid action if the call does not match the schema."""
        command = self._by_name.get(call.name)
        if command is None:
            return InvalidAction(call.name, f"one of the tools {', '.join(self._by_name)}")
        expected = f"{call.name} with exactly {_signature(command)}"
        try:
            arguments = msgspec.json.decode(call.arguments or "{}", type=dict[str, str | int])
        except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
            return InvalidAction(call.arguments, expected)
        if arguments.keys() != command.parameters.keys():
            return InvalidAction(call.arguments, expected)
        text = command.template.format(**arguments)
        if not command.pattern.fullmatch(text):
            return InvalidAction(text, expected)
        return text


def _arguments(command: CommandPattern, groups: dict[str, str]) -> str:
    if not groups:
        return "{}"
    values: dict[str, str | int] = {
        name: int(value) if command.parameters[name]["type"] == "integer" else value for name, value in groups.items()
    }
    return json.dumps(values)  # unlike msgspec, json accepts lone surrogates, which hostile text may contain


def _signature(command: CommandPattern) -> str:
    if not command.parameters:
        return "no arguments"
    return ", ".join(f"{name} ({schema['type']})" for name, schema in command.parameters.items())
