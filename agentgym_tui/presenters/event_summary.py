"""Summarize each bus message in one line. A message is decoded only when it is displayed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from agentgym_tui.presenters.answering_endpoint import FALLBACK_MARK
from agentgym_tui.presenters.cells import Cell, Tone
from agentgym_tui.presenters.number_format import format_count, format_percent, format_reward, pluralize
from agentgym_tui.safe_text import masked_line
from agentgym_tui.state.event_log import LIVE_SUBJECT, EventMessage, node_of
from runner.events.codec import DurableRow, LiveRow, RawRow, check_limits, decode, decode_item
from runner.events.durable import BatchCompleted, BatteryCompleted, DurableEvent, EpisodeCompleted, FieldStatus
from runner.events.subjects import DurableNames
from runner.types import join_models

MAX_SHOWN: Final = 200
"""Maximum number of characters shown of a payload that is not an AgentGym event."""

MAX_KINDS: Final = 6
EVENT_NAMES: Final = DurableNames()

_TYPES: Final = frozenset(EVENT_NAMES.all())


class MessageSummary(NamedTuple):
    """A one-line summary of a message.

    Attributes:
        node: the sender (untrusted text).
        cell: the summary.
        episode_id: id of the episode to which the message belongs (untrusted text); "" if there is none.
    """

    node: str
    cell: Cell
    episode_id: str = ""


class _Item(msgspec.Struct):
    kind: str
    episode_id: str = ""
    env: str = ""
    outcome: str = ""


class _Batch(msgspec.Struct):
    node: str
    items: list[_Item]
    dropped: int = 0


class _EpisodeReference(msgspec.Struct):
    episode_id: str = ""


def summarize(message: EventMessage) -> MessageSummary:
    """Summarize a message. A malformed message raises no error; it is described."""
    return _summarize_content(message)


def _summarize_content(message: EventMessage) -> MessageSummary:
    node = node_of(message)
    if LIVE_SUBJECT.fullmatch(message.subject):
        return _summarize_live(message, node)
    if is_agentgym_message(message):
        return _summarize_durable(message, node)
    return MessageSummary(node, Cell(_payload_preview(message), "plain"), _named_episode(message))


def is_agentgym_message(message: EventMessage) -> bool:
    """Return whether a message is an AgentGym event according to its subject or CloudEvents type.

    An AgentGym event that does not decode is malformed; any other message may have any payload.
    """
    if message.subject in _TYPES or LIVE_SUBJECT.fullmatch(message.subject):
        return True
    return any(key.lower() == "ce-type" and value.strip() in _TYPES for key, value in message.headers.items())


def decode_error(message: EventMessage) -> str:
    """Return why an AgentGym event, or an item of a live batch, cannot be decoded (untrusted text).

    The reason is empty if the message can be decoded, or if it is not an AgentGym event.
    """
    if not is_agentgym_message(message):
        return ""
    match decode(message.subject, message.headers, message.payload, EVENT_NAMES):
        case RawRow() as row:
            return row.reason
        case LiveRow() as row:
            raw = [*row.raw, *(decoded for item in row.batch.items if isinstance(decoded := decode_item(item), RawRow))]
            return f"{len(raw)} of its items: {raw[0].reason}" if raw else ""
    return ""


def _summarize_live(message: EventMessage, node: str) -> MessageSummary:
    try:
        check_limits(message.payload)
        batch = _BATCH.decode(message.payload)
    except (ValueError, RecursionError):
        return MessageSummary(node, _malformed_cell(message))
    episode_ids = (item.episode_id for item in batch.items if item.episode_id)
    return MessageSummary(batch.node, Cell(_items_text(batch)), next(episode_ids, ""))


def _items_text(batch: _Batch) -> str:
    """Summarize the items of a live batch by kind, such as ``3 timestep, 120 token · Wordle``."""
    kinds = Counter(item.kind for item in batch.items)
    shown = [kind if n == 1 else f"{n:,} {kind}" for kind, n in kinds.most_common()]
    parts = [", ".join(shown[:MAX_KINDS]), *(["…"] if len(shown) > MAX_KINDS else [])]
    episode = next((item for item in batch.items if item.env or item.outcome), None)
    parts += [f"{episode.env} {episode.outcome}".strip()] if episode else []
    parts += [f"{format_count(batch.dropped)} dropped earlier"] if batch.dropped else []
    return " · ".join(filter(None, parts)) or "nothing"


def _summarize_durable(message: EventMessage, node: str) -> MessageSummary:
    match decode(message.subject, message.headers, message.payload, EVENT_NAMES):
        case DurableRow(event=event):
            episode_id = event.episode_id if isinstance(event, EpisodeCompleted) else ""
            cell = Cell(" · ".join(filter(None, _event_parts(event))), _event_tone(event))
            return MessageSummary(event.node or node, cell, episode_id)
    return MessageSummary(node, _malformed_cell(message), _named_episode(message))


def _event_parts(event: DurableEvent) -> Iterator[str]:
    match event:
        case EpisodeCompleted():
            success = {True: "success", False: "failure", None: ""}[event.success]
            yield f"{event.env} {event.outcome or success}".strip()
            yield f"reward {format_reward(event.reward)}"
            yield pluralize(event.rounds, "round")
            yield " ".join(filter(None, (event.agent, join_models(event.model, event.models))))
            if event.fallback:
                yield f"{FALLBACK_MARK} answered by {masked_line(event.fallback, 60)}"
        case BatchCompleted():
            yield f"{event.env} {event.status}"
            yield pluralize(event.n_episodes, "episode")
            rate = event.success_rate
            scored = "" if rate is None or event.n_rated is None else f" of {format_count(event.n_rated)}"
            yield f"success {format_percent(None if rate is None else 100 * rate)}{scored}"
            if event.n_errors:
                yield pluralize(event.n_errors, "error")
            yield f"mean reward {format_reward(event.mean_reward)}"
            if event.models and event.models != [event.model]:
                yield join_models(event.model, event.models) or ""
        case BatteryCompleted():
            yield pluralize(len(event.batches), "batch", "batches")
            yield ", ".join(event.environments)
            yield pluralize(event.n_episodes, "episode")
            yield f"mean reward {format_reward(event.mean_reward)}"
            yield ", ".join(event.models)
        case FieldStatus():
            yield f"{event.role or ''} {event.status}".strip()
            yield event.config


def _event_tone(event: DurableEvent) -> Tone:
    if isinstance(event, EpisodeCompleted):
        return "good" if event.success else "plain"
    return "plain"


def _malformed_cell(message: EventMessage) -> Cell:
    reason = decode_error(message) or "unexpected fields"
    return Cell(f"✗ malformed: {reason}", "bad")


def _payload_preview(message: EventMessage) -> str:
    """Return the start of the payload of a message that is not an AgentGym event."""
    head = message.payload[: 4 * MAX_SHOWN]
    try:
        text = head.decode()
    except UnicodeDecodeError as exc:
        if len(head) == message.n_bytes or exc.start < len(head) - 3:
            return f"{pluralize(message.n_bytes, 'byte')}, not text"
        text = head[: exc.start].decode()
    return text[:MAX_SHOWN] if text else "empty"


def _named_episode(message: EventMessage) -> str:
    try:
        check_limits(message.payload)
        return _EPISODE_REFERENCE.decode(message.payload).episode_id
    except (ValueError, RecursionError):
        return ""


_BATCH = msgspec.json.Decoder(_Batch)
_EPISODE_REFERENCE = msgspec.json.Decoder(_EpisodeReference)
