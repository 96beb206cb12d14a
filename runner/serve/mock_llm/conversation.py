"""What a conversation tells of the episode that is played in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from runner.serve.mock_llm.chat_format import ChatMessage
from runner.types import Action, ToolCall

ASSISTANT = "assistant"

_NOT_TAKEN = "Invalid action. Expected "
"""Said when the environment never saw the action."""
_MARK = re.compile(r"\bAction:", re.IGNORECASE)


class Turn(NamedTuple):
    """An action of the model and all that was said after it; a call as its tool and arguments, else a text."""

    called: tuple[str, str] | None
    text: str
    seen: str

    @property
    def action(self) -> Action:
        """The action as an environment takes it."""
        if self.called is None:
            return Action(text=self.text)
        return Action(tool_calls=[ToolCall("call_0", *self.called)])

    @property
    def did(self) -> tuple[tuple[str, str] | None, str]:
        """The action alone, to be compared."""
        return self.called, self.text if self.called is None else ""


def squeezed(text: str) -> str:
    """A text with single spaces, as agents and gateways change the space around what they pass on."""
    return " ".join(text.split())


def turns_of(messages: Sequence[ChatMessage]) -> tuple[Turn, ...]:
    """The turns of the messages that follow an opening, without those that the environment never saw."""
    turns: list[Turn] = []
    for message in messages:
        if message.role == ASSISTANT:
            turns.append(_turn(message))
        elif turns:
            turns[-1] = turns[-1]._replace(seen=f"{turns[-1].seen} {squeezed(message.text)}".strip())
    return tuple(turn for turn in turns if _NOT_TAKEN not in turn.seen)


def _turn(message: ChatMessage) -> Turn:
    for call in message.tool_calls or ():
        return Turn((call.function.name, call.function.arguments), "", "")
    return Turn(None, _MARK.split(message.text)[-1].strip(), "")
