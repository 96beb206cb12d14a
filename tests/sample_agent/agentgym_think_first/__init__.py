"""An agent that asks its model twice per step: for a thought, then for the action."""

from typing import Any, ClassVar

from runner.types import (
    Action,
    Chat,
    EpisodeInfo,
    Inference,
    InvalidAction,
    ModelSettings,
    ModelSource,
    ToolSchema,
    Usage,
)


class ThinkFirst:
    uses_model: ClassVar[bool] = True
    tracer: Any = None

    def __init__(self, *, inference_mngr: ModelSource, settings: ModelSettings) -> None:
        self.last_usage: Usage | None = None
        self._models, self._settings = inference_mngr, settings
        self._turns: Chat = []

    def enter(self, episode: EpisodeInfo) -> None:
        self._episode, self._session = episode, self._models.session(episode.header)

    def init_after_reset(self) -> None: ...

    async def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> tuple[list[Chat], Action | InvalidAction]:
        self.last_usage = None
        seen = "\n".join(message["content"] or "" for message in observation)
        thought = await self._ask(f"{seen}\n\nIn two sentences: what do you know, and what comes next?", [])
        question = f"{seen}\n\nYour thought: {thought.text}\n\nCall one tool, or write Action: and the action."
        answer = await self._ask(question, tool_schemas)
        done = "".join(f"\n{call.name} {call.arguments}" for call in answer.tool_calls) or answer.text
        self._turns += [{"role": "user", "content": seen}, {"role": "assistant", "content": thought.text + done}]
        chats = [[*each.sent, each.message] for each in (thought, answer)]
        if answer.tool_calls:
            return chats, Action(tool_calls=answer.tool_calls[:1])
        text = answer.text.rpartition("Action:")[2].strip()
        return chats, Action(text=text) if text else InvalidAction(answer.text, "a tool call")

    async def _ask(self, question: str, tools: list[ToolSchema]) -> Inference:
        while len(self._turns) > 2 and len(str(self._turns)) > 3 * self._settings.context_tokens:
            del self._turns[2:4]  # the first turn has the task
        answer = await self._session.infer(
            [*self._turns, {"role": "user", "content": question}],
            tools=tools,
            time_left_s=self._episode.time_left_s(),
            on_delta=self._episode.stream,
            on_tokens=self._episode.record_tokens,
            tracer=self.tracer,
            label="agent" if tools else "auxiliary",
        )
        self.last_usage = answer.usage if self.last_usage is None else self.last_usage + answer.usage
        return answer
