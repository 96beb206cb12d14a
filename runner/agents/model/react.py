"""Language-model agents: ``ReactAgent`` with a configurable answer format, ``ToolsAgent`` with tool calls."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from runner.agents.model.conversation import (
    Conversation,
    ReasoningTurns,
    chat_budget,
    fit_chat,
    strip_thinking,
    tools_size,
)
from runner.agents.model.prompts import system_prompt
from runner.agents.model.reply_parsing import action_style, parse_reply
from runner.errors import AgentFault, ContextExceeded
from runner.inference.chat_format import LENGTH_REASONS, WITHHELD, describe_cut, flatten_tool_calls, stored_chat
from runner.types import (
    Action,
    Chat,
    EpisodeInfo,
    Inference,
    InvalidAction,
    ModelSession,
    ModelSettings,
    ModelSource,
    ToolSchema,
    Usage,
)


class ReactAgent:
    """Agent that requests one answer per step from a model; an answer is a thought and an action.

    ``agent.format`` of the profile selects the form of the answer: ``tools`` for tool calls, ``react`` for text,
    ``auto`` for tool calls if the next endpoint supports them. An answer in the other form is also accepted. Of the
    other agent settings only the context limits are used. The agent can be pickled until ``enter`` is called.

    Attributes:
        last_usage: token usage of the latest answer; None if it is unknown.
        last_response_flow_id: id of the trace flow that starts at the latest answer.
    """

    uses_model: ClassVar[bool] = True
    tracer: Any = None

    def __init__(self, *, inference_mngr: ModelSource, settings: ModelSettings) -> None:
        self.last_usage: Usage | None = None
        self.last_response_flow_id: int | None = None
        self._manager = inference_mngr
        self._settings = settings
        self._format = settings.format
        self._conversation = Conversation()
        self._episode: tuple[EpisodeInfo, ModelSession] | None = None
        self._fitting_tokens: int | None = None
        self._prompt_cache: tuple[list[ToolSchema], bool, str, int] | None = None

    def enter(self, episode: EpisodeInfo) -> None:
        self._episode = episode, self._manager.session(episode.header)

    def init_after_reset(self) -> None:
        self.last_usage = self.last_response_flow_id = self._fitting_tokens = None
        self._conversation = Conversation()

    async def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> tuple[list[Chat], Action | InvalidAction]:
        """Return the chat (prompt and reply) and the model's next action, which may be invalid.

        Raises:
            InferenceFault: if no endpoint answers.
        """
        if self._episode is None:
            raise AgentFault("the model agent's act was called outside an episode; call enter first")
        episode, session = self._episode
        self.last_usage = None
        as_calls = self._calls_tools(session, tool_schemas)
        self._conversation.add_observation(observation)
        inference = await self._infer(episode, session, tool_schemas, as_calls)
        self.last_usage, self.last_response_flow_id = inference.usage, inference.flow_id
        mode = episode.header.mode
        reply = strip_thinking(inference.noted, mode)
        action = parse_reply(reply, action_style(episode.header.env), tool_schemas, as_calls=as_calls, mode=mode)
        self._conversation.add_reply(reply, action)
        return [[*inference.sent, *stored_chat([reply])]], _explain(action, inference)

    async def _infer(
        self, episode: EpisodeInfo, session: ModelSession, schemas: list[ToolSchema], as_calls: bool
    ) -> Inference:
        known = session.capabilities(with_tools=as_calls)
        limits = (known.context_tokens, self._settings.context_tokens, self._fitting_tokens)
        context_tokens = min(filter(None, limits))

        def chat_of(context_tokens: int) -> Chat:
            return self._chat(episode, schemas, as_calls, context_tokens, known.reasoning)

        chat, can_shorten = chat_of(context_tokens), True
        warnings: tuple[str, ...] = ()
        while True:
            try:
                inference = await session.infer(
                    chat,
                    tools=schemas if as_calls else [],
                    time_left_s=episode.time_left_s(),
                    on_delta=episode.stream,
                    tracer=self.tracer,
                    on_tokens=episode.record_tokens,
                    can_shorten=can_shorten,
                    tools_as_text=bool(schemas) and not as_calls and self._format != "react",
                )
                usage = msgspec.structs.replace(inference.usage, warnings=warnings + inference.usage.warnings)
                return msgspec.structs.replace(inference, usage=usage)
            except ContextExceeded as exc:
                warnings = exc.warnings
                is_figure_of_use = 0 < exc.context_tokens < context_tokens
                context_tokens = exc.context_tokens if is_figure_of_use else context_tokens // 2
                shortest = chat_of(1)
                while (shorter := chat_of(context_tokens)) == chat != shortest:  # far below the profile's limit
                    context_tokens //= 2
                chat, can_shorten = shorter, shorter != shortest
                self._fitting_tokens = context_tokens

    def _calls_tools(self, session: ModelSession, schemas: list[ToolSchema]) -> bool:
        if self._format == "react" or not schemas:
            return False
        return self._format == "tools" or session.capabilities(with_tools=True).tools == "native"

    def _chat(
        self,
        episode: EpisodeInfo,
        schemas: list[ToolSchema],
        as_calls: bool,
        context_tokens: int,
        reasoning: ReasoningTurns,
    ) -> Chat:
        text, tools_chars = self._system_prompt(episode, schemas, as_calls)
        budget = chat_budget(self._settings, tools_chars, context_tokens)
        opening, turns = self._conversation.opening, self._conversation.turns
        turns = turns if as_calls else [flatten_tool_calls(turn) for turn in turns]
        return fit_chat(text, opening, turns, budget, reasoning)

    def _system_prompt(self, episode: EpisodeInfo, schemas: list[ToolSchema], as_calls: bool) -> tuple[str, int]:
        """Return the system prompt and the size of the tools in characters, cached until the tools change."""
        if self._prompt_cache is None or self._prompt_cache[:2] != (schemas, as_calls):
            header, max_rounds = episode.header, episode.max_rounds
            text = system_prompt(header.env, schemas, as_calls=as_calls, max_rounds=max_rounds, mode=header.mode)
            self._prompt_cache = schemas, as_calls, text, tools_size(schemas if as_calls else [])
        return self._prompt_cache[2:]


def _explain(action: Action | InvalidAction, inference: Inference) -> Action | InvalidAction:
    cause = inference.cause_of_silence
    if not cause and inference.finish_reason in LENGTH_REASONS:
        cause = describe_cut(inference.usage.tokens)
    elif not cause and inference.finish_reason == "content_filter":
        cause = WITHHELD
    if isinstance(action, InvalidAction) and cause:
        return msgspec.structs.replace(action, expected=f"{action.expected}; the answer was {cause}")
    return action


class ToolsAgent(ReactAgent):
    """A ``ReactAgent`` that always requests tool calls, regardless of ``agent.format``."""

    def __init__(self, *, inference_mngr: ModelSource, settings: ModelSettings) -> None:
        super().__init__(inference_mngr=inference_mngr, settings=settings)
        self._format = "tools"
