"""One inference: try the endpoints in order until one answers, and record a span of each request.

The names of the spans' attributes are those of OpenTelemetry's GenAI semantic conventions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import msgspec

from runner.errors import InferenceFault
from runner.inference.answer_limits import AnswerLimits, limit_answer
from runner.inference.api_keys import DeltaFilter, is_secret, read_api_key, redact_key
from runner.inference.chat_format import InferenceQuestion, ModelReply, request_body, tokens_per_s
from runner.inference.endpoint_state import InferenceContext, LiveEndpoint
from runner.inference.endpoints import NO_ENDPOINT, EndpointSpec, Kind, safe_url
from runner.inference.entrance import MAX_PASSES, pause_s
from runner.inference.errors import EndpointFailure
from runner.inference.http import model_client
from runner.inference.providers import Target, resolve_target
from runner.inference.request import InferenceCall, send_call
from runner.inference.token_capture import TokenCapture
from runner.tracing import SpanHandle, Tracer, create_flow_id
from runner.types import AnswerTimes, StreamDelta
from runner.types.phases import answer_times
from runner.types.sequences import Label, TokenSequence
from runner.util.display_text import one_line
from runner.util.http_client import HttpClient
from runner.util.resources import find_shortage

GRACE_S = 0.25
"""Seconds that a request may exceed the episode's time limit, so that the episode ends as a timeout, not an error."""


class InferenceRequest(msgspec.Struct, frozen=True):
    """The parameters of one inference.

    Attributes:
        model: model for endpoints without their own model.
        episode: id of the episode.
        id: unique id of the inference, part of its flow ids in the trace.
        on_delta: receives the streamed answer, the endpoint in use, and failures.
        gateway_ids: TensorZero's id of the episode by endpoint name.
        on_tokens: receives the token ids of each answer, discarded ones too; None: no request asks for them.
        label: label of the token ids of the final answer.
    """

    question: InferenceQuestion
    model: str
    episode: str
    id: str
    time_left_s: float
    tracer: Tracer
    on_delta: Callable[[StreamDelta], None] | None = None
    gateway_ids: dict[str, str] = msgspec.field(default_factory=dict)
    on_tokens: Callable[[TokenSequence], None] | None = None
    label: Label = "agent"


class EndpointAnswer(msgspec.Struct, frozen=True):
    """A reply and the endpoint that sent it; ``tokens_per_s`` is None if the endpoint does not count tokens."""

    endpoint: LiveEndpoint
    target: Target
    key: str | None
    reply: ModelReply
    used_tools: bool
    tokens_per_s: float | None
    times: AnswerTimes
    flow_id: int


