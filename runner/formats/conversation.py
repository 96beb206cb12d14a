"""The conversation of an episode: one system prompt, the first observation, and one turn per step.

A stored step has the chat that was sent to the model, where older turns may be omitted or cut. The conversation is
built from the replies and the observations themselves, so it is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import msgspec

from runner.formats.format import LeftOut
from runner.inference.tool_calls import parse_tool_calls, plain_call
from runner.store.episode_file import EpisodeRecord
from runner.types import Message, TimeStep, ToolCall, skipped_endpoints
from runner.util.json_accessors import as_dict, as_text, content_text, decode_json

RenderCall: TypeAlias = Callable[[ToolCall], str]
"""Returns a tool call as the text command of its environment."""


class Turn(msgspec.Struct, frozen=True):
    """A step: the agent's reply (``prompted``: of a model) and the environment's answer.

    ``is_own`` is False if another model than that of the episode answered, such as that of a fallback endpoint.
    """

    step: TimeStep
    reply: Message
    observation: list[Message]
    prompted: bool
    is_own: bool


class Conversation(msgspec.Struct, frozen=True):
    """All messages of an episode, in order; ``system`` is None without a system prompt."""

    system: str | None
    opening: list[Message]
    turns: list[Turn]

    def messages(self) -> list[Message]:
        """Return the whole conversation as OpenAI chat messages, with reasoning of the episode's own model alone.

        They are trained on under the name of one model; what another one thought must not pass for its thoughts.
        """
        chat: list[Message] = [] if self.system is None else [{"role": "system", "content": self.system}]
        chat += self.opening
        for turn in self.turns:
            reply = turn.reply.copy()
            if not turn.is_own:
                reply.pop("reasoning_content", None)
            chat += [reply, *turn.observation]
        return chat


class Spoken(NamedTuple):
    """A conversation as texts alone, of which ``last`` is the observation after the last reply.

    A turn has what the agent saw, its reply, in which tool calls are commands, and whether this was a valid action.
    """

    system: str | None
    turns: list[tuple[str, str, bool]]
    last: str


def read_spoken(episode: EpisodeRecord) -> Spoken:
    """Raises ``LeftOut`` if no step was played."""
    require_steps(episode)
    conversation, render = read_conversation(episode), command_renderer(episode.env)
    seen = [text_of(conversation.opening), *(text_of(turn.observation) for turn in conversation.turns)]
    replies = [(_reply_text(turn, render), turn.step.valid) for turn in conversation.turns]
    turns = [(saw, *reply) for saw, reply in zip(seen, replies, strict=False)]
    return Spoken(conversation.system, turns, seen[-1])


def read_conversation(episode: EpisodeRecord) -> Conversation:
    """Messages of any stored form become valid chat messages."""
    first = episode.timesteps[0].chats if episode.timesteps else []
    opening = [_incoming(message) for message in episode.reset_observation]
    # the model answered under its own name, or the one that its endpoint has for it
    answered = [
        step.model for step in episode.timesteps if step.model and not skipped_endpoints(step.endpoint, step.warnings)
    ]
    own_models = (None, episode.model if episode.model in answered or not answered else answered[0])
    turns = [_turn(step, is_own=step.model in own_models) for step in episode.timesteps]
    return Conversation(_system_prompt(first), opening, turns)


def require_steps(episode: EpisodeRecord) -> None:
    if not episode.timesteps:
        raise LeftOut("no step was played")


def received_messages(step: TimeStep) -> list[Message]:
    """Return what the model received in a step, as it was sent: shortened where the agent shortens its chat."""
    messages: list[Message] = []
    calls: list[str] = []
    for value in step.chats[0][:-1] if step.chats else ():
        message = as_dict(value)
        if message.get("role") == "assistant":
            messages.append(_reply(message))
            calls = [call["id"] for call in messages[-1].get("tool_calls", [])]
        else:
            messages.append(_incoming(message) if message.get("role") == "system" else _answer(message, calls))
    return messages


def _system_prompt(chats: list[list[Any]]) -> str | None:
    messages = (as_dict(message) for message in (chats[0] if chats else ()))
    texts = [content_text(message.get("content")) for message in messages if message.get("role") == "system"]
    return "\n\n".join(texts) if texts else None


def _turn(step: TimeStep, *, is_own: bool) -> Turn:
    last = as_dict(step.chats[0][-1]) if step.chats and step.chats[0] else {}
    prompted = last.get("role") == "assistant"
    reply = _reply(last) if prompted else _action(step)
    calls = [call["id"] for call in reply.get("tool_calls", [])]
    return Turn(step, reply, [_answer(message, calls) for message in step.observation], prompted, is_own)


def _reply(message: dict[str, Any]) -> Message:
    calls = [plain_call(call) for call in parse_tool_calls(message.get("tool_calls"))]
    reply: Message = {"role": "assistant", "content": content_text(message.get("content"))}
    if reasoning := as_text(message.get("reasoning_content")):
        reply["reasoning_content"] = reasoning
    if calls:
        reply["tool_calls"] = calls
    return reply


def _action(step: TimeStep) -> Message:
    action = step.action
    if action.text is not None or not action.tool_calls:
        return {"role": "assistant", "content": action.text or ""}
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in action.tool_calls
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _answer(value: object, calls: list[str]) -> Message:
    """Return an observation as the result of the reply's tool call if it names one, else as the user's message."""
    message = as_dict(value)
    call = as_text(message.get("tool_call_id"))
    text = content_text(message.get("content"))
    if calls and (call in calls or message.get("role") == "tool"):
        return {"role": "tool", "content": text, "tool_call_id": call if call in calls else calls[0]}
    return {"role": "user", "content": text}


def _incoming(value: object) -> Message:
    message = as_dict(value)
    role = as_text(message.get("role"))
    return {"role": role if role == "system" else "user", "content": content_text(message.get("content"))}


def text_of(messages: list[Message]) -> str:
    return "\n".join(message["content"] or "" for message in messages)


def _reply_text(turn: Turn, render: RenderCall) -> str:
    """Return a reply as text alone: tool calls become ``Thought:`` and ``Action:``, as AgentGym's agents write them."""
    content = turn.reply["content"] or ""
    calls = turn.step.action.tool_calls if turn.reply.get("tool_calls") else []
    if not calls:
        return content
    action = "\n".join(map(render, calls))
    return f"Thought:\n{content}\n\nAction:\n{action}" if content else f"Action:\n{action}"


@cache
def command_renderer(env: str) -> RenderCall:
    """Return the function that writes tool calls of an environment as its commands, e.g. ``go to red ball 1``."""
    from runner.envs.http.dialects import dialect_for  # slow to import
    from runner.envs.http.environment import rules_for

    dialect = dialect_for(env)
    rules = None if dialect is None else rules_for(dialect, "strict")

    def render(call: ToolCall) -> str:
        command = None if rules is None else rules.grammar.render(call)
        return command if isinstance(command, str) else f"{call.name}({call.arguments})"

    return render


def parsed_arguments(arguments: object) -> dict[str, Any] | None:
    value = decode_json(as_text(arguments).encode() or b"{}")
    return value if isinstance(value, dict) else None


def tool_calls_of(reply: Message) -> Iterator[tuple[str, str, str]]:
    for call in reply.get("tool_calls", ()):
        function = call["function"]
        yield call["id"], function["name"], function["arguments"]
