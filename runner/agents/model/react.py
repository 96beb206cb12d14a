"""The agent that asks a language model for each action."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from runner.agents.model.calls import parse_reply
from runner.agents.model.context import chat_budget, fit_chat
from runner.agents.model.conversation import Conversation, strip_thinking
from runner.agents.model.parsing import action_style
from runner.agents.model.prompts import system_prompt
from runner.config.profile import AgentSettings
from runner.errors import AgentFault
from runner.inference import Inference, InferenceManager, InferenceSession
from runner.inference.chat_format import flatten_tool_calls
from runner.types import Action, Chat, EpisodeInfo, InvalidAction, ToolSchema, Usage


class ReactAgent:
    """Thinks, then acts: one inference per action.

    How it asks is ``agent.format`` of the profile: ``tools`` for calls of the environment's tools, ``react`` for a text
    with a thought and an action, ``auto`` for calls as far as the endpoint that is asked next is known to take them.
    An answer in the other form is understood as well. Until ``enter`` it can be pickled.

    Args:
        inference_mngr: whom it asks.
        settings: the profile's, of which it uses the format and what bounds the context.

    Attributes:
        last_usage: what the newest answer took, None where there was none.
        last_response_flow_id: of the arrow that leaves the newest answer in the trace.
    """

    uses_model: ClassVar[bool] = True
    tracer: Any = None

    def __init__(self, *, inference_mngr: InferenceManager, settings: AgentSettings) -> None:
        self.last_usage: Usage | None = None
        self.last_response_flow_id: int | None = None
        self._manager = inference_mngr
        self._settings = settings
        self._conversation = Conversation()
        self._episode: tuple[EpisodeInfo, InferenceSession] | None = None
        self._told: tuple[list[ToolSchema], bool, str, int] | None = None

    def enter(self, scope: EpisodeInfo) -> None:
        """Learn the episode that is about to be played."""
        self._episode = scope, self._manager.session(scope.header, scope.header.model)

    def init_after_reset(self) -> None:
        """Nothing to prepare."""

    async def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> tuple[list[Chat], Action | InvalidAction]:
        """The model's next action, or what it said in place of one; with the chat that was sent and its reply.

        Raises:
            AgentFault: before ``enter``.
            InferenceFault: when no model answers.
        """
        if self._episode is None:
            raise AgentFault("A model was asked to act outside an episode; call enter first")
        scope, session = self._episode
        self.last_usage = None
        as_calls = self._calls_tools(session, tool_schemas)
        self._conversation.hear(observation)
        chat = self._chat(scope.header.env, tool_schemas, as_calls)
        inference = await session.infer(
            chat,
            tools=tool_schemas if as_calls else [],
            time_left_s=scope.time_left_s(),
            on_delta=scope.stream,
            tracer=self.tracer,
        )
        self.last_usage, self.last_response_flow_id = inference.usage, inference.flow_id
        reply = strip_thinking(inference.message)
        answer = parse_reply(reply, action_style(scope.header.env), tool_schemas, as_calls=as_calls)
        self._conversation.say(reply, answer)
        return [[*chat, reply]], _with_cause(answer, inference)

    def _calls_tools(self, session: InferenceSession, schemas: list[ToolSchema]) -> bool:
        if self._settings.format == "react" or not schemas:
            return False
        return self._settings.format == "tools" or self._manager.supports_tools(session)

    def _chat(self, env: str, schemas: list[ToolSchema], as_calls: bool) -> Chat:
        """The conversation as it is sent: trimmed, and without calls where none are asked for."""
        text, room = self._instructions(env, schemas, as_calls)
        opening, turns = self._conversation.opening, self._conversation.turns
        return fit_chat(text, opening, turns if as_calls else [flatten_tool_calls(turn) for turn in turns], room)

    def _instructions(self, env: str, schemas: list[ToolSchema], as_calls: bool) -> tuple[str, int]:
        """The instructions and the room there is; made anew only when the tools have changed."""
        if self._told is None or self._told[:2] != (schemas, as_calls):
            text = system_prompt(env, schemas, as_calls=as_calls)
            self._told = schemas, as_calls, text, chat_budget(self._settings, schemas if as_calls else [])
        return self._told[2:]


def _with_cause(answer: Action | InvalidAction, inference: Inference) -> Action | InvalidAction:
    if isinstance(answer, InvalidAction) and inference.finish_reason == "length":
        return msgspec.structs.replace(answer, expected=f"{answer.expected}; the answer was cut at its length limit")
    return answer


class ToolsAgent(ReactAgent):
    """Asks for tool calls, whatever format the profile names; see ``ReactAgent``."""

    def __init__(self, *, inference_mngr: InferenceManager, settings: AgentSettings) -> None:
        settings = msgspec.structs.replace(settings, format="tools")
        super().__init__(inference_mngr=inference_mngr, settings=settings)
