"""Who writes the replies, when it is not the oracle."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

from runner.serve.mock_llm.chat_format import ChatRequest
from runner.serve.mock_llm.reply import Reply


class Player(Protocol):
    """Answers requests; ``name`` is part of the model's name."""

    @property
    def name(self) -> str:
        """A word for how the replies come about."""

    async def play(self, request: ChatRequest) -> Reply:
        """The reply to a request."""


class ScriptPlayer:
    """Gives the replies of a script one after the other, whoever asks, and then begins again."""

    name = "script"

    def __init__(self, replies: Sequence[Reply | str]) -> None:
        """Start with the first; a text is the content of a reply."""
        read = [Reply(content=reply) if isinstance(reply, str) else reply for reply in replies]
        for reply in read:
            reply.check()
        self._replies = itertools.cycle(read)

    async def play(self, request: ChatRequest) -> Reply:
        """The next reply."""
        return next(self._replies)


class EchoPlayer:
    """Says what was said last."""

    name = "echo"

    async def play(self, request: ChatRequest) -> Reply:
        """The content of the last message."""
        return Reply(content=request.messages[-1].text)
