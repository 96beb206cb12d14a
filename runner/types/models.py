"""What an agent requests answers of a model with: the two arguments of its constructor, its session, and an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal, Protocol

import msgspec

from runner.types.data import Chat, Message, StreamDelta, ToolCall, ToolSchema, Usage
from runner.types.episode_events import EpisodeHeader
from runner.types.protocols import Agent, SupportsEpisodeInfo
from runner.types.sequences import Label, TokenSequence


class Inference(msgspec.Struct, frozen=True, kw_only=True):
    """A model's answer to a chat.

    Attributes:
        message: chat message with ``content`` and, if present, ``reasoning_content``, ``tool_calls``, and fields that
            only its endpoint understands.
        noted: the same message with the notes by which a later chat sends it back to its endpoint alone.
        cause_of_silence: why the answer has neither a text nor a tool call; "" if it has, or for no known cause.
        finish_reason: why the model ended its answer, as sent by the endpoint, such as ``stop`` or ``length``.
        used_tools: whether the request included the tools; False if the model accepts none.
        flow_id: id of the trace flow that starts at the response.
    """

    message: Message
    noted: Message
    sent: Chat
    cause_of_silence: str
    usage: Usage
    finish_reason: str | None
    used_tools: bool
    flow_id: int

    @property
    def text(self) -> str:
        return self.message["content"] or ""

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tool calls of the answer; their names and arguments may be anything."""
        calls = self.message.get("tool_calls") or []
        return [ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls]


class ModelSettings(Protocol):
    """The settings of the profile's ``agent`` section that concern an agent; see ``docs/run/profiles.md``."""

    @property
    def model(self) -> str:
        """The profile's model; the model of an episode is ``EpisodeHeader.model``."""

    @property
    def format(self) -> Literal["auto", "react", "tools"]:
        """Whether actions are requested as tool calls or as text."""

    @property
    def temperature(self) -> float | None:
        """The temperature of every request; None: the server's own."""

    @property
    def max_tokens(self) -> int | None:
        """The maximum length of every answer in tokens; None: the server's own."""

    @property
    def context_tokens(self) -> int:
        """The size to which an agent shortens its chats; a token is about 4 characters."""


class ModelCapabilities(Protocol):
    """What the next endpoint takes, as far as it is known."""

    @property
    def tools(self) -> Literal["native", "text"]:
        """``text``: the endpoint accepts no tools."""

    @property
    def reasoning(self) -> Literal["none", "calls", "all"]:
        """Turns whose reasoning is sent back to the model that wrote it: none, those with tool calls, or all."""

    @property
    def context_tokens(self) -> int | None:
        """The size of the endpoint's context; None if it is unknown."""


class ModelSession(Protocol):
    """Requests of one episode; a session takes one request at a time, and an episode may have several sessions."""

    def capabilities(self, *, with_tools: bool) -> ModelCapabilities:
        """Return what the next endpoint to try takes for requests with or without tools."""

    async def infer(
        self,
        messages: Chat,
        *,
        tools: list[ToolSchema],
        time_left_s: float,
        on_delta: Callable[[StreamDelta], None] | None = None,
        tracer: Any = None,  # noqa: ANN401 - the ``tracer`` of the agent
        on_tokens: Callable[[TokenSequence], None] | None = None,
        label: Label = "agent",
        can_shorten: bool = False,
        tools_as_text: bool = False,
    ) -> Inference:
        """Return a model's answer to a chat: the answer of the first endpoint that responds.

        Args:
            tools: OpenAI function schemas that the model may call.
            time_left_s: seconds until the episode's time limit, which also limits the requests.
            on_delta: receives the deltas of the streamed answer (reasoning, text, tool calls), the name of the endpoint
                in use, and a restart if an endpoint fails in the middle of an answer.
            tracer: records a span for each request; None: no spans.
            on_tokens: receives the token ids of each answer, where the profile has an endpoint with ``token_ids``.
            label: ``agent`` if the answer is the agent's action, ``auxiliary`` otherwise.
            can_shorten: whether the caller shortens the chat and asks again if it is too long for an endpoint;
                without it, the next endpoint is tried.
            tools_as_text: whether the caller describes tools in the chat that it would send as such to another server.

        Raises ``ContextExceeded`` if the chat is too long for an endpoint, and ``can_shorten``, and ``InferenceFault``
        if no endpoint answers, or an endpoint rejects the request as invalid.
        """


class ModelSource(Protocol):
    """The model endpoints of a profile, which all episodes of a process share; thread-safe."""

    def session(self, header: EpisodeHeader, model: str | None = None) -> ModelSession:
        """Return a session for one episode; its model is ``model``, else the header's, else the profile's."""


class ModelAgent(Agent, SupportsEpisodeInfo, Protocol):
    """An agent that requests answers of a model; its constructor gets both arguments by keyword."""

    uses_model: ClassVar[bool]

    def __init__(self, *, inference_mngr: ModelSource, settings: ModelSettings) -> None: ...
