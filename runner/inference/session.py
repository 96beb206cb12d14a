"""The inferences of one episode."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import msgspec

from runner.config.profile import Price
from runner.inference.chat_format import InferenceQuestion
from runner.inference.endpoint_state import InferenceContext
from runner.inference.fallback import EndpointAnswer, FallbackChain, InferenceRequest
from runner.inference.feedback import FeedbackLink, FeedbackSender
from runner.tracing import Tracer
from runner.types import Chat, EpisodeHeader, Message, StreamDelta, Tokens, ToolSchema, Usage

_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_NO_TRACER = Tracer("off")


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

    def __init__(self, context: InferenceContext, feedback: FeedbackSender, header: EpisodeHeader, model: str) -> None:
        """Start an episode; nothing is asked yet."""
        self.model = model
        self._context = context
        self._feedback = feedback
        self._episode = header.episode_id
        self._gateway_ids: dict[str, str] = {}
        self._number = itertools.count()

    @property
    def supports_tools(self) -> bool:
        """Whether the endpoint that is asked next takes tools, as far as is known."""
        ready = [end for end in self._context.endpoints if end.breaker.wait_s() <= 0] or self._context.endpoints
        return all(end.supports_tools_for(end.spec.model or self.model) for end in ready[:1])

    async def infer(
        self,
        messages: Chat,
        *,
        tools: list[ToolSchema],
        time_left_s: float,
        on_delta: Callable[[StreamDelta], None] | None = None,
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
        chain = FallbackChain(self._context, self._request(messages, tools, time_left_s, on_delta, tracer))
        answer = await chain.run()
        self._remember_gateway_id(answer)
        reply = answer.reply
        return Inference(
            message=reply.message(),
            usage=self._usage(answer, chain.warnings),
            finish_reason=reply.finish_reason,
            used_tools=answer.used_tools,
            flow_id=answer.flow_id,
        )

    def _request(
        self,
        messages: Chat,
        tools: list[ToolSchema],
        time_left_s: float,
        on_delta: Callable[[StreamDelta], None] | None,
        tracer: Tracer | None,
    ) -> InferenceRequest:
        settings = self._context.settings
        question = InferenceQuestion(
            messages=messages,
            tools=tools,
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
            stream=settings.stream,
        )
        return InferenceRequest(
            question=question,
            model=self.model,
            episode=self._episode,
            id=f"{self._episode}:{next(self._number)}",
            time_left_s=time_left_s,
            tracer=tracer or _NO_TRACER,
            on_delta=on_delta,
            gateway_ids=self._gateway_ids,
        )

    def _remember_gateway_id(self, answer: EndpointAnswer) -> None:
        """TensorZero's own id of the episode comes with the first reply, and belongs into all further requests."""
        name, id = answer.endpoint.spec.name, answer.reply.episode_id
        if answer.target.kind == "tensorzero" and id and _UUID.fullmatch(id) and name not in self._gateway_ids:
            self._gateway_ids[name] = id
            self._feedback.remember(self._episode, FeedbackLink(answer.target.origin, id, answer.key))

    def _usage(self, answer: EndpointAnswer, warnings: tuple[str, ...]) -> Usage:
        reply, model = answer.reply, answer.endpoint.spec.model or self.model
        return Usage(
            endpoint=answer.endpoint.spec.name,
            model=model,
            ttft_s=reply.ttft_s,
            tokens_per_s=answer.tokens_per_s,
            tokens=reply.tokens,
            cost=token_cost(reply.tokens, self._context.settings.price.get(model)),
            warnings=warnings,
        )


MILLION = 1_000_000


def token_cost(tokens: Tokens | None, price: Price | None) -> float | None:
    """The price of these tokens, None where either is not known.

    Cached tokens are part of the prompt and reasoning tokens part of the completion; each costs as what it is a part of
    where it has no price of its own.
    """
    if tokens is None or price is None:
        return None
    cached, reasoning = min(tokens.cached, tokens.prompt), min(tokens.reasoning, tokens.completion)
    per_cached = price.prompt_per_mtok if price.cached_per_mtok is None else price.cached_per_mtok
    per_reasoning = price.completion_per_mtok if price.reasoning_per_mtok is None else price.reasoning_per_mtok
    total = (tokens.prompt - cached) * price.prompt_per_mtok + cached * per_cached
    total += (tokens.completion - reasoning) * price.completion_per_mtok + reasoning * per_reasoning
    return total / MILLION
