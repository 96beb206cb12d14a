"""Grammar of BabyAI's commands, as tools and as texts."""

from __future__ import annotations

import re

from runner.envs.babyai.action_menu import CHECK
from runner.envs.babyai.observe import COLORS, DOOR_STATES
from runner.envs.command_grammar import CommandPattern, Grammar

_COLOR = f"(?:{'|'.join(COLORS)})"
_DOOR = f"{_COLOR} (?:{'|'.join(DOOR_STATES)}) door"
_OBJECT = f"{_COLOR} (?:key|ball|box)"
_NUMBER = "(?P<number>[1-9][0-9]{0,8})"
_NUMBERED = {"type": "integer", "description": "Its number in the observation, from 1."}


def _command(name: str, description: str, text: str) -> CommandPattern:
    return CommandPattern(name, description, text, _pattern(text))


def _target_command(name: str, description: str, verb: str, parameter: str, names: str, example: str) -> CommandPattern:
    parameters = {parameter: {"type": "string", "description": f"Its name, e.g. {example}."}, "number": _NUMBERED}
    pattern = _pattern(f"{verb} (?P<{parameter}>{names}) {_NUMBER}")
    return CommandPattern(name, description, f"{verb} {{{parameter}}} {{number}}", pattern, parameters)


def _pattern(source: str) -> re.Pattern[str]:
    return re.compile(source, re.IGNORECASE | re.ASCII | re.DOTALL)


_TURN_COMMAND = CommandPattern(
    "turn",
    "Turn on the spot by 90 degrees.",
    "turn {direction}",
    _pattern("turn (?P<direction>left|right)"),
    {"direction": {"type": "string", "enum": ["left", "right"]}},
)

GRAMMAR = Grammar(
    [
        CommandPattern(
            "check_available_actions", "List the actions that are possible now.", CHECK, _pattern(".*check.*")
        ),
        _TURN_COMMAND,
        _command("move_forward", "Move one step ahead.", "move forward"),
        _target_command("pickup", "Walk to an object in view and pick it up.", "pickup", "object", _OBJECT, "red ball"),
        _command("drop", "Put what you carry on the empty cell in front of you.", "drop"),
        _command("toggle", "Open the door right in front of you; a locked one needs its key.", "toggle"),
        _target_command(
            "toggle_and_go_through",
            "Walk to a closed door in view, or a locked one whose key you carry, open it and step into the doorway.",
            "toggle and go through",
            "door",
            _DOOR,
            "red closed door",
        ),
        _target_command(
            "go_through", "Walk into the doorway of an open door in view.", "go through", "door", _DOOR, "red open door"
        ),
        _target_command(
            "go_to",
            "Walk up to an object or door in view and face it.",
            "go to",
            "target",
            f"{_OBJECT}|{_DOOR}",
            "red ball",
        ),
    ],
    'one of the actions that the observation lists, e.g. "turn left", "move forward" or "pickup red ball 1"',
)
