"""What was said in an episode so far, as it can be sent to a model again."""

from __future__ import annotations

from typing import Any

from runner.inference import split_thinking
from runner.inference.chat_format import flatten_tool_calls, tool_call
from runner.inference.lenient_json import as_text, content_text
from runner.types import Action, Chat, InvalidAction, Message

MAX_CALL_CHARS = 8000
"""Characters of tool calls that are sent again as such; longer ones as text, which can be cut."""
NO_ANSWER = "(no answer)"
"""Stands for an empty reply, which some endpoints refuse."""
NOT_EXECUTED = "Not executed: one action per step."


class Conversation:
    """The first observation, and a turn for each reply: the reply and what the environment answered to it.

    Within a turn either each tool call has its answer or there are plain messages only.
    """

    def __init__(self) -> None:
        """Nothing was said yet."""
        self.opening: Chat = []
        self.turns: list[Chat] = []

    def hear(self, observation: Chat) -> None:
        """Take the newest observation."""
        heard = [_heard(message) for message in observation]
        if not self.turns:
            self.opening += flatten_tool_calls(heard)
            return
        reply, *_ = turn = self.turns[-1]
        calls = reply.get("tool_calls")
        turn += _paired(calls, heard) if calls else flatten_tool_calls(heard)

    def say(self, reply: Message, answer: Action | InvalidAction) -> None:
        """Take the model's reply, and as what it was read.

        Calls that could not be read are kept as text: a server that reads them again would refuse the whole chat.
        """
        if isinstance(answer, Action) and reply.get("tool_calls"):
            calls = [tool_call(n, call.id, call.name, call.arguments) for n, call in enumerate(answer.tool_calls)]
            if sum(len(call.arguments) for call in answer.tool_calls) <= MAX_CALL_CHARS:
                self.turns.append([{"role": "assistant", "content": reply["content"], "tool_calls": calls}])
                return
        text = flatten_tool_calls([reply])[0]["content"]
        self.turns.append([{"role": "assistant", "content": text or NO_ANSWER}])


def strip_thinking(message: Message) -> Message:
    """The reply with what the model thought aloud moved out of its answer."""
    thought, answer = split_thinking(message["content"] or "")
    reasoning = "\n".join(filter(None, [message.get("reasoning_content"), thought]))
    calls = message.get("tool_calls")
    reply: Message = {"role": "assistant", "content": answer or (None if calls else "")}
    if reasoning:
        reply["reasoning_content"] = reasoning
    if calls:
        reply["tool_calls"] = calls
    return reply


def _heard(message: Message) -> Message:
    """A message of an environment, of which nothing is certain but that it has a role."""
    text, call = content_text(message.get("content")), as_text(message.get("tool_call_id"))
    if message["role"] == "tool" and call:
        return {"role": "tool", "content": text, "tool_call_id": call}
    return {"role": "user", "content": text}


def _paired(calls: list[dict[str, Any]], heard: Chat) -> Chat:
    """One answer per call: as the environment gave them, else all it said as the first one's."""
    ids = [call["id"] for call in calls]
    if [message.get("tool_call_id") for message in heard] == ids:
        return heard
    said = "\n".join(message["content"] or "" for message in heard)
    texts = [said] + [NOT_EXECUTED] * (len(ids) - 1)
    return [{"role": "tool", "content": text, "tool_call_id": id} for id, text in zip(ids, texts, strict=True)]
