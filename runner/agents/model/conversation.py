"""Conversation of an episode, stored in a form that can be sent to a model."""

from __future__ import annotations

from typing import Any

from runner.inference.chat_format import flatten_tool_calls, split_thinking, tool_call
from runner.inference.json_accessors import as_text, content_text
from runner.types import Action, Chat, InvalidAction, Message

MAX_CALL_CHARS = 8000
"""Maximum length of a reply's call arguments, in characters. A longer reply is sent as text, which can be cut."""
NO_ANSWER = "(no answer)"
"""Text that replaces an empty reply, since some endpoints reject empty messages."""
NOT_EXECUTED = "Not executed: one action per step."


class Conversation:
    """The first observation, and one turn per model reply: the reply and the environment's answer.

    In each turn, either every tool call has an answer or all messages are plain text.
    """

    def __init__(self) -> None:
        """Create an empty conversation."""
        self.opening: Chat = []
        self.turns: list[Chat] = []

    def add_observation(self, observation: Chat) -> None:
        """Append an observation: the first one, or the environment's answer to the latest reply."""
        messages = [_normalize(message) for message in observation]
        if not self.turns:
            self.opening += flatten_tool_calls(messages)
            return
        reply, *_ = turn = self.turns[-1]
        calls = reply.get("tool_calls")
        turn += _answer_calls(calls, messages) if calls else flatten_tool_calls(messages)

    def add_reply(self, reply: Message, action: Action | InvalidAction) -> None:
        """Append the model's reply; ``action`` is the result of parsing the reply.

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
    """Return a model's reply with its inline reasoning moved from ``content`` to ``reasoning_content``."""
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
    """Return one answer per call: ``messages`` if their ids match, else the joined text as answer to the first call."""
    ids = [call["id"] for call in calls]
    if [message.get("tool_call_id") for message in messages] == ids:
        return messages
    observation = "\n".join(message["content"] or "" for message in messages)
    texts = [observation] + [NOT_EXECUTED] * (len(ids) - 1)
    return [{"role": "tool", "content": text, "tool_call_id": id} for id, text in zip(ids, texts, strict=True)]
