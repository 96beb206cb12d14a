"""Texts of ``docs/data/events.md`` that are not in the message schemas, and the types of what operations return."""

from __future__ import annotations

from typing import Any, Final

from runner.client.follow import FollowItem, Shown
from runner.client.views import EpisodeList, Fleet, HealthView, Order, ServerView
from runner.events import subjects
from runner.events.control import (
    BatchState,
    EpisodeChunk,
    EpisodeEntry,
    LogLines,
    NoArgs,
    NodeHealth,
    NodeList,
    Op,
    RunResults,
    SentHistory,
    ServerInfo,
)
from runner.results.alignment import AlignedEpisodes
from runner.types.notes import Note

IDS = {
    subjects.EPISODE_COMPLETED: "`episode:<episode_id>`",
    subjects.BATCH_COMPLETED: "`batch:<batch_id>`",
    subjects.BATTERY_COMPLETED: "`battery:<battery_id>`",
    subjects.FIELD_STATUS: "`status:<boot>:<n>`, n counting from 0",
}
HEADERS = {
    "ce-specversion": "always `1.0`",
    "ce-type": "the canonical subject, even when the profile gives the subject another name",
    "ce-id": "stable across repeated sends of an event; its format is given for each durable event below",
    "ce-source": "name of the node",
    "ce-time": "when the event happened, RFC 3339, by the node's clock",
    "content-type": "always `application/json`",
    "Nats-Msg-Id": "the same as `ce-id`, for the broker's deduplication",
}
MEANINGS = {  # fields of types that are defined outside the message schemas
    "LiveAction.text": "text of the agent; null when it only called tools",
    "LiveAction.tool_calls": "tool calls of the agent, or those that the environment parsed from the text",
    "ToolCall.id": "id of the call",
    "ToolCall.name": "name of the tool",
    "ToolCall.arguments": "JSON object as a string",
    "Tokens.prompt": "prompt tokens",
    "Tokens.completion": "completion tokens",
    "Tokens.reasoning": "reasoning tokens, included in `completion`",
    "Tokens.cached": "cached tokens, included in `prompt`",
    "Span.id": "id, unique within the episode",
    "Span.parent": "id of the enclosing span",
    "Span.name": "name of the operation",
    "Span.category": "category of the operation",
    "Span.track": "worker that ran the episode",
    "Span.start_ns": "start in nanoseconds of a monotonic clock",
    "Span.end_ns": "end in nanoseconds of the same clock",
    "Span.attributes": "strings, numbers, booleans and nulls by name",
    "WorkerInfo.host": "name of its machine",
    "WorkerInfo.id": "id of the worker",
    "WorkerInfo.kind": "`local`: the process of the batch; `process`: a process of its machine; `ray`: an actor on Ray",
    "WorkerCounts.n": "workers that can play or are playing",
    "WorkerCounts.starting": "workers that cannot play yet",
    "WorkerCounts.lost": "workers lost since the batch started; each was replaced if the batch still needed it",
    "LiveBatch.items": "the items, in order",
    "Timestep.action": "action of the agent or person",
    "SpanClosed.span": "the span",
    "NodeList.batches": "at most 200 batches",
    "RunResults.rows": "baselines come last in each environment",
}

OPERATIONS = {  # those whose arguments do not describe them
    "cancel": "End what runs or waits; exactly one of the arguments is set.",
    "pause": "Pause what runs before its next step, and what waits; exactly one of the arguments is set.",
    "resume": "Continue what is paused, or queue again what was interrupted; exactly one of the arguments is set.",
    "step": "Play one step, then pause; exactly one of the arguments is set.",
    "episode": "Read a part of an episode file.",
    "health": "What the node is, and how what it uses is doing.",
    "list": "Its batches, and what a `start` may name.",
    "server_start": "Start the server of an environment by its `server_cmd`.",
    "server_stop": "Stop a server that the node has started.",
    "send_history": "Send the external broker what ended before the node first used it.",
    "shutdown": "Stop the node after the running steps.",
}

