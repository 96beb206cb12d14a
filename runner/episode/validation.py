"""Validation of the values that agents and environments return: correct types that can be stored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any, cast

import msgspec

from runner.errors import AgentFault, EnvironmentFault
from runner.types import (
    Action,
    ActResult,
    Chat,
    Environment,
    InvalidAction,
    StepResult,
    SupportsParse,
    ToolCall,
    ToolSchema,
    Usage,
)
from runner.types.data import read_message
from runner.types.protocols import maybe_await, optional_method
from runner.util.json_schema import find_mismatch

_NUMBER_TYPES = (int, float, Real)  # a constant, because ``int | float`` would be built at each call
_PAIR_TYPES = (tuple, list)


def check_chat(value: object, source: str) -> Chat:
    """Return a copy; raises ``EnvironmentFault``, which names ``source`` and the type, if it is no list of messages."""
    if isinstance(value, list):
        messages = list(map(read_message, value))
        if None not in messages:
            return cast("Chat", messages)
    raise EnvironmentFault(f"{source} should be a list of messages with a role; got {type(value).__name__}")


def check_schemas(value: object) -> list[ToolSchema]:
    """Each schema needs a name. Raises ``EnvironmentFault`` if ``value`` is not such a list."""
    if isinstance(value, list):
        for schema in value:
            function = schema.get("function") if isinstance(schema, dict) else None
            if not (isinstance(function, dict) and isinstance(function.get("name"), str)):
                raise EnvironmentFault(
                    f"get_tool_schemas should return OpenAI functions; got {_abbreviate(schema)} as one"
                )
        return value.copy()
    raise EnvironmentFault(f"get_tool_schemas should return a list of OpenAI functions; got {type(value).__name__}")


def check_step(value: object, *, may_lack_reward: bool = False) -> StepResult:
    """Raises ``EnvironmentFault`` if ``value`` has another form or the reward is not finite, and names the part."""
    if not isinstance(value, _PAIR_TYPES) or len(value) != 3:
        raise EnvironmentFault(f"step should return (messages, reward, done); got {type(value).__name__}")
    chat, reward, done = value
    observation = check_chat(chat, "the observation of a step")
    if reward is None and may_lack_reward:
        return observation, cast(float, None), bool(done)
    if not isinstance(reward, _NUMBER_TYPES) or not math.isfinite(reward):
        raise EnvironmentFault(f"step should return a finite number as reward; got {_abbreviate(reward)}")
    return observation, float(reward), bool(done)


def check_act_result(value: object) -> ActResult:
    """Return ``(chats, action)`` with copied chats; raises ``AgentFault`` for another form or texts that are none."""
    if isinstance(value, _PAIR_TYPES) and len(value) == 2:
        chats, action = value[0], _as_action(value[1])
        if action is not None and isinstance(chats, list) and all(isinstance(chat, list) for chat in chats):
            if not _is_storable(action):
                raise AgentFault(f"act should return an Action of text and tool calls; got {_abbreviate(action)}")
            return [cast("Chat", [read_message(each) or each for each in chat]) for chat in chats], action
    raise AgentFault(f"act should return (list of chats, Action); got {type(value).__name__}")


def _as_action(value: object) -> Action | InvalidAction | None:
    """Return an action; one that has the shape of an OpenAI message is converted, anything else is None."""
    if isinstance(value, Action | InvalidAction):
        return value
    if isinstance(value, Mapping):
        text, calls, has_calls = value.get("text", value.get("content")), value.get("tool_calls"), "tool_calls" in value
    else:
        text, calls = getattr(value, "text", getattr(value, "content", None)), getattr(value, "tool_calls", None)
        has_calls = hasattr(value, "tool_calls")
    return Action(text, calls) if has_calls or isinstance(text, str) else None


def check_flow_id(value: object) -> int | None:
    if value is None or (type(value) is int and 0 <= value < 2**64):
        return value
    raise AgentFault(f"last_response_flow_id should be an unsigned 64-bit int or None; got {_abbreviate(value)}")


def check_details(value: object) -> dict[str, Any]:
    """Return evaluation details as they are after encoding to JSON and decoding, e.g. with lists for tuples."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value), type=dict[str, Any])
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise EnvironmentFault(f"evaluation details should be a mapping that JSON can hold: {exc}") from exc


async def resolve_action(environment: Environment, action: Action, schemas: list[ToolSchema]) -> Action:
    """Return the action with the tool calls that its text contains, and with whether the one to execute is valid."""
    if action.tool_calls:
        first = action.tool_calls[0]  # only the first call is executed; the model gets "Not executed" for the others
        return Action(action.text, action.tool_calls, valid=_matches_schema(first, schemas))
    if (parse := optional_method(environment, SupportsParse.parse)) is None:
        return Action(text=action.text)
    parsed: object = await maybe_await(parse(action.text or ""))
    if isinstance(parsed, Action) and _is_storable(parsed):
        return Action(text=action.text, tool_calls=parsed.tool_calls)
    if isinstance(parsed, InvalidAction):
        return Action(text=action.text, valid=False)
    raise EnvironmentFault(f"parse should return Action or InvalidAction; got {_abbreviate(parsed)}")


def note_rejection(action: Action, rejection: object) -> Action:
    """Return an executed action as it is stored, with what its environment reported in ``SupportsRejection``."""
    match rejection:
        case None:
            return action
        case "invalid":
            return msgspec.structs.replace(action, valid=False)
        case "refused":
            return msgspec.structs.replace(action, refused=True) if action.valid else action
    raise EnvironmentFault(f'rejection should be "invalid", "refused" or None; got {_abbreviate(rejection)}')


def check_usage(value: object) -> Usage | None:
    if value is None or isinstance(value, Usage):
        return value
    raise AgentFault(f"last_usage should be a Usage or None; got {_abbreviate(value)}")


def _is_storable(action: Action | InvalidAction) -> bool:
    """The constructor does not check the types of the fields."""
    if isinstance(action, InvalidAction):
        return isinstance(action.text, str) and isinstance(action.expected, str)
    text, calls = cast(object, action.text), cast(object, action.tool_calls)
    if not (text is None or isinstance(text, str)) or not isinstance(calls, list):
        return False
    return all(
        isinstance(call, ToolCall) and all(isinstance(part, str) for part in (call.id, call.name, call.arguments))
        for call in calls
    )


def _abbreviate(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _matches_schema(call: ToolCall, schemas: list[ToolSchema]) -> bool:
    functions = (schema["function"] for schema in schemas)
    if (function := next((each for each in functions if each["name"] == call.name), None)) is None:
        return False
    try:
        arguments = msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return False
    return find_mismatch(arguments, function.get("parameters")) is None
