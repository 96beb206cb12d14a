"""Conversation of an episode, stored in a form that can be sent to a model, and trimmed to the size of its context.

The system prompt, the first observation and the latest turn are always sent. Of the other turns, the oldest are omitted
until the estimated size fits; a note at the end of the first observation gives the number of omitted turns. If the chat
is still too long, the longest messages except the system prompt are cut in the middle.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, cast

from runner.agents.model.dialects import THINKING
from runner.inference.chat_format import THINK_TAG, flatten_tool_calls, split_thinking
from runner.inference.tool_calls import tool_call
from runner.types import Action, Chat, InvalidAction, Message, Mode, ModelSettings, ToolCall, ToolSchema
from runner.util.json_accessors import as_dict, as_text, content_text

ReasoningTurns: TypeAlias = Literal["none", "calls", "all"]

MAX_CALL_CHARS = 8000
"""Maximum length of a reply's call arguments, in characters. A longer reply is sent as text, which can be cut."""
NO_ANSWER = "(no answer)"
"""Text that replaces an empty reply, since some endpoints reject empty messages."""
_REPLACED = frozenset({"role", "content", "tool_calls", "refusal"})
NOT_EXECUTED = "Not executed: one action per step."


class Conversation:
    """The first observation, and one turn per model reply: the reply and the environment's answer.

    In each turn, either every tool call has an answer or all messages are plain text.
    """

    def __init__(self) -> None:
        self.opening: Chat = []
        self.turns: list[Chat] = []

    def add_observation(self, observation: Chat) -> None:
        messages = [_normalize(message) for message in observation]
        if not self.turns:
            self.opening += flatten_tool_calls(messages)
            return
        reply, *_ = turn = self.turns[-1]
        calls = reply.get("tool_calls")
        turn += _answer_calls(calls, messages) if calls else flatten_tool_calls(messages)

    def add_reply(self, reply: Message, action: Action | InvalidAction) -> None:
        """Append the model's reply; ``action`` is the result of parsing the reply.

        All that the server sent with the reply stays, because some servers refuse a chat without it. Calls with invalid
        arguments are stored as text, because an endpoint would reject a chat that contains them.
        """
        kept = {name: value for name, value in reply.items() if name not in _REPLACED}
        if isinstance(action, Action) and reply.get("tool_calls"):
            calls = _executable_calls(reply["tool_calls"], action.tool_calls)
            if sum(len(call.arguments) for call in action.tool_calls) <= MAX_CALL_CHARS:
                turn = {"role": "assistant", "content": reply["content"] or "", **kept, "tool_calls": calls}
                self.turns.append([cast("Message", turn)])
                return
        if reply.get("tool_calls"):
            kept.pop("content_parts", None)  # they lack the calls
        text = flatten_tool_calls([reply])[0]["content"]
        self.turns.append([cast("Message", {"role": "assistant", "content": text or NO_ANSWER, **kept})])


def strip_thinking(message: Message, mode: Mode = "strict") -> Message:
    """Return a model's reply with its inline reasoning moved from ``content`` to ``reasoning_content``.

    In compat mode only ``<think>`` marks reasoning.
    """
    thought, answer = split_thinking(message["content"] or "", THINKING if mode == "strict" else (THINK_TAG,))
    reasoning = "\n".join(filter(None, [message.get("reasoning_content"), thought]))
    calls = message.get("tool_calls")
    kept = {name: value for name, value in message.items() if name not in _REPLACED}
    reply = {"role": "assistant", "content": answer, **kept}
    if reasoning:
        reply["reasoning_content"] = reasoning
        if not message.get("reasoning_content"):
            reply["reasoning_field"] = ""  # the server sent it in the text and takes it in no other place
    if calls:
        reply["tool_calls"] = calls
    return cast("Message", reply)


def _executable_calls(received: list[dict[str, Any]], kept: list[ToolCall]) -> list[dict[str, Any]]:
    """Return the calls of an action as they were received, with the names and arguments that were understood."""
    by_id = {call["id"]: call for call in received}
    calls = []
    for number, call in enumerate(kept):
        own = tool_call(number, call.id, call.name, call.arguments)
        raw = by_id.get(call.id, {})
        calls.append({**raw, **own, "function": {**as_dict(raw.get("function")), **own["function"]}})
    return calls


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


