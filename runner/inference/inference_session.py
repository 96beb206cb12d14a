"""Inferences of one episode: its endpoints are tried in order, with a span of each request, until one answers.

The names of the spans' attributes are those of OpenTelemetry's GenAI semantic conventions.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from math import ceil
from typing import TypeAlias
from urllib.parse import urlsplit

import msgspec

from runner.config.profile import Capabilities, LessonKey, Price
from runner.errors import ContextExceeded, InferenceFault
from runner.inference.api_keys import key_advice, read_api_key
from runner.inference.chat_format import (
    InferenceQuestion,
    ModelReply,
    request_body,
    sent_chat,
    stored_chat,
    tokens_per_s,
)
from runner.inference.endpoint_state import InferenceContext, LiveEndpoint
from runner.inference.endpoints import NO_ENDPOINT, EndpointSpec, resolve_target
from runner.inference.errors import EndpointFailure
from runner.inference.gate import learner_of
from runner.inference.learning import Learner
from runner.inference.request import InferenceCall, limit_answer, send_call
from runner.inference.token_capture import TokenCapture
from runner.tracing import SpanHandle, Tracer, create_flow_id
from runner.types import SHAPES, Chat, Inference, StreamDelta, Tokens, ToolSchema, Usage, join_shapes
from runner.types.phases import answer_times
from runner.types.sequences import Label, TokenSequence
from runner.util.display_text import one_line
from runner.util.resources import find_shortage
from runner.util.urls import safe_url

MAX_PASSES = 3
"""Maximum number of times that one inference tries all endpoints."""
FIRST_PAUSE_S = 0.5
GRACE_S = 0.25
"""Seconds that a request may exceed the episode's time limit, so that the episode ends as a timeout, not an error."""
CONFIRM_S = 5.0
"""Seconds to wait for a refusal that confirms a lesson: refusals come at once, and an answer is at hand already."""

OnGatewayId: TypeAlias = Callable[[str, str, str], None]
"""Receives the id of an episode, the name of an endpoint, and the endpoint's id of the episode."""

_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_NO_TRACER = Tracer("off")
_numbers = itertools.count()  # of requests: the sessions of an episode share its ids


class EndpointAnswer(msgspec.Struct, frozen=True):
    """A reply, the shape of its request, TensorZero's id of the episode or "", and what the agent gets of them."""

    reply: ModelReply
    capabilities: Capabilities
    gateway_id: str
    inference: Inference


class _NotAdmitted(Exception):
    pass