class FallbackChain:
    """Tries the endpoints in order until one answers; ``warnings`` lists the failures before the answer.

    After a failure the next endpoint is tried immediately. When all endpoints have failed, the chain waits until at
    least one of them is ready again and then tries all once more, up to ``MAX_PASSES`` passes.
    """

    def __init__(self, context: InferenceContext, request: InferenceRequest) -> None:
        """Prepare one inference; ``run`` may be awaited only once."""
        self._context = context
        self._gate = context.gate
        self._request = request
        self._now = context.timing.clock.monotonic
        self._deadline = self._now() + request.time_left_s
        self._notes: dict[str, str] = {}
        self._excluded: set[str] = set()
        self._n_requests = 0
        self._capture: TokenCapture | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """The latest failure of each endpoint that has failed, as ``name: failure``."""
        return tuple(f"{name}: {note}" for name, note in self._notes.items())

    async def run(self) -> EndpointAnswer:
        """Return the first answer.

        Raises:
            InferenceFault: if no endpoint answers; the message names each endpoint and its failure.
        """
        for attempt in range(MAX_PASSES):
            if attempt and not await self._wait(attempt):
                break
            for endpoint in self._context.endpoints:
                answer = await self._try_endpoint(endpoint)
                if answer is not None:
                    return answer
        raise InferenceFault(self._failure_summary())

    async def _wait(self, attempt: int) -> bool:
        """Wait until an endpoint is ready again; return False if no endpoint will be ready before the time limit."""
        usable = [end for end in self._context.endpoints if end.spec.name not in self._excluded]
        if not usable:
            return False
        rest_s = min(self._gate.wait_s(end.spec.name) for end in usable)
        pause = max(pause_s(attempt, self._context.timing.uniform), rest_s)
        if pause >= self._deadline - self._now():
            return False
        await self._context.timing.sleep(pause)
        return True

    async def _try_endpoint(self, endpoint: LiveEndpoint) -> EndpointAnswer | None:
        name, time_left_s = endpoint.spec.name, self._deadline - self._now()
        if name in self._excluded or time_left_s <= 0:
            return None
        if not await self._gate.enter(name, time_left_s + GRACE_S):
            self._note_refusal(name)
            return None
        model = endpoint.spec.model or self._request.model
        use_tools = bool(self._request.question.tools) and endpoint.supports_tools_for(model)
        self._capture = self._new_capture(endpoint, model)
        answer = failure = None
        with ExitStack() as admission:
            admission.callback(self._gate.leave, name)  # unless there is an answer or a failure
            try:
                answer = await self._send_request(endpoint, model, use_tools)
            except EndpointFailure as exc:
                failure = exc
            admission.pop_all()
        self._record_tokens(answer, failure)
        if failure is None:
            self._gate.record_success(name)
        elif use_tools and failure.no_tools:
            endpoint.mark_without_tools(model)
            return await self._retry_without(endpoint, "tools", failure)
        elif endpoint.asks_token_ids and failure.no_token_ids:
            endpoint.asks_token_ids = False
            return await self._retry_without(endpoint, "token ids", failure)
        else:
            self._fail(endpoint, failure)
        return answer

    def _new_capture(self, endpoint: LiveEndpoint, model: str) -> TokenCapture | None:
        wanted = endpoint.spec.token_ids and self._request.on_tokens is not None
        return TokenCapture(endpoint.spec.name, model) if wanted else None

    def _record_tokens(self, answer: EndpointAnswer | None, failure: EndpointFailure | None) -> None:
        """Label the token ids of a reply: as those of the answer, or as discarded if the endpoint failed in it."""
        capture, on_tokens = self._capture, self._request.on_tokens
        if capture is None or on_tokens is None:
            return
        if answer is not None:
            tokens = answer.reply.tokens
            on_tokens(capture.sequence(self._request.label, None if tokens is None else tokens.completion))
        elif failure is not None and not capture.is_empty:
            on_tokens(capture.sequence("discarded", None, self._context.error_text(failure)))

    def _note_refusal(self, name: str) -> None:
        if name in self._notes:
            return
        rest_s, cause = self._gate.wait_s(name), self._gate.cause(name)
        self._notes[name] = f"retry in {rest_s:.0f} s after: {cause}" if rest_s > 0 else f"no time left: {cause}"
        self._emit(StreamDelta(failure=f"{name}: {self._notes[name]}"))

    async def _retry_without(
        self, endpoint: LiveEndpoint, refused: str, failure: EndpointFailure
    ) -> EndpointAnswer | None:
        self._gate.leave(endpoint.spec.name)
        self._emit(StreamDelta(restart=True))
        self._notes[endpoint.spec.name] = f"retried without {refused}: {self._context.error_text(failure)}"
        return await self._try_endpoint(endpoint)

    def _fail(self, endpoint: LiveEndpoint, failure: EndpointFailure) -> None:
        name, text = endpoint.spec.name, self._context.error_text(failure)
        if find_shortage(failure) is not None:  # this process failed, and it would fail at every endpoint
            self._gate.leave(name)
            raise failure
        endpoint.reconsider_kind(failure)
        self._emit(StreamDelta(failure=f"{name}: {text}", restart=True))
        if failure.reason == "request":
            self._gate.record_success(name)
            raise InferenceFault(
                f"{name} at {safe_url(endpoint.spec.url)} rejected the request: {text}; other endpoints would, too. "
                "Check agent.model, agent.max_tokens and agent.context_tokens in the profile"
            ) from None
        self._notes[name] = text
        if failure.reason in ("timeout", "configuration"):
            self._excluded.add(name)
        if failure.reason == "timeout" and self._now() >= self._deadline:
            self._gate.leave(name)  # the episode's time limit, not the endpoint's timeout
        else:
            self._gate.record_failure(name, failure, text)

    async def _send_request(self, endpoint: LiveEndpoint, model: str, use_tools: bool) -> EndpointAnswer:
        request = self._request
        self._n_requests += 1
        id = f"{request.id}:{self._n_requests}"
        self._emit(StreamDelta(endpoint=endpoint.spec.name, model=one_line(model)))
        with (
            request.tracer.span("inference", "agent", endpoint=endpoint.spec.name) as outer,
            request_span(request.tracer, endpoint.spec, model, request.question, request.episode) as span,
        ):
            outer.start_flow(create_flow_id("inference", id))
            span.end_flow(create_flow_id("inference", id))
            answer = await self._exchange(endpoint, use_tools, span, create_flow_id("inference_response", id))
            record_reply(span, answer.reply, answer.tokens_per_s)
            record_times(request.tracer, span, answer.times)
            span.start_flow(answer.flow_id)
        return answer

    async def _exchange(
        self, endpoint: LiveEndpoint, use_tools: bool, span: SpanHandle, flow_id: int
    ) -> EndpointAnswer:
        """Send the request to an endpoint and read the reply, within the time limits; first detect an unknown kind."""
        async with limit_answer(self._context.settings, self._deadline - self._now() + GRACE_S) as limits:
            client = await model_client()
            target = resolve_target(endpoint.spec, await self._kind(endpoint, client), self._request.model)
            record_target(span, target)
            key = read_api_key(endpoint.spec, target.kind, self._context.environ)
            gateway_id = self._request.gateway_ids.get(endpoint.spec.name) if target.kind == "tensorzero" else None
            body = request_body(
                self._request.question,
                target,
                use_tools=use_tools,
                episode_id=gateway_id,
                with_token_ids=self._capture is not None and endpoint.asks_token_ids,
            )
            started = self._now()
            reply = await self._send(client, target, body, key, limits)
            total_s = self._now() - started
        server = self._gate.server_times(endpoint.spec.name)
        times = answer_times(total_s, reply.ttft_s, (reply.prefill_s, reply.decode_s), server)
        rate = tokens_per_s(reply, total_s)
        return EndpointAnswer(endpoint, target, key, redact_key(reply, key), use_tools, rate, times, flow_id)

    async def _kind(self, endpoint: LiveEndpoint, client: HttpClient) -> Kind:
        return await endpoint.find_kind(client, self._context.mask, self._context.timing.clock.now())

    async def _send(
        self, client: HttpClient, target: Target, body: bytes, key: str | None, limits: AnswerLimits
    ) -> ModelReply:
        on_delta, context = self._request.on_delta, self._context
        delta_filter = DeltaFilter(key, on_delta) if on_delta is not None and is_secret(key) else None
        emit = on_delta if delta_filter is None else delta_filter.add
        call = InferenceCall(
            target=target,
            body=body,
            key=key,
            mask=context.mask,
            limits=limits,
            streams=self._request.question.stream,
            on_delta=emit,
            clock=context.timing.clock,
            capture=self._capture,
        )
        reply = await send_call(client, call)
        if delta_filter is not None:
            delta_filter.flush()
        return reply

    def _emit(self, delta: StreamDelta) -> None:
        if self._request.on_delta is not None:
            self._request.on_delta(delta)

    def _failure_summary(self) -> str:
        if not self._context.endpoints:
            return NO_ENDPOINT
        causes = [
            f"{info.name} ({info.url}, model {info.model}): {self._notes.get(info.name, 'not tried, no time left')}"
            for info in (endpoint.info(self._request.model) for endpoint in self._context.endpoints)
        ]
        return f"no model answered; {'; '.join(causes)}. Run agentgym-runner preflight for a hint on each"


