"""Which part of a conversation is sent, so that it fits the model's context.

The rule: the instructions and the first observation are always sent, and so is the newest turn. Of the others the
oldest are left out, whole turns only, until the estimate fits; a note at the end of the first observation says how
many. Where that does not suffice, the longest messages but the instructions are cut in their middle.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from runner.config.profile import AgentSettings
from runner.inference.lenient_json import as_dict, as_text
from runner.types import Chat, Message, ToolSchema

CHARS_PER_TOKEN = 4
"""Characters of a token."""
ANSWER_RESERVE_TOKENS = 2048
"""Tokens that the answer gets where ``agent.max_tokens`` is not set, or a quarter of the context where that is less."""
_FRAME = 16
"""Characters that a message takes beside its text."""
_NOTE = 60
_LEAST = 400
"""Characters that are left of a message that is cut."""


def chat_budget(settings: AgentSettings, schemas: Sequence[ToolSchema]) -> int:
    """The characters that a chat may have, tools and answer taken off; never less than a quarter of the context."""
    quarter = settings.context_tokens // 4
    answer = settings.max_tokens or min(ANSWER_RESERVE_TOKENS, quarter)
    room = CHARS_PER_TOKEN * max(settings.context_tokens - answer, quarter)
    return max(room - (len(json.dumps(schemas, default=str)) if schemas else 0), CHARS_PER_TOKEN * quarter)


def fit_chat(instructions: str, opening: Chat, turns: Sequence[Chat], room: int) -> Chat:
    """The chat to send, by the rule of this module.

    Args:
        instructions: the system message.
        opening: the first observation.
        turns: all that came after it, each a reply and what was answered to it.
        room: in characters, see ``chat_budget``.
    """
    system: Message = {"role": "system", "content": instructions}
    sizes = [_size(turn) for turn in turns]
    total, left_out = _size([system, *opening]) + sum(sizes) + _NOTE, 0
    while total > room and left_out < len(turns) - 1:
        total -= sizes[left_out]
        left_out += 1
    chat = [system, *_noted(opening, left_out), *(message for turn in turns[left_out:] for message in turn)]
    return _cut(chat, room) if total > room else chat


def _size(chat: Chat) -> int:
    return sum(len(message["content"] or "") + _FRAME + _length_of_calls(message) for message in chat)


def _length_of_calls(message: Message) -> int:
    functions = [as_dict(call.get("function")) for call in message.get("tool_calls", ())]
    return sum(len(as_text(function.get("name"))) + len(as_text(function.get("arguments"))) for function in functions)


def _noted(opening: Chat, left_out: int) -> Chat:
    if not left_out:
        return opening
    note = f"[{left_out} earlier turn{'s' if left_out > 1 else ''} left out]"
    *others, last = opening or [Message(role="user", content="")]
    return [*others, {**last, "content": f"{last['content']}\n\n{note}".strip()}]


def _cut(chat: Chat, room: int) -> Chat:
    """Cut the longest message, then the next one, until the chat fits or nothing is left to cut."""
    chat = chat.copy()
    excess = _size(chat) - room
    by_length = sorted(range(1, len(chat)), key=lambda index: len(chat[index]["content"] or ""), reverse=True)
    for index in by_length:
        text = chat[index]["content"] or ""
        if excess <= 0 or len(text) <= _LEAST:
            break
        shorter = _without_middle(text, max(_LEAST, len(text) - excess))
        chat[index] = {**chat[index], "content": shorter}
        excess -= len(text) - len(shorter)
    return chat


def _without_middle(text: str, limit: int) -> str:
    mark = f"\n[{len(text) - limit} characters left out]\n"
    kept = limit - len(mark)
    return text[: (kept + 1) // 2] + mark + text[len(text) - kept // 2 :]