INTRO = """# Messages on the bus

<!-- written by `python -m scripts.build_event_docs` -->

Messages are JSON in UTF-8. Times named `at` or `…_at` are RFC 3339 with a time zone, those named `…_s` are seconds.
Ignore unknown fields, as fields may be added at any time; any other change makes a new version of the subject.
[`examples/watch_bus.py`](../../examples/watch_bus.py) reads them with plain nats-py, and [`schemas/`](../schemas) has a
JSON Schema for each subject. The receivers of this project decode at most {max_bytes} bytes and {max_depth} levels of
nesting, and reject NaN and infinity, and duplicate fields in durable events. An undecodable message is kept unchanged,
with the reason.

## Durable events

They are [CloudEvents 1.0](https://github.com/cloudevents/spec) in binary content mode: the payload is the event's data,
and the attributes are headers.

{headers}

An event is sent until its stream has acknowledged it, whatever dies meanwhile, so it may be sent twice with the same
id. The stream defines the order of events, because the clocks of machines differ. A profile may give the subjects
[other names](../run/profiles.md#nats).

Any field runner may publish these events. Every producer must send the fields that are not optional, and may omit the
headers; the events of this project have all fields. What is omitted is shown as unknown and counts in no rate: the
success of an episode, for example, does not follow from its reward. In an episode, `score` may replace `reward`,
`duration_sec` may replace `duration_s`, and `episode_id` may be missing: the receiver then makes an id of stream and
sequence, so that the event is one episode however often it is read, or of payload and time of receipt where no stream
keeps it. An integer may be written as `3.0`, and a boolean as 0 or 1.
"""
LIVE = """## Live items

Live items are sent without acknowledgement and without headers, several in one message, on
`agentgym.live.<channel>.v1.<node>`. A message has `node`, `boot` (the id of the process, new at each start), `dropped`
(the items of this boot that were never sent, in total) and `items`, in order. Items may be missing: then `seq` has a
gap. They are not ordered relative to durable events, so sort them by `episode_id` and `seq`. In this table and the
next, `?` marks fields that may be missing.
"""
PARTS = "Parts of these items:\n"
CONTROL = """## Control

Send a request to `agentgym.control.<node>` with a reply subject; the reply repeats its `id`. `agentgym-runner
nats-info` prints where the node's broker is and with which credential.

```json
{"id": "1", "op": "start", "args": {"batch_id": "01KBA3Z6Q4W8T5R2N7M9V1X0CD", "envs": ["Maze"], "agent": "oracle"}}
```

A request can only name environments, agents and models of the node's profile. It has at most 64 KiB, and its `id` at
most 200 printable characters; an unknown argument, or a key twice in one object, is rejected. The reply subject must be
an inbox: `_INBOX.<name>`, or `_INBOX_<user>.<name>` for a client with a private inbox prefix
(`CustomInboxPrefix("_INBOX_<user>")`), of at most 255 visible ASCII characters without wildcards, also through a
service import of another account. A request with any other reply subject is ignored and logged: otherwise a request
could make the node publish on any subject. NATS does not reveal the connection of a message, so restrict `_INBOX.>` by
permissions where users must not write to each other's inboxes.

Requests are answered one at a time, and the senders, recognized by the beginning of their inboxes, in turn. At most 100
requests of one sender wait, and 300 in total; others are rejected with `busy`. Of invalid and `busy` requests, a sender
gets 50 replies at once and 10 per second after that, all senders together ten times as many; the rest is dropped and
counted in the log. [A flood from many inboxes](../design/broker.md) can still crowd out a request, so send `start`,
`episode`, `health` or `list` without a reply again, as the console does; nothing happens twice.
"""
REPLY = """### Replies

A reply has the `id`, `ok`, and `result` or `error`: its `code` for programs, a `message` for people, which may change,
and, where there is one, a `hint` of what to do next. Their texts have at most 200 characters, and control characters
quoted from the request are escaped. Schemas are those of the [request](../schemas/agentgym.control.request.json) and
the [reply](../schemas/agentgym.control.reply.json).
"""

STREAMS = """
These are the defaults of [`nats.streams`](../run/profiles.md#nats); a change takes effect at the next start of the
node, and stored messages are kept.

The node creates nothing on an external broker: events go to the stream that keeps their subject. Without a stream, or
without the permission to look it up, an event counts as delivered when the server has processed it, and only current
subscribers get it. While an existing JetStream does not answer, events stay in the outbox.
"""
RESULTS: Final[dict[Op, Any]] = {
    "start": list[BatchState],
    "cancel": NoArgs,
    "pause": NoArgs,
    "resume": NoArgs,
    "step": NoArgs,
    "move": NoArgs,
    "set": list[BatchState],
    "extend": list[BatchState],
    "replay": list[BatchState],
    "episode": EpisodeChunk,
    "annotate": list[Note],
    "health": NodeHealth,
    "list": NodeList,
    "results": RunResults,
    "episodes": list[EpisodeEntry],
    "logs": LogLines,
    "server_start": ServerInfo,
    "server_stop": ServerInfo,
    "send_history": SentHistory,
    "shutdown": NoArgs,
}
"""Type of ``ControlReply.result`` for each operation."""
CTL_RESULTS: Final[dict[str, Any]] = {
    "list": NodeList,
    "list --all": Fleet,
    "show": Shown,
    "results": RunResults,
    "episodes": EpisodeList,
    "compare": AlignedEpisodes,
    "logs": LogLines,
    "follow": FollowItem,
    "health": HealthView,
    "env": ServerView,
    **dict.fromkeys(("submit", "again", "set", "extend", "pause", "resume", "step", "cancel", "move", "stop"), Order),
}
"""Type of ``Document.result`` by command; ``follow`` prints a document for each item."""
