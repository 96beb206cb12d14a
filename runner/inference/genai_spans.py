"""Trace spans of inferences, with attribute names of OpenTelemetry's GenAI semantic conventions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from runner.inference.chat_format import InferenceQuestion, ModelReply
from runner.inference.endpoints import EndpointSpec
from runner.inference.errors import EndpointFailure
from runner.inference.providers import Target
from runner.tracing import SpanHandle, Tracer
from runner.util.display_text import one_line

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
