"""What ``docs/events.md`` says that is not in the schema of the bus."""

from __future__ import annotations

from runner.events import subjects

IDS = {
    subjects.EPISODE_COMPLETED: "`episode:<episode_id>`",
    subjects.BATCH_COMPLETED: "`batch:<batch_id>`",
    subjects.FIELD_STATUS: "`status:<boot>:<n>`, n counting from 0",
}
HEADERS = {
    "ce-specversion": "always `1.0`",
    "ce-type": "the canonical subject, also where a profile gives the subject another name",
    "ce-id": "the same whenever the same event is sent again; each durable event below says how it is made",
    "ce-source": "the node",
    "ce-time": "when it happened, RFC 3339, by the node's clock",
    "content-type": "always `application/json`",
    "Nats-Msg-Id": "the same as `ce-id`, for the broker's own use",
}
MEANINGS = {  # of what is defined outside the schema of the bus
    "LiveAction.text": "what the agent said, null where it only called tools",
    "LiveAction.tool_calls": "the calls it made, or those the environment's parser made of the text",
    "ToolCall.id": "the call's id",
    "ToolCall.name": "the tool",
    "ToolCall.arguments": "a JSON object as text",
    "Tokens.prompt": "tokens that were read",
    "Tokens.completion": "tokens that were written",
    "Tokens.reasoning": "those of `completion` that were reasoning",
    "Tokens.cached": "those of `prompt` that came from a cache",
    "Span.id": "unique in its episode",
    "Span.parent": "the span it lies in",
    "Span.name": "what was done",
    "Span.category": "kind of work",
    "Span.track": "the slot that played",
    "Span.start_ns": "nanoseconds of one monotonic clock",
    "Span.end_ns": "nanoseconds of the same clock",
    "Span.attributes": "texts, numbers, booleans and nulls by name",
    "LiveBatch.items": "the items, in order",
    "Timestep.action": "what the agent did",
    "SpanClosed.span": "the span",
    "NodeList.batches": "at most 200",
}

INTRO = """# What is said on the bus

<!-- written by `python -m scripts.build_event_docs` -->

Messages are JSON in UTF-8. Times named `at` or `…_at` are RFC 3339 with a time zone, those named `…_s` are seconds.
Fields may be added at any time, so ignore those you do not know; any other change makes a new version of the subject.
Each subject has a JSON Schema in [`schemas/`](schemas).

Receivers here decode at most {max_bytes} bytes and {max_depth} levels of nesting. They refuse NaN and infinity, and in
durable events fields that come twice. What does not decode is kept as it came, with the reason.

## Headers

Durable events are CloudEvents 1.0 in binary mode: the payload is the event's data alone, all else is in headers.

{headers}

Nothing is lost when a process dies: an event is sent until its stream has acknowledged it, so it may be sent twice,
with the same id. Order is the order of the stream; clocks of machines differ.

## Durable events

A profile may give these subjects other names (`nats.episode_completed`, `nats.eval_batch`, `nats.field_status`).
"""
LIVE = """## Live items

Sent without acknowledgement and without headers, several in a message, on `agentgym.live.<channel>.v1.<node>`. They may
be missing: `seq` has a gap then, and `dropped` says how many were never sent. They are not ordered against durable
events, so put them together by `episode_id` and `seq`.
"""
CONTROL = """## Control

A request goes to `agentgym.control.<node>` with a reply subject; the reply repeats its `id`. A request names only
environments, agents and models of the node's profile. It has at most 64 KiB, and its `id` at most 200 visible
characters. Texts in errors have at most 200 characters; what they repeat of the request is made visible.
"""

STREAMS = """
These are the values without `nats.streams` in the profile, which sets other ones. They hold from the next start of the
node on; what the streams keep stays.

On any other broker nothing is created: events go into the stream that keeps their subject. Where none does, or
where the broker does not let us ask, an event counts as delivered once the server has passed it on to those who listen
at that moment. Events wait for a JetStream that is there and does not answer.
"""
