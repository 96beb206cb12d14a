"""Single looks at an environment, and what to throw at it."""

from __future__ import annotations

import json
from typing import Any

from runner.episode.validation import check_chat, check_step
from runner.errors import EnvironmentFault
from runner.types import Action, Chat, Environment, InvalidAction, StepResult, TimeStep
from runner.types.maybe_async import maybe_await

HOSTILE_TEXTS: tuple[str, ...] = (
    "",
    " \t\r\n",
    "\x00",
    "\ud800",
    "\u202e\u200bmove",
    "\x1b[2J",
    "{0.__class__} %s ${x}",
    "__import__('os').abort()",
    '{"name": "x", "arguments": {}}',
    "9" * 5_000,
    "(" * 10_000,
    "a " * 500_000,
)
"""Action texts that a model could produce and that an environment has to survive, up to 1 MB."""

HOSTILE_ARGUMENTS = ("", "{", "null", "[]", "{}", '{"\ud800": 1}', '{"x": NaN}', "[" * 10_000)


async def reset(environment: Environment, **reset_kwargs: Any) -> str:  # noqa: ANN401 - an environment's own arguments
    """The texts of a first observation."""
    return observation_text(
        check_chat(await maybe_await(environment.reset(**reset_kwargs)), "the observation of a reset")
    )


async def timestep(environment: Environment, index: int, action: Action) -> TimeStep:
    """Take a step and check what comes back.

    Raises:
        EnvironmentFault: saying what is wrong with it.
    """
    result: StepResult = await maybe_await(environment.step(action))
    observation, reward, done = check_step(result)
    if not isinstance(result[2], bool):
        raise EnvironmentFault(f"step should return a bool as done; got {result[2]!r}")
    return TimeStep(
        index=index,
        chats=[],
        action=action,
        observation=observation,
        reward=reward,
        done=done,
        available_tool_schemas=[],
    )


def observation_text(chat: Chat) -> str:
    """The messages without their roles, which differ between the answer to a text and to a tool call."""
    contents: list[object] = [message.get("content") for message in chat]
    if not all(isinstance(content, str) for content in contents):
        raise EnvironmentFault(f"an observation should have text in each message; got {shorten(repr(contents))}")
    return json.dumps(contents)


def outcome(step: TimeStep) -> tuple[str, float, bool]:
    """What two equal steps have in common."""
    return observation_text(step.observation), step.reward, step.done


async def tool_names(environment: Environment) -> set[str]:
    """The names of the tools that can be called now."""
    return {schema["function"]["name"] for schema in await maybe_await(environment.get_tool_schemas())}


def called_tools(parsed: Action | InvalidAction) -> set[str]:
    """The tools that a parsed text calls; none where it is invalid."""
    return {call.name for call in parsed.tool_calls} if isinstance(parsed, Action) else set()


def is_tool(schema: object) -> bool:
    """Whether ``schema`` is an OpenAI function with an object of parameters."""
    match schema:
        case {"type": "function", "function": {"name": str(), "description": str(), "parameters": {"type": "object"}}}:
            return True
    return False


def shorten(text: str) -> str:
    """The beginning of a text, short enough for a message and printable everywhere."""
    short = text if len(text) <= 120 else f"{text[:120]}…"
    return short.encode("utf-8", "backslashreplace").decode()