class FallbackChain(msgspec.Struct, kw_only=True, dict=True):
    """One inference: tries the endpoints in order until one answers; ``run`` may be awaited only once.

    After a failure the next endpoint is tried immediately. When all endpoints have failed, the chain waits until at
    least one of them is ready again and then tries all once more, up to ``MAX_PASSES`` passes. An endpoint that refuses
    the shape of a request gets it in other shapes first, see ``learning``.

    Attributes:
        id: unique id of the inference, part of its flow ids in the trace.
        gateway_ids: TensorZero's id of the episode by endpoint name.
        on_tokens: receives also the token ids of discarded answers; None: no request asks for them.
        on_delta, label, can_shorten, tools_as_text: as in ``ModelSession.infer``.
    """

    context: InferenceContext
    question: InferenceQuestion
    model: str
    episode: str
    id: str
    time_left_s: float
    tracer: Tracer
    gateway_ids: dict[str, str]
    on_delta: Callable[[StreamDelta], None] | None
    on_tokens: Callable[[TokenSequence], None] | None
    label: Label
    can_shorten: bool
    tools_as_text: bool

    def __post_init__(self) -> None:
        self._gate = self.context.gate
        self._now = self.context.timing.clock.monotonic
        self._deadline = self._now() + self.time_left_s
        self._notes: dict[str, str] = {}
        self._lessons: dict[str, str] = {}
        self._excluded: set[str] = set()
        self._searched: set[str] = set()
        self._n_refusals = 0
        self._n_requests = 0
        self._admitted = ""  # key of the request that a gate has admitted
        self._has_repeated = False
        self._capture: TokenCapture | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """The latest failure of each endpoint that has failed, and what was learned, as ``name: text``."""
        return tuple(f"{name}: {note}" for name, note in (*self._notes.items(), *self._lessons.items()))

    async def run(self) -> EndpointAnswer:
        """Raises ``ContextExceeded`` for a chat to shorten, else ``InferenceFault`` that names each failure."""
        for attempt in range(MAX_PASSES):
            if attempt and not await self._wait(attempt):
                break
            for endpoint in self.context.endpoints:
                answer = await self._try_endpoint(endpoint)
                if answer is not None:
                    return answer
        raise InferenceFault(self._failure_summary())

    async def _wait(self, attempt: int) -> bool:
        """Return False if no endpoint will be ready before the time limit."""
        usable = [end for end in self.context.endpoints if end.name not in self._excluded]
        if not usable:
            return False
        rest_s = min(self._gate.wait_s(end.name) for end in usable)
        longest_s = FIRST_PAUSE_S * 2.0 ** (attempt - 1)  # exponential backoff with jitter
        pause = max(self.context.timing.uniform(longest_s / 2, longest_s), rest_s)
        if pause >= self._deadline - self._now():
            return False
        await self.context.timing.sleep(pause)
        return True

    async def _try_endpoint(self, endpoint: LiveEndpoint) -> EndpointAnswer | None:
        name = endpoint.name
        if name in self._excluded or self._deadline <= self._now():
            return None
        try:
            answer = await self._ask(endpoint)
        except _NotAdmitted:
            self._note_refusal(name)
            return None
        except EndpointFailure as failure:
            self._fail(endpoint, failure)
            return None
        finally:
            self._leave(name)
        self._gate.report(name, None, "")
        return answer

    async def _ask(self, endpoint: LiveEndpoint) -> EndpointAnswer:
        key = self._key(endpoint)
        known = self._gate.lessons.get(key)
        try:
            answer = await self._send_request(endpoint, known)
        except EndpointFailure as failure:
            if not failure.refusal or (failure.reason == "server" and key.endpoint in self._searched):
                raise
            self._searched.add(key.endpoint)
            answer = await self._learn(endpoint, key, known, failure)
        if answer.reply.is_silent and not self._has_repeated:
            self._has_repeated = True
            return await self._send_again(endpoint, answer.capabilities)
        return answer

    async def _send_again(self, endpoint: LiveEndpoint, capabilities: Capabilities) -> EndpointAnswer:
        self._emit(StreamDelta(restart=True))
        return await self._send_request(endpoint, capabilities)

    async def _learn(
        self, endpoint: LiveEndpoint, key: LessonKey, known: Capabilities, failure: EndpointFailure
    ) -> EndpointAnswer:
        """Learn what the endpoint takes; what another request has learned meanwhile is tried first."""
        self._leave(endpoint.name)
        place = learner_of(endpoint.name), f"{self.id}:learner"
        if not await self._gate.enter(*place, self._deadline - self._now()):
            raise failure
        try:
            if (newer := self._gate.lessons.get(key)) != known:
                try:
                    return await self._send_again(endpoint, newer)
                except EndpointFailure as later:
                    if not later.refusal:
                        raise
                    known, failure = newer, later
            learner = Learner(
                partial(self._send_again, endpoint),
                partial(self._confirm, endpoint),
                self.question,
                known,
                token_ids=self._wants_tokens(endpoint),
            )
            answer, learned = await learner.run(failure)
            if learned != known:
                self._gate.lessons.keep(key, learned)
        finally:
            self._gate.leave(*place)
        if learned != known:
            reason = self.context.error_text(failure)
            self._lessons[endpoint.name] = f"learned {learned.describe() or 'the usual shape'} from {reason}"
        return answer

    async def _confirm(self, endpoint: LiveEndpoint, capabilities: Capabilities) -> None:
        """Send a request whose answer is not used; what is not refused soon counts as not refused."""
        with suppress(TimeoutError, _NotAdmitted):
            async with asyncio.timeout(CONFIRM_S):
                await self._send_request(endpoint, capabilities, is_shown=False)

    def _key(self, endpoint: LiveEndpoint) -> LessonKey:
        model = endpoint.spec.model or self.model
        return LessonKey(endpoint.name, model, bool(self.question.tools))

    def _wants_tokens(self, endpoint: LiveEndpoint) -> bool:
        return endpoint.spec.token_ids and self.on_tokens is not None

    def _leave(self, name: str) -> None:
        if self._admitted:
            self._gate.leave(name, self._admitted)
            self._admitted = ""

    def _record_tokens(self, label: Label, n_completion: int | None, cause: str = "") -> None:
        capture, on_tokens = self._capture, self.on_tokens
        if capture is None or on_tokens is None or (label == "discarded" and capture.is_empty):
            return
        on_tokens(capture.sequence(label, n_completion, cause))

    def _note_refusal(self, name: str) -> None:
        if name in self._notes:
            return
        rest_s, cause = self._gate.wait_s(name), self._gate.cause(name)
        self._notes[name] = f"{cause}; tried again in {ceil(rest_s)} s" if rest_s > 0 else f"no time left: {cause}"
        self._emit(StreamDelta(failure=f"{name}: {self._notes[name]}"))

    def _fail(self, endpoint: LiveEndpoint, failure: EndpointFailure) -> None:
        name, text = endpoint.name, self.context.error_text(failure)
        if find_shortage(failure) is not None:  # this process failed, and it would fail at every endpoint
            raise failure
        endpoint.reconsider_kind(failure)
        self._emit(StreamDelta(failure=f"{name}: {text}", restart=True))
        if failure.context_tokens is not None:
            if failure.context_tokens:
                self._gate.lessons.keep_context(self._key(endpoint), failure.context_tokens)
            if self.can_shorten:
                self._notes[name] = f"shortened for its context: {text}"
                raise ContextExceeded(f"{name}: {text}", failure.context_tokens, self.warnings)
        if failure.is_about_key and failure.status is not None:
            text = f"{text}; {key_advice(endpoint.spec, endpoint.kind)}"
        self._notes[name] = text
        self._n_refusals += failure.reason == "request"
        if failure.reason in ("request", "timeout", "configuration"):
            self._excluded.add(name)
        if failure.reason == "request":
            self._gate.report(name, None, "")
        elif failure.reason != "timeout" or self._now() < self._deadline:  # not the episode's time limit
            self._gate.report(name, failure, text)

    async def _send_request(
        self, endpoint: LiveEndpoint, capabilities: Capabilities, *, is_shown: bool = True
    ) -> EndpointAnswer:
        """Send the request once, when the endpoint admits it; ``is_shown``: the answer is streamed to the viewer."""
        self._n_requests += 1
        name, id, model = endpoint.name, f"{self.id}:{self._n_requests}", endpoint.spec.model or self.model
        self._leave(name)
        if not await self._gate.enter(name, id, self._deadline - self._now() + GRACE_S):
            raise _NotAdmitted
        self._admitted = id
        if is_shown:
            self._emit(StreamDelta(endpoint=name, model=one_line(model)))
        self._capture = TokenCapture(name, model) if self._wants_tokens(endpoint) else None
        try:
            with (
                self.tracer.span("inference", "agent", endpoint=name) as outer,
                request_span(self.tracer, endpoint.spec, model, self.question, self.episode) as span,
            ):
                outer.start_flow(create_flow_id("inference", id))
                span.end_flow(create_flow_id("inference", id))
                flow_id = create_flow_id("inference_response", id)
                answer = await self._exchange(
                    endpoint, capabilities, span, flow_id, self.on_delta if is_shown else None
                )
                record_answer(self.tracer, span, answer)
                span.start_flow(flow_id)
        except EndpointFailure as failure:
            self._record_tokens("discarded", None, self.context.error_text(failure))
            raise
        if is_shown and (self._has_repeated or not answer.reply.is_silent):
            tokens = answer.reply.tokens
            self._record_tokens(self.label, None if tokens is None else tokens.completion)
        else:
            self._record_tokens("discarded", None, "the answer is not used")
        return answer

    async def _exchange(
        self,
        endpoint: LiveEndpoint,
        capabilities: Capabilities,
        span: SpanHandle,
        flow_id: int,
        on_delta: Callable[[StreamDelta], None] | None,
    ) -> EndpointAnswer:
        context, spec = self.context, endpoint.spec
        async with limit_answer(context.settings, self._deadline - self._now() + GRACE_S) as limits:
            kind = await endpoint.find_kind(context.mask, context.timing.clock.now())
            target = resolve_target(spec, kind, self.model)
            span.set_attribute("gen_ai.provider.name", kind)  # known only after detection
            key = read_api_key(spec, kind, context.environ)
            gateway_id = self.gateway_ids.get(spec.name) if kind == "tensorzero" else None
            origin = f"{spec.name} {target.model}"
            chat = sent_chat(self.question, capabilities, origin)
            with_ids = self._capture is not None
            call = InferenceCall(
                target=target,
                body=request_body(
                    self.question, target, capabilities, chat, episode_id=gateway_id, with_token_ids=with_ids
                ),
                key=key,
                mask=context.mask,
                limits=limits,
                streams=self.question.stream and capabilities.stream,
                on_delta=on_delta,
                clock=context.timing.clock,
                capture=self._capture,
            )
            started = self._now()
            reply = await send_call(call)
            usage = self._usage(spec, capabilities, reply, self._now() - started)
        noted = reply.message(origin)
        inference = Inference(
            message=stored_chat([noted])[0],
            noted=noted,
            sent=stored_chat(chat),
            cause_of_silence=reply.cause_of_silence,
            usage=usage,
            finish_reason=reply.finish_reason,
            used_tools=bool(self.question.tools) and capabilities.tools == "native",
            flow_id=flow_id,
        )
        new_id = reply.episode_id or "" if kind == "tensorzero" else ""
        return EndpointAnswer(reply, capabilities, new_id, inference)

    def _usage(self, spec: EndpointSpec, capabilities: Capabilities, reply: ModelReply, total_s: float) -> Usage:
        model = spec.model or self.model
        as_text = self.tools_as_text or (bool(self.question.tools) and capabilities.tools == "text")
        has_system = any(message["role"] == "system" for message in self.question.messages)
        shape = zip(SHAPES, (as_text, capabilities.system == "folded" and has_system), strict=True)
        server = self._gate.server_times.values.get(spec.name)
        return Usage(
            endpoint=spec.name,
            model=model,
            ttft_s=reply.ttft_s,
            tokens_per_s=tokens_per_s(reply, total_s),
            tokens=reply.tokens,
            cost=token_cost(reply.tokens, self.context.settings.price.get(model)),
            shape=join_shapes(name for name, holds in shape if holds),
            times=answer_times(total_s, reply.ttft_s, (reply.prefill_s, reply.decode_s), server),
        )

    def _emit(self, delta: StreamDelta) -> None:
        if self.on_delta is not None:
            self.on_delta(delta)

    def _failure_summary(self) -> str:
        if not self.context.endpoints:
            return NO_ENDPOINT
        causes = []
        for endpoint in self.context.endpoints:
            name, url = endpoint.name, safe_url(endpoint.spec.url)
            model = one_line(endpoint.spec.model or self.model)
            causes.append(f"{name} ({url}, model {model}): {self._notes.get(name, 'not tried, no time left')}")
        refused = ""
        if self._n_refusals == len(self.context.endpoints):
            others = "; the other endpoints refused it, too" if self._n_refusals > 1 else ""
            refused = f"{others}. Check agent.model, agent.max_tokens and agent.context_tokens in the profile"
        return f"no model answered; {'; '.join(causes)}{refused}. Run agentgym-runner preflight for a hint on each"