CHARS_PER_TOKEN = 4
"""Estimated characters per token."""
ANSWER_RESERVE_TOKENS = 2048
"""Tokens reserved for the answer if ``agent.max_tokens`` is not set; at most a quarter of the context."""
_COUNTED = frozenset({"role", "content", "tool_calls", "reasoning_content", "origin", "reasoning_field"})
_MESSAGE_OVERHEAD_CHARS = 16
_NOTE_CHARS = 60
_MIN_CUT_CHARS = 400
"""Minimum length of a cut message, in characters."""


def tools_size(schemas: Sequence[ToolSchema]) -> int:
    return len(json.dumps(schemas, default=str)) if schemas else 0


def chat_budget(settings: ModelSettings, tools_chars: int, context_tokens: int) -> int:
    """Return the maximum size of a chat in characters: the context without tools and answer, but at least a quarter."""
    quarter = context_tokens // 4
    answer = settings.max_tokens or min(ANSWER_RESERVE_TOKENS, quarter)
    budget = CHARS_PER_TOKEN * max(context_tokens - answer, quarter)
    return max(budget - tools_chars, CHARS_PER_TOKEN * quarter)


def fit_chat(
    instructions: str, opening: Chat, turns: Sequence[Chat], budget: int, reasoning: ReasoningTurns = "calls"
) -> Chat:
    """Return the chat to send, trimmed by the rule of this module.

    Each turn is a reply followed by the environment's answer. ``budget`` is in characters, see ``chat_budget``. The
    reasoning that ``reasoning`` sends back counts.
    """
    system: Message = {"role": "system", "content": instructions}
    sizes = [_chat_size(turn, reasoning) for turn in turns]
    total, n_omitted = _chat_size([system, *opening]) + sum(sizes) + _NOTE_CHARS, 0
    while total > budget and n_omitted < len(turns) - 1:
        total -= sizes[n_omitted]
        n_omitted += 1
    chat = [system, *_with_note(opening, n_omitted), *(message for turn in turns[n_omitted:] for message in turn)]
    return _cut_messages(chat, budget, reasoning) if total > budget else chat


def _chat_size(chat: Chat, reasoning: ReasoningTurns = "calls") -> int:
    return sum(len(each["content"] or "") + _MESSAGE_OVERHEAD_CHARS + _hidden_size(each, reasoning) for each in chat)


def _hidden_size(message: Message, reasoning: ReasoningTurns) -> int:
    if message["role"] != "assistant":
        return 0
    calls = message.get("tool_calls", ())
    size = sum(_value_size(value) for call in calls for name, value in call.items() if name not in ("id", "type"))
    if reasoning == "all" or (reasoning == "calls" and calls):
        size += len(message.get("reasoning_content") or "")
    return size + sum(_value_size(value) for name, value in message.items() if name not in _COUNTED)


def _value_size(value: object) -> int:
    if isinstance(value, dict):
        return sum(map(_value_size, value.values()))
    return sum(map(_value_size, value)) if isinstance(value, list) else len(str(value))


def _with_note(opening: Chat, n_omitted: int) -> Chat:
    if not n_omitted:
        return opening
    note = f"[{n_omitted} earlier turn{'s' if n_omitted > 1 else ''} left out]"
    *others, last = opening or [Message(role="user", content="")]
    return [*others, {**last, "content": f"{last['content']}\n\n{note}".strip()}]


def _cut_messages(chat: Chat, budget: int, reasoning: ReasoningTurns) -> Chat:
    chat = chat.copy()
    excess = _chat_size(chat, reasoning) - budget
    by_length = sorted(range(1, len(chat)), key=lambda index: len(chat[index]["content"] or ""), reverse=True)
    for index in by_length:
        text = chat[index]["content"] or ""
        if excess <= 0 or len(text) <= _MIN_CUT_CHARS:
            break
        shorter = _cut_middle(text, max(_MIN_CUT_CHARS, len(text) - excess))
        shortened = {name: value for name, value in chat[index].items() if name != "content_parts"}
        chat[index] = cast("Message", {**shortened, "content": shorter})
        excess -= len(text) - len(shorter)
    return chat


def _cut_middle(text: str, limit: int) -> str:
    mark = f"\n[{len(text) - limit} characters left out]\n"
    n_kept = limit - len(mark)
    return text[: (n_kept + 1) // 2] + mark + text[len(text) - n_kept // 2 :]