OPERATION = "chat"
"""Value of the span attribute ``gen_ai.operation.name``."""
CATEGORY = "inference"


@contextmanager
def request_span(
    tracer: Tracer, spec: EndpointSpec, model: str, question: InferenceQuestion, episode: str
) -> Iterator[SpanHandle]:
    """Open the span of one request to an endpoint; the end of the ``with`` block closes the span.

    The attributes follow https://opentelemetry.io/docs/specs/semconv/gen-ai/; ``agentgym.*`` attributes are our own.
    """
    with tracer.span(f"{OPERATION} {one_line(model)}", CATEGORY, semantic="inference") as span:
        parts = urlsplit(spec.url)
        span.set_attribute("gen_ai.operation.name", OPERATION)
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


def record_target(span: SpanHandle, target: Target) -> None:
    """Add the kind of server to a request's span; it is known only after detection."""
    span.set_attribute("gen_ai.provider.name", target.kind)


def record_times(tracer: Tracer, span: SpanHandle, times: AnswerTimes) -> None:
    """Add the parts of an answer's time to a request's span: as attributes, and as spans in it if all are known."""
    parts = {name: getattr(times, f"{name}_s") for name in ("queue", "prefill", "decode")}
    for name, seconds in parts.items():
        if seconds is not None:
            span.set_attribute(f"agentgym.{name}_s", seconds)
    if times.about:
        span.set_attribute("agentgym.times_are_estimates", True)
    known = [(name, seconds) for name, seconds in parts.items() if seconds is not None]
    if len(known) == len(parts):
        tracer.add_spans(CATEGORY, known, about=times.about)


def record_reply(span: SpanHandle, reply: ModelReply, tokens_per_s: float | None) -> None:
    """Add the reply's model, finish reason, timing and token counts to a request's span."""
    span.set_attribute("gen_ai.response.model", reply.model)
    span.set_attribute("gen_ai.response.finish_reasons", reply.finish_reason)
    if reply.ttft_s is not None:
        span.set_attribute("gen_ai.response.time_to_first_chunk", reply.ttft_s)
    if tokens_per_s is not None:
        span.set_attribute("agentgym.tokens_per_s", tokens_per_s)
    if reply.tokens is not None:
        span.set_attribute("gen_ai.usage.input_tokens", reply.tokens.prompt)
        span.set_attribute("gen_ai.usage.output_tokens", reply.tokens.completion)
        span.set_attribute("gen_ai.usage.cache_read.input_tokens", reply.tokens.cached)
        span.set_attribute("gen_ai.usage.reasoning.output_tokens", reply.tokens.reasoning)
