"""Language-model agents: ``ReactAgent`` with a configurable answer format, ``ToolsAgent`` with tool calls."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from runner.agents.model.conversation import Conversation, chat_budget, fit_chat, strip_thinking
from runner.agents.model.prompts import system_prompt
from runner.agents.model.reply_parsing import action_style, parse_reply
from runner.config.profile import AgentSettings
from runner.errors import AgentFault
from runner.inference.chat_format import flatten_tool_calls
from runner.inference.inference_session import Inference, InferenceSession
from runner.inference.manager import InferenceManager
from runner.types import Action, Chat, EpisodeInfo, InvalidAction, ToolSchema, Usage


class ReactAgent:
    """Agent that requests one answer per step from a model; an answer is a thought and an action.

    ``agent.format`` of the profile selects the form of the answer: ``tools`` for tool calls, ``react`` for text,
    ``auto`` for tool calls if the next endpoint supports them. An answer in the other form is also accepted. The agent
    can be pickled until ``enter`` is called.

    Args:
        inference_mngr: the source of model answers.
        settings: the profile's agent settings; only the format and the context limits are used.

    Attributes:
        last_usage: token usage of the latest answer; None if it is unknown.
        last_response_flow_id: id of the trace flow that starts at the latest answer.
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
        self._prompt_cache: tuple[list[ToolSchema], bool, str, int] | None = None

    def enter(self, episode: EpisodeInfo) -> None:
        """Open an inference session for the episode that is about to start."""
        self._episode = episode, self._manager.session(episode.header, episode.header.model)

    def init_after_reset(self) -> None:
        """Do nothing; a reset needs no preparation."""

    async def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> tuple[list[Chat], Action | InvalidAction]:
        """Return the chat (prompt and reply) and the model's next action, which may be invalid.

        Raises:
            AgentFault: before ``enter``.
            InferenceFault: if no endpoint answers.
        """
        if self._episode is None:
            raise AgentFault("the model agent's act was called outside an episode; call enter first")
        episode, session = self._episode
        self.last_usage = None
        as_calls = self._calls_tools(session, tool_schemas)
        self._conversation.add_observation(observation)
        chat = self._chat(episode, tool_schemas, as_calls)
        inference = await session.infer(
            chat,
            tools=tool_schemas if as_calls else [],
            time_left_s=episode.time_left_s(),
            on_delta=episode.stream,
            tracer=self.tracer,
            on_tokens=episode.record_tokens,
        )
        self.last_usage, self.last_response_flow_id = inference.usage, inference.flow_id
        reply = strip_thinking(inference.message)
        action = parse_reply(reply, action_style(episode.header.env), tool_schemas, as_calls=as_calls)
        self._conversation.add_reply(reply, action)
        return [[*chat, reply]], _note_truncation(action, inference)

    def _calls_tools(self, session: InferenceSession, schemas: list[ToolSchema]) -> bool:
        if self._settings.format == "react" or not schemas:
            return False
        return self._settings.format == "tools" or session.supports_tools

    def _chat(self, episode: EpisodeInfo, schemas: list[ToolSchema], as_calls: bool) -> Chat:
        text, budget = self._system_prompt(episode, schemas, as_calls)
        opening, turns = self._conversation.opening, self._conversation.turns
        return fit_chat(text, opening, turns if as_calls else [flatten_tool_calls(turn) for turn in turns], budget)

    def _system_prompt(self, episode: EpisodeInfo, schemas: list[ToolSchema], as_calls: bool) -> tuple[str, int]:
        # cached until the tools change
        if self._prompt_cache is None or self._prompt_cache[:2] != (schemas, as_calls):
            text = system_prompt(episode.header.env, schemas, as_calls=as_calls, max_rounds=episode.max_rounds)
            self._prompt_cache = schemas, as_calls, text, chat_budget(self._settings, schemas if as_calls else [])
        return self._prompt_cache[2:]


def _note_truncation(action: Action | InvalidAction, inference: Inference) -> Action | InvalidAction:
    if isinstance(action, InvalidAction) and inference.finish_reason == "length":
        return msgspec.structs.replace(action, expected=f"{action.expected}; the answer was cut at its length limit")
    return action


class ToolsAgent(ReactAgent):
    """A ``ReactAgent`` that always requests tool calls, regardless of ``agent.format``."""

    def __init__(self, *, inference_mngr: InferenceManager, settings: AgentSettings) -> None:
        settings = msgspec.structs.replace(settings, format="tools")
        super().__init__(inference_mngr=inference_mngr, settings=settings)
