"""Conversation of an episode, in a form that can be sent to a model again."""

from __future__ import annotations

from typing import Any

from runner.inference import split_thinking
from runner.inference.chat_format import flatten_tool_calls, tool_call
from runner.inference.json_accessors import as_text, content_text
from runner.types import Action, Chat, InvalidAction, Message

MAX_CALL_CHARS = 8000
"""Longest tool calls that are sent again as calls; longer ones are sent as text, which can be cut."""
NO_ANSWER = "(no answer)"
"""Replaces an empty reply, which some endpoints reject."""
NOT_EXECUTED = "Not executed: one action per step."


class Conversation:
    """The first observation, and one turn per model reply: the reply and the environment's answer.

    In each turn, either every tool call has an answer or all messages are plain text.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.opening: Chat = []
        self.turns: list[Chat] = []

    def add_observation(self, observation: Chat) -> None:
        """Append the latest observation."""
        messages = [_normalize(message) for message in observation]
        if not self.turns:
            self.opening += flatten_tool_calls(messages)
            return
        reply, *_ = turn = self.turns[-1]
        calls = reply.get("tool_calls")
        turn += _answer_calls(calls, messages) if calls else flatten_tool_calls(messages)

    def add_reply(self, reply: Message, action: Action | InvalidAction) -> None:
        """Append the model's reply, which was parsed as ``action``.

        Calls with invalid arguments are stored as text, because an endpoint would reject a chat that contains them.
        """
        if isinstance(action, Action) and reply.get("tool_calls"):
            calls = [tool_call(n, call.id, call.name, call.arguments) for n, call in enumerate(action.tool_calls)]
            if sum(len(call.arguments) for call in action.tool_calls) <= MAX_CALL_CHARS:
                self.turns.append([{"role": "assistant", "content": reply["content"], "tool_calls": calls}])
                return
        text = flatten_tool_calls([reply])[0]["content"]
        self.turns.append([{"role": "assistant", "content": text or NO_ANSWER}])


def strip_thinking(message: Message) -> Message:
    """Return the reply with inline reasoning moved from ``content`` to ``reasoning_content``."""
    thought, answer = split_thinking(message["content"] or "")
    reasoning = "\n".join(filter(None, [message.get("reasoning_content"), thought]))
    calls = message.get("tool_calls")
    reply: Message = {"role": "assistant", "content": answer or (None if calls else "")}
    if reasoning:
        reply["reasoning_content"] = reasoning
    if calls:
        reply["tool_calls"] = calls
    return reply


def _normalize(message: Message) -> Message:
    # an environment's message is only guaranteed to have a role
    text, call = content_text(message.get("content")), as_text(message.get("tool_call_id"))
    if message["role"] == "tool" and call:
        return {"role": "tool", "content": text, "tool_call_id": call}
    return {"role": "user", "content": text}


def _answer_calls(calls: list[dict[str, Any]], messages: Chat) -> Chat:
    """Return one answer per call: the environment's messages if they match, else all their text for the first call."""
    ids = [call["id"] for call in calls]
    if [message.get("tool_call_id") for message in messages] == ids:
        return messages
    observation = "\n".join(message["content"] or "" for message in messages)
    texts = [observation] + [NOT_EXECUTED] * (len(ids) - 1)
    return [{"role": "tool", "content": text, "tool_call_id": id} for id, text in zip(ids, texts, strict=True)]
