"""Inferences of one episode (``InferenceSession``), and the cost of tokens."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from runner.config.capabilities import Capabilities, LessonKey
from runner.config.profile import Price
from runner.inference.chat_format import InferenceQuestion, stored_chat
from runner.inference.endpoint_state import InferenceContext
from runner.inference.fallback import EndpointAnswer, FallbackChain, InferenceRequest
from runner.tracing import Tracer
from runner.types import SHAPES, Chat, Inference, StreamDelta, Tokens, ToolSchema, Usage, join_shapes
from runner.types.sequences import Label, TokenSequence

_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_NO_TRACER = Tracer("off")
_MILLION = 1_000_000
_numbers = itertools.count()  # of requests: the sessions of an episode share its ids

OnGatewayId: TypeAlias = Callable[[str, str, str], None]
"""Receives the id of an episode, the name of an endpoint, and the endpoint's id of the episode."""


class InferenceSession:
    """Inferences of one episode; only one asyncio task may use it at a time. See ``InferenceManager.session``."""

    def __init__(self, context: InferenceContext, on_gateway_id: OnGatewayId, episode: str, model: str) -> None:
        self.model = model
        self._context = context
        self._on_gateway_id = on_gateway_id
        self._episode = episode
        self._gateway_ids: dict[str, str] = {}

    def capabilities(self, *, with_tools: bool) -> Capabilities:
        gate, endpoints = self._context.gate, self._context.endpoints
        ready = [end for end in endpoints if gate.wait_s(end.spec.name) <= 0] or endpoints
        for first in ready[:1]:
            return gate.lessons.get(LessonKey(first.spec.name, first.spec.model or self.model, with_tools))
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
        """See ``runner.types.ModelSession``."""
        request = msgspec.structs.replace(
            self._request(messages, tools, time_left_s, on_delta, tracer),
            on_tokens=on_tokens,
            label=label,
            can_shorten=can_shorten,
        )
        chain = FallbackChain(self._context, request)
        answer = await chain.run()
        self._remember_gateway_id(answer)
        reply = answer.reply
        return Inference(
            message=stored_chat([noted := reply.message(answer.origin)])[0],
            noted=noted,
            sent=answer.sent,
            cause_of_silence=reply.cause_of_silence,
            usage=self._usage(answer, chain.warnings, request_shape(answer, request.question, tools_as_text)),
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
            id=f"{self._episode}:{next(_numbers)}",
            time_left_s=time_left_s,
            tracer=tracer or _NO_TRACER,
            on_delta=on_delta,
            gateway_ids=self._gateway_ids,
        )

    def _remember_gateway_id(self, answer: EndpointAnswer) -> None:
        # TensorZero returns its episode id with the first reply and expects it in all later requests.
        name, id = answer.endpoint.spec.name, answer.reply.episode_id
        if answer.target.kind == "tensorzero" and id and _UUID.fullmatch(id) and name not in self._gateway_ids:
            self._gateway_ids[name] = id
            self._on_gateway_id(self._episode, name, id)

    def _usage(self, answer: EndpointAnswer, warnings: tuple[str, ...], shape: str) -> Usage:
        reply, model = answer.reply, answer.endpoint.spec.model or self.model
        return Usage(
            endpoint=answer.endpoint.spec.name,
            model=model,
            ttft_s=reply.ttft_s,
            tokens_per_s=answer.tokens_per_s,
            tokens=reply.tokens,
            cost=token_cost(reply.tokens, self._context.settings.price.get(model)),
            warnings=warnings,
            shape=shape,
            times=answer.times,
        )


def request_shape(answer: EndpointAnswer, question: InferenceQuestion, tools_as_text: bool) -> str:
    """Return the shape of an answered request as in ``Usage``; see ``InferenceSession.infer`` for ``tools_as_text``."""
    taken = answer.capabilities
    as_text = tools_as_text or (bool(question.tools) and taken.tools == "text")
    is_folded = taken.system == "folded" and any(message["role"] == "system" for message in question.messages)
    return join_shapes(name for name, holds in zip(SHAPES, (as_text, is_folded), strict=True) if holds)


def token_cost(tokens: Tokens | None, price: Price | None) -> float | None:
    """Return the cost of the tokens, or None if the tokens or the price are unknown.

    Prompt tokens include the cached tokens, and completion tokens include the reasoning tokens. If a price has no rate
    for cached or reasoning tokens, they cost as much as other prompt or completion tokens.
    """
    if tokens is None or price is None:
        return None
    cached, reasoning = min(tokens.cached, tokens.prompt), min(tokens.reasoning, tokens.completion)
    per_cached = price.prompt_per_mtok if price.cached_per_mtok is None else price.cached_per_mtok
    per_reasoning = price.completion_per_mtok if price.reasoning_per_mtok is None else price.reasoning_per_mtok
    total = (tokens.prompt - cached) * price.prompt_per_mtok + cached * per_cached
    total += (tokens.completion - reasoning) * price.completion_per_mtok + reasoning * per_reasoning
    return total / _MILLION
