"""A model that stands in for the endpoints of a profile: it answers in this process, and checks each request."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, cast

from runner.config.capabilities import Capabilities
from runner.errors import InferenceFault
from runner.tracing import Tracer
from runner.types import Chat, EpisodeHeader, Inference, Message, StreamDelta, Tokens, ToolSchema, Usage
from runner.types.sequences import Label, TokenSequence

NAME = "stand-in"
"""Name of the endpoint and of its model."""
MAX_REQUESTS = 200
"""Maximum number of requests in one step; an agent that repeats its request until the answer suits it exceeds it."""
_ROLES = frozenset({"system", "user", "assistant", "tool"})

Answer: TypeAlias = Callable[[Chat, list[ToolSchema]], Awaitable[Message]]
"""Returns the model's answer to a chat with tools."""
Expect: TypeAlias = Callable[[bool, str], None]
"""Reports a problem, the second argument, if the first is false."""


class StandInModel:
    """The source of answers for one episode.

    ``expect`` receives what is wrong with the requests. ``requests`` has their chats as JSON; ``tokens`` and
    ``n_requests`` count since they were last set to zero.
    """

    def __init__(self, episode_id: str, answer: Answer, expect: Expect) -> None:
        self.requests: list[str] = []
        self.tokens = Tokens()
        self.n_requests = 0
        self.answer = answer
        self.expect = expect
        self._episode_id = episode_id

    def session(self, header: EpisodeHeader, model: str | None = None) -> StandInSession:
        is_own = header.episode_id == self._episode_id
        self.expect(is_own, "session should get the header of the episode that enter received")
        return StandInSession(self)

    def record(self, messages: Chat) -> None:
        """Raises ``InferenceFault`` if there were too many requests in this step."""
        self.n_requests += 1
        if self.n_requests > MAX_REQUESTS:
            self.expect(False, f"act sent more than {MAX_REQUESTS} requests; return InvalidAction for a bad answer")
            raise InferenceFault(f"more than {MAX_REQUESTS} requests in one step")
        problem = message_problem(messages) or _call_problem(messages)
        self.expect(not problem, f"the chat of a request {problem}")
        self.requests.append("" if problem else json.dumps(messages))


class StandInSession:
    """See ``ModelSession``."""

    def __init__(self, model: StandInModel) -> None:
        self._model = model
        self._is_busy = False

    def capabilities(self, *, with_tools: bool) -> Capabilities:
        return Capabilities()

    async def infer(
        self,
        messages: Chat,
        *,
        tools: list[ToolSchema],
        time_left_s: float,
        on_delta: Callable[[StreamDelta], None] | None = None,
        tracer: Tracer | None = None,
        on_tokens: Callable[[TokenSequence], None] | None = None,
        label: Label = "agent",
        can_shorten: bool = False,
        tools_as_text: bool = False,
    ) -> Inference:
        model = self._model
        is_number = isinstance(cast(object, time_left_s), float | int)
        model.expect(is_number, f"time_left_s should be a number, episode.time_left_s(); got {time_left_s!r}")
        model.expect(not self._is_busy, "a session takes one request at a time; open one session for each of several")
        model.record(messages)
        self._is_busy = True
        try:
            with (tracer or Tracer("off")).span("inference", "agent", endpoint=NAME):
                message = await model.answer(messages, tools)
        finally:
            self._is_busy = False
        tokens = Tokens(prompt=100, completion=10)
        model.tokens += tokens
        if on_delta is not None:
            on_delta(StreamDelta(text=message["content"] or "", n=1))
        if on_tokens is not None:
            on_tokens(TokenSequence(label=label, endpoint=NAME, model=NAME))
        return Inference(
            message=message,
            noted=message,
            sent=messages.copy(),
            cause_of_silence="",
            usage=Usage(endpoint=NAME, model=NAME, tokens=tokens),
            finish_reason="tool_calls" if message.get("tool_calls") else "stop",
            used_tools=bool(tools),
            flow_id=len(model.requests),
        )


def message_problem(messages: object) -> str:
    """Return what is wrong with a list of messages, as the end of a sentence; "" if nothing is."""
    if not isinstance(messages, list) or not messages:
        return f"should be a list of messages; got {messages!r:.80}"
    for message in messages:
        if not (isinstance(message, dict) and message.get("role") in _ROLES and "content" in message):
            return f"should have messages with content and the role {', '.join(sorted(_ROLES))}; got {message!r:.80}"
    try:
        json.dumps(messages)
    except (TypeError, ValueError) as exc:
        return f"should be JSON: {exc}"
    return ""


def _call_problem(messages: list[Any]) -> str:
    """Return which tool call has no answer or which answer no call, which servers refuse; "" if all fit."""
    unanswered: list[str] = []
    for message in [*messages, {"role": "end"}]:
        if message["role"] == "tool":
            if message.get("tool_call_id") not in unanswered:
                return (
                    "has a tool message that answers no call of the assistant message before it; send its text as user"
                )
            unanswered.remove(message["tool_call_id"])
        elif unanswered:
            return "has an assistant message with a tool call that no tool message answers; send such turns as text"
        unanswered += [call["id"] for call in message.get("tool_calls") or ()]
    return ""
