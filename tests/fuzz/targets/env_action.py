"""Actions that a model sends to an embedded environment, as texts and as tool calls.

The input is a line with environment, mode and task, then one action per line; a line of JSON is a tool call.
"""

from __future__ import annotations

import math

import msgspec

from runner.envs.base import EmbeddedEnvironment
from runner.types import Action, InvalidAction, ToolCall
from tests.fuzz.targets.env_request import ENVIRONMENTS, environment_builder

TOKENS = (
    b"move up",
    b"c r a n e",
    b"craft 1 stick using 2 planks",
    b"inventory",
    b"get 1 ",
    b"search[shoes]",
    b"click[Buy Now]",
    b"go to desk 1",
    b"turn left",
    b"toggle",
    b'{"name":"move","arguments":"{}"}',
)
MAX_ACTIONS = 12


class _Call(msgspec.Struct):
    name: str
    arguments: str


def check(data: bytes) -> None:
    head, *lines = data.split(b"\n")
    env, mode, task = (*head.decode("ascii", "replace").split(" "), "", "", "")[:3]
    if env not in ENVIRONMENTS:
        return
    environment = environment_builder(env, "compat" if mode == "compat" else "strict")()
    _check_text(environment.reset(task_index=int(task) if task.isdecimal() and len(task) < 5 else 0)[0]["content"])
    for line in lines[:MAX_ACTIONS]:
        action = _action(line)
        if action.text is not None:
            _check_parsed(environment, action.text)
        chat, reward, done = environment.step(action)
        _check_text(chat[0]["content"])
        assert math.isfinite(reward)
        admissible = environment.admissible_actions()
        assert admissible is None or all(isinstance(each, str) for each in admissible)
        if done:
            break
    environment.cleanup()


def _action(line: bytes) -> Action:
    try:
        call = msgspec.json.decode(line, type=_Call)
    except (ValueError, RecursionError):
        return Action(text=line.decode("utf-8", "replace"))
    return Action(tool_calls=[ToolCall("c", call.name, call.arguments)])


def _check_parsed(environment: EmbeddedEnvironment, text: str) -> None:
    """Check that a parsed text and the canonical text of its call mean the same."""
    parsed = environment.parse(text)
    if isinstance(parsed, InvalidAction):
        assert parsed.expected
        return
    (call,) = parsed.tool_calls
    canonical = environment.grammar.render(call)
    assert isinstance(canonical, str), canonical
    again = environment.parse(canonical)
    assert isinstance(again, Action) and again.tool_calls == [call], (text, canonical)


def _check_text(text: object) -> None:
    assert isinstance(text, str) and text.encode()
