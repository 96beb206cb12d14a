"""One declaration per command gives an environment its tool schemas, its text parser and the way back to text."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from runner.types import Action, InvalidAction, ToolCall, ToolSchema

_SHORT = 200
"""Longer texts are not kept."""


class CommandPattern(msgspec.Struct, frozen=True):
    """A command of an environment, as a tool and as text.

    Attributes:
        name: the tool's name.
        description: what it does, for the tool schema.
        template: its canonical text, with ``{parameter}`` holes.
        pattern: what texts mean it; named groups are the parameters, the whole text has to match.
        parameters: a JSON schema (``string`` or ``integer``) per parameter; all are required.
    """

    name: str
    description: str
    template: str
    pattern: re.Pattern[str]
    parameters: dict[str, dict[str, Any]] = {}

    def schema(self) -> ToolSchema:
        """The command as an OpenAI function tool."""
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
    """The commands of one environment; the first one whose pattern matches wins."""

    def __init__(self, commands: Sequence[CommandPattern], expected: str) -> None:
        """Take the commands and a sentence that tells an agent what a valid action looks like."""
        self.commands = tuple(commands)
        self.expected = expected
        self.schemas: list[ToolSchema] = [command.schema() for command in commands]
        self._by_name = {command.name: command for command in commands}
        self._known_call = functools.lru_cache(maxsize=1024)(self._call)  # agents say the same few things again

    def parse(self, text: str) -> Action | InvalidAction:
        """The tool call that ``text`` means, or why it means none."""
        call = self._known_call(text) if len(text) <= _SHORT else self._call(text)
        return InvalidAction(text, self.expected) if call is None else Action(text=text, tool_calls=[call])

    def _call(self, text: str) -> ToolCall | None:
        stripped = text.strip()
        for command in self.commands:
            if match := command.pattern.fullmatch(stripped):
                return ToolCall(id="call_0", name=command.name, arguments=_arguments(command, match.groupdict()))
        return None

    def render(self, call: ToolCall) -> str | InvalidAction:
        """The canonical text of a tool call; a name, argument or value that does not fit is an invalid action."""
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
    return json.dumps(values)  # unlike msgspec it takes lone surrogates, which hostile text may hold


def _signature(command: CommandPattern) -> str:
    if not command.parameters:
        return "no arguments"
    return ", ".join(f"{name} ({schema['type']})" for name, schema in command.parameters.items())
