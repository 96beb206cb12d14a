"""What foreign code returned, checked at the door: sync or async alike, and of the promised shape."""

from __future__ import annotations

import math
from collections.abc import Awaitable
from typing import Any, TypeGuard, TypeVar, cast

import msgspec

from runner.errors import AgentFault, EnvironmentFault
from runner.types import Action, Chat, Environment, InvalidAction, StepResult, ToolSchema

_T = TypeVar("_T")
_NUMBERS = (int, float)  # made once: a union of types in an ``isinstance`` is made anew at each call
_PAIRS = (tuple, list)


def pending(value: _T | Awaitable[_T]) -> TypeGuard[Awaitable[_T]]:
    """Whether the callee was async; asked before ``await``, since most are not and awaiting has its price."""
    return hasattr(value, "__await__")


async def settle(value: _T | Awaitable[_T]) -> _T:
    """The value itself, awaited first if the callee was async."""
    return await value if pending(value) else cast(_T, value)


def check_chat(value: object, what: str) -> Chat:
    """``value`` if it is a list of messages.

    Raises:
        EnvironmentFault: naming ``what`` and the type that came instead.
    """
    if isinstance(value, list):
        for message in value:
            if not isinstance(message, dict) or "role" not in message:
                break
        else:
            return value
    raise EnvironmentFault(f"{what} should be a list of messages with a role; got {type(value).__name__}")


def check_step(value: object) -> StepResult:
    """``value`` if it is ``(messages, finite reward, done)``.

    Raises:
        EnvironmentFault: saying which of the three is wrong.
    """
    if not isinstance(value, tuple) or len(value) != 3:
        raise EnvironmentFault(f"step should return (messages, reward, done); got {type(value).__name__}")
    chat, reward, done = value
    if not isinstance(reward, _NUMBERS) or not math.isfinite(reward):
        raise EnvironmentFault(f"step should return a finite number as reward; got {reward!r}")
    return check_chat(chat, "the observation of a step"), float(reward), bool(done)


def check_turn(value: object) -> tuple[list[Chat], Action]:
    """``value`` if it is ``(chats, action)``.

    Raises:
        AgentFault: naming the type that came instead.
    """
    if isinstance(value, _PAIRS) and len(value) == 2:
        chats, action = value
        if isinstance(action, Action) and isinstance(chats, list) and all(isinstance(chat, list) for chat in chats):
            return chats, action
    raise AgentFault(f"act should return (list of chats, Action); got {type(value).__name__}")


def resolve(environment: Environment, action: Action, schemas: list[ToolSchema]) -> tuple[Action, bool]:
    """The action with the tool calls that its text means, and whether it is one the environment knows."""
    if action.tool_calls:
        return action, all(_fits(call.name, call.arguments, schemas) for call in action.tool_calls)
    parsed = environment.parse(action.text or "")
    if isinstance(parsed, InvalidAction):
        return action, False
    return Action(text=action.text, tool_calls=parsed.tool_calls), True


def _fits(name: str, arguments: str, schemas: list[ToolSchema]) -> bool:
    known: dict[str, Any] = {schema["function"]["name"]: schema["function"] for schema in schemas}
    if name not in known:
        return False
    try:
        given = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return False
    return set(known[name].get("parameters", {}).get("required", [])) <= given.keys()
