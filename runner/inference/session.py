"""The inferences of one episode."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import msgspec

from runner.inference.chat_format import Question
from runner.inference.endpoint_state import Core
from runner.inference.fallback import Answer, Asked, Chain
from runner.inference.feedback import FeedbackSender, Link
from runner.inference.pricing import cost_of
from runner.tracing import Tracer
from runner.types import Chat, EpisodeHeader, Message, Piece, ToolSchema, Usage

_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_OFF = Tracer("off")


class Inference(msgspec.Struct, frozen=True, kw_only=True):
    """A model's answer.

    Attributes:
        message: with ``content``, and where there are any ``reasoning_content`` and ``tool_calls``.
        usage: what it took and where it came from.
        finish_reason: as the endpoint says, such as ``stop`` or ``length``.
        used_tools: whether the tools were sent along; not so where the model takes none.
        flow_id: of the arrow that leaves the response in the trace.
    """

    message: Message
    usage: Usage
    finish_reason: str | None
    used_tools: bool
    flow_id: int


class InferenceSession:
    """Asks for the model's answers in one episode; made by ``InferenceManager.session``, used by one task at a time."""

    def __init__(self, core: Core, feedback: FeedbackSender, header: EpisodeHeader, model: str) -> None:
        """Start an episode; nothing is asked yet."""
        self.model = model
        self._core = core
        self._feedback = feedback
        self._episode = header.episode_id
        self._gateway_ids: dict[str, str] = {}
        self._number = itertools.count()

    @property
    def supports_tools(self) -> bool:
        """Whether the endpoint that is asked next takes tools, as far as is known."""
        ready = [end for end in self._core.endpoints if end.breaker.wait_s() <= 0] or self._core.endpoints
        return all(end.takes_tools(end.spec.model or self.model) for end in ready[:1])

    async def infer(
        self,
        messages: Chat,
        *,
        tools: list[ToolSchema],
        time_left_s: float,
        on_piece: Callable[[Piece], None] | None = None,
        tracer: Tracer | None = None,
    ) -> Inference:
        """The model's answer to a chat, from the first endpoint that gives one.

        Args:
            messages: the whole chat.
            tools: what the model may call, as OpenAI functions; may be empty.
            time_left_s: seconds until the episode's time limit; no call takes longer.
            on_piece: takes the answer while it comes, the model's thinking and its tool calls included; also who is
                asked, and that what came so far is of no answer, as its endpoint failed.
            tracer: gets a span for each request.

        Raises:
            InferenceFault: when no endpoint answers, or one refuses the request itself.
        """
        chain = Chain(self._core, self._asked(messages, tools, time_left_s, on_piece, tracer))
        answer = await chain.run()
        self._keep_gateway_id(answer)
        reply = answer.reply
        return Inference(
            message=reply.message(),
            usage=self._usage(answer, chain.warnings),
            finish_reason=reply.finish_reason,
            used_tools=answer.used_tools,
            flow_id=answer.flow_id,
        )

    def _asked(
        self,
        messages: Chat,
        tools: list[ToolSchema],
        time_left_s: float,
        on_piece: Callable[[Piece], None] | None,
        tracer: Tracer | None,
    ) -> Asked:
        settings = self._core.settings
        question = Question(
            messages=messages,
            tools=tools,
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
            stream=settings.stream,
        )
        return Asked(
            question=question,
            model=self.model,
            episode=self._episode,
            id=f"{self._episode}:{next(self._number)}",
            time_left_s=time_left_s,
            tracer=tracer or _OFF,
            on_piece=on_piece,
            gateway_ids=self._gateway_ids,
        )

    def _keep_gateway_id(self, answer: Answer) -> None:
        """TensorZero's own id of the episode comes with the first reply, and belongs into all further requests."""
        name, id = answer.endpoint.spec.name, answer.reply.episode_id
        if answer.target.kind == "tensorzero" and id and _UUID.fullmatch(id) and name not in self._gateway_ids:
            self._gateway_ids[name] = id
            self._feedback.remember(self._episode, Link(answer.target.origin, id, answer.key))

    def _usage(self, answer: Answer, warnings: tuple[str, ...]) -> Usage:
        reply, model = answer.reply, answer.endpoint.spec.model or self.model
        return Usage(
            endpoint=answer.endpoint.spec.name,
            model=model,
            ttft_s=reply.ttft_s,
            tokens_per_s=answer.tokens_per_s,
            tokens=reply.tokens,
            cost=cost_of(reply.tokens, self._core.settings.price.get(model)),
            warnings=warnings,
        )