@contextmanager
def request_span(
    tracer: Tracer, spec: EndpointSpec, model: str, question: InferenceQuestion, episode: str
) -> Iterator[SpanHandle]:
    """Attributes follow https://opentelemetry.io/docs/specs/semconv/gen-ai/; ``agentgym.*`` attributes are ours."""
    with tracer.span(f"chat {one_line(model)}", "inference", semantic="inference") as span:
        parts = urlsplit(spec.url)
        span.set_attribute("gen_ai.operation.name", "chat")
        span.set_attribute("gen_ai.request.model", model)
        span.set_attribute("gen_ai.request.stream", question.stream)
        span.set_attribute("gen_ai.conversation.id", episode)
        span.set_attribute("agentgym.endpoint", spec.name)
        span.set_attribute("server.address", parts.hostname or "")
        span.set_attribute("server.port", parts.port or (443 if parts.scheme == "https" else 80))
        for name in ("temperature", "max_tokens"):
            if (value := getattr(question, name)) is not None:
                span.set_attribute(f"gen_ai.request.{name}", value)
        try:
            yield span
        except EndpointFailure as failure:
            span.set_attribute("error.type", failure.otel_error_type)
            raise


def record_answer(tracer: Tracer, span: SpanHandle, answer: EndpointAnswer) -> None:
    reply, usage = answer.reply, answer.inference.usage
    span.set_attribute("gen_ai.response.model", reply.model)
    span.set_attribute("gen_ai.response.finish_reasons", reply.finish_reason)
    if reply.ttft_s is not None:
        span.set_attribute("gen_ai.response.time_to_first_chunk", reply.ttft_s)
    if usage.tokens_per_s is not None:
        span.set_attribute("agentgym.tokens_per_s", usage.tokens_per_s)
    if reply.tokens is not None:
        span.set_attribute("gen_ai.usage.input_tokens", reply.tokens.prompt)
        span.set_attribute("gen_ai.usage.output_tokens", reply.tokens.completion)
        span.set_attribute("gen_ai.usage.cache_read.input_tokens", reply.tokens.cached)
        span.set_attribute("gen_ai.usage.reasoning.output_tokens", reply.tokens.reasoning)
    if (times := usage.times) is None:
        return
    parts = {name: getattr(times, f"{name}_s") for name in ("queue", "prefill", "decode")}
    known = [(name, seconds) for name, seconds in parts.items() if seconds is not None]
    for name, seconds in known:
        span.set_attribute(f"agentgym.{name}_s", seconds)
    if times.about:
        span.set_attribute("agentgym.times_are_estimates", True)
    if len(known) == len(parts):
        tracer.add_spans("inference", known, about=times.about)


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
        ready = [end for end in endpoints if gate.wait_s(end.name) <= 0] or endpoints
        for first in ready[:1]:
            return gate.lessons.get(LessonKey(first.name, first.spec.model or self.model, with_tools))
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
        settings = self._context.settings
        question = InferenceQuestion(
            messages=messages,
            tools=tools,
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
            stream=settings.stream,
        )
        chain = FallbackChain(
            context=self._context,
            question=question,
            model=self.model,
            episode=self._episode,
            id=f"{self._episode}:{next(_numbers)}",
            time_left_s=time_left_s,
            tracer=tracer or _NO_TRACER,
            gateway_ids=self._gateway_ids,
            on_delta=on_delta,
            on_tokens=on_tokens,
            label=label,
            can_shorten=can_shorten,
            tools_as_text=tools_as_text,
        )
        answer = await chain.run()
        usage, id = answer.inference.usage, answer.gateway_id
        # TensorZero returns its episode id with the first reply and expects it in all later requests
        if _UUID.fullmatch(id) and usage.endpoint not in self._gateway_ids:
            self._gateway_ids[usage.endpoint] = id
            self._on_gateway_id(self._episode, usage.endpoint, id)
        usage = msgspec.structs.replace(usage, warnings=chain.warnings)
        return msgspec.structs.replace(answer.inference, usage=usage)


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
    return total / 1_000_000
