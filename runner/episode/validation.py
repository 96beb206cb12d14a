"""What foreign code returned, checked at the door: sync or async alike, of the promised shape, and safe to store."""

from __future__ import annotations

import math
from collections.abc import Awaitable
from typing import Any, TypeGuard, TypeVar, cast

import msgspec

from runner.errors import AgentFault, EnvironmentFault
from runner.types import Action, AgentTurn, Chat, Environment, InvalidAction, StepResult, ToolCall, ToolSchema, Usage

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
    """A copy of ``value`` if it is a list of messages: its owner may go on changing it.

    Raises:
        EnvironmentFault: naming ``what`` and the type that came instead.
    """
    if isinstance(value, list):
        for message in value:
            if not isinstance(message, dict) or "role" not in message:
                break
        else:
            return value.copy()
    raise EnvironmentFault(f"{what} should be a list of messages with a role; got {type(value).__name__}")


def check_schemas(value: object) -> list[ToolSchema]:
    """A copy of ``value`` if it is a list of functions with a name.

    Raises:
        EnvironmentFault: naming what came instead.
    """
    if isinstance(value, list):
        for schema in value:
            function = schema.get("function") if isinstance(schema, dict) else None
            if not (isinstance(function, dict) and isinstance(function.get("name"), str)):
                raise EnvironmentFault(f"get_tool_schemas should return OpenAI functions; got {_short(schema)} as one")
        return value.copy()
    raise EnvironmentFault(f"get_tool_schemas should return a list of OpenAI functions; got {type(value).__name__}")


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


def check_turn(value: object) -> AgentTurn:
    """``(chats, action or what was none)`` with the chats copied, if ``value`` is that: an agent goes on with its own.

    Raises:
        AgentFault: naming what came instead.
    """
    if isinstance(value, _PAIRS) and len(value) == 2:
        chats, action = value
        answered = isinstance(action, Action | InvalidAction)
        if answered and isinstance(chats, list) and all(isinstance(chat, list) for chat in chats):
            if not _is_storable(action):
                raise AgentFault(f"act should return an Action of text and tool calls; got {_short(action)}")
            return [chat.copy() for chat in chats], action
    raise AgentFault(f"act should return (list of chats, Action); got {type(value).__name__}")


def check_flow(value: object) -> int | None:
    """``value`` if it can be a flow id.

    Raises:
        AgentFault: naming what came instead.
    """
    if value is None or (type(value) is int and 0 <= value < 2**64):
        return value
    raise AgentFault(f"last_response_flow_id should be an unsigned 64-bit int or None; got {_short(value)}")


def check_details(value: object) -> dict[str, Any]:
    """Evaluation details as a file would hold them.

    Raises:
        EnvironmentFault: when they are no mapping, or hold what JSON cannot.
    """
    try:
        return msgspec.json.decode(msgspec.json.encode(value), type=dict[str, Any])
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise EnvironmentFault(f"evaluation details should be a mapping that JSON can hold: {exc}") from exc


async def resolve(environment: Environment, action: Action, schemas: list[ToolSchema]) -> tuple[Action, bool]:
    """The action with the tool calls that its text means, and whether what is played of it is one of the environment's.

    Raises:
        EnvironmentFault: naming what its parser returned instead.
    """
    if action.tool_calls:
        first = action.tool_calls[0]  # the others are answered with "Not executed"
        return action, _fits(first.name, first.arguments, schemas)
    reply = environment.parse(action.text or "")
    parsed: object = await reply if pending(reply) else reply
    if isinstance(parsed, Action) and _is_storable(parsed):
        return Action(text=action.text, tool_calls=parsed.tool_calls), True
    if isinstance(parsed, InvalidAction):
        return action, False
    raise EnvironmentFault(f"parse should return Action or InvalidAction; got {_short(parsed)}")


def check_usage(value: object) -> Usage | None:
    """``value`` if it says what an answer took.

    Raises:
        AgentFault: naming what came instead.
    """
    if value is None or isinstance(value, Usage):
        return value
    raise AgentFault(f"last_usage should be a Usage or None; got {_short(value)}")


def _is_storable(action: Action | InvalidAction) -> bool:
    """Whether the fields are what their types say: nothing checks that when an action is made."""
    if isinstance(action, InvalidAction):
        said: tuple[object, ...] = (action.text, action.expected)
        return all(isinstance(part, str) for part in said)
    text, calls = cast(object, action.text), cast(object, action.tool_calls)
    if not (text is None or isinstance(text, str)) or not isinstance(calls, list):
        return False
    for call in calls:
        if not isinstance(call, ToolCall):
            return False
        parts: tuple[object, ...] = (call.id, call.name, call.arguments)
        for part in parts:
            if not isinstance(part, str):
                return False
    return True


def _short(value: object) -> str:
    """The beginning of what came instead."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _fits(name: str, arguments: str, schemas: list[ToolSchema]) -> bool:
    known: dict[str, Any] = {schema["function"]["name"]: schema["function"] for schema in schemas}
    if name not in known:
        return False
    try:
        given = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return False
    return set(known[name].get("parameters", {}).get("required", [])) <= given.keys()
