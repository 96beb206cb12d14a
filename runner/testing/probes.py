"""Helpers of the contract test: calls of an environment with validated results, and hostile inputs."""

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
"""Action texts, up to 1 MB, that a model could produce and that must not break an environment."""

HOSTILE_ARGUMENTS = ("", "{", "null", "[]", "{}", '{"\ud800": 1}', '{"x": NaN}', "[" * 10_000)


async def reset(environment: Environment, **reset_kwargs: Any) -> str:  # noqa: ANN401 - an environment's own arguments
    """Reset an environment and return the text of the first observation."""
    return observation_text(
        check_chat(await maybe_await(environment.reset(**reset_kwargs)), "the observation of a reset")
    )


async def timestep(environment: Environment, index: int, action: Action) -> TimeStep:
    """Take a step and validate its result.

    Raises:
        EnvironmentFault: if the result breaks the contract.
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
    """Return the texts of an observation's messages as JSON.

    The roles are left out, because they differ between answers to texts and answers to tool calls.

    Raises:
        EnvironmentFault: if a message has no text.
    """
    contents: list[object] = [message.get("content") for message in chat]
    if not all(isinstance(content, str) for content in contents):
        raise EnvironmentFault(f"an observation should have text in each message; got {shorten(repr(contents))}")
    return json.dumps(contents)


def outcome(step: TimeStep) -> tuple[str, float, bool]:
    """Return observation, reward and done of a step, which must be equal when an episode is repeated."""
    return observation_text(step.observation), step.reward, step.done


async def tool_names(environment: Environment) -> set[str]:
    """Return the names of the environment's tools."""
    return {schema["function"]["name"] for schema in await maybe_await(environment.get_tool_schemas())}


def called_tools(parsed: Action | InvalidAction) -> set[str]:
    """Return the names of the tools that a parsed text calls; empty if the text is invalid."""
    return {call.name for call in parsed.tool_calls} if isinstance(parsed, Action) else set()


def is_tool(schema: object) -> bool:
    """Return whether ``schema`` is an OpenAI function tool whose parameters are an object."""
    match schema:
        case {"type": "function", "function": {"name": str(), "description": str(), "parameters": {"type": "object"}}}:
            return True
    return False


def shorten(text: str) -> str:
    """Return a text for an error message: at most 120 characters, with invalid characters escaped."""
    short = text if len(text) <= 120 else f"{text[:120]}…"
    return short.encode("utf-8", "backslashreplace").decode()
