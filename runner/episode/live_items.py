"""What a watcher sees of an episode: its events as live items, with texts and messages as JSON of bounded size.

Items with large texts are encoded where the episode is played, and only while someone is watching.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

import msgspec

from runner.events.live import (
    MAX_ITEM,
    MAX_TEXT,
    EpisodeEnded,
    EpisodeStarted,
    LiveAction,
    SpanClosed,
    Timestep,
    TokenText,
)
from runner.store.episode_file import EpisodeRecord, shared_fields
from runner.types import (
    Action,
    EpisodeHeader,
    Span,
    TimestepPlayed,
    TokensStreamed,
    ToolCall,
    WorkerInfo,
    WorkerState,
)
from runner.util.safe_values import escape_surrogates, finite, safe_str, truncate_text

MAX_NESTING = 32
"""Maximum nesting levels kept of a message; a whole payload may have 64."""
MAX_VALUES = 20_000
FULL_LENGTH = "full_length"

_ENCODER = msgspec.json.Encoder()


class SizeBudget:
    """Remaining bytes for the messages of a timestep; ``left_out`` messages did not fit."""

    def __init__(self, size: int) -> None:
        self._left = size
        self.left_out = 0

    def reserve(self, encoded: msgspec.Raw) -> bool:
        """Return False when the bytes exceed the budget."""
        if len(encoded) > self._left:
            return False
        self._left -= len(encoded)
        return True

    def newest(self, messages: Iterable[object]) -> list[Any]:
        """Return the latest messages that fit in the budget, as JSON and in their original order."""
        fitting: list[msgspec.Raw] = []
        remaining = list(messages)
        while remaining:
            message = message_json(remaining[-1])
            if not self.reserve(message):
                break
            fitting.append(message)
            remaining.pop()
        self.left_out += len(remaining)
        return fitting[::-1]


def message_json(message: object) -> msgspec.Raw:
    """Return a message as JSON with truncated texts; wraps a value that is not an object in a message."""
    plain = _Copy().copy(message, MAX_NESTING)
    return as_json(plain if isinstance(plain, dict) else {"role": "unknown", "content": plain})


def as_json(value: object) -> msgspec.Raw:
    return msgspec.Raw(_ENCODER.encode(value))


class _Copy:
    """Copies untrusted data as JSON values with truncated texts; NaN and infinity become null, other objects text."""

    def __init__(self) -> None:
        self._left = MAX_VALUES  # the depth limit alone does not stop a list that contains itself twice

    def copy(self, value: object, depth: int) -> Any:  # noqa: ANN401 - any JSON value
        self._left -= 1
        if depth == 0 or self._left < 0:
            return "…"
        match value:
            case None | bool():
                return value
            case str():
                return truncate(value)
            case float():
                return float(value) if math.isfinite(value) else None
            case int():
                return int(value) if -(2**63) <= value < 2**63 else hex(value)
            case dict():
                return self._object(value, depth)
            case list() | tuple():
                return [self.copy(item, depth - 1) for item in islice(value, MAX_VALUES)]
        return truncate(safe_str(value, f"<{type(value).__name__}>"))

    def _object(self, value: dict[Any, object], depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        lengths: dict[str, int] = {}
        for key, item in islice(value.items(), MAX_VALUES):
            name = truncate(key if isinstance(key, str) else safe_str(key, "?"))
            result[name] = self.copy(item, depth - 1)
            if isinstance(item, str) and is_too_long(item):
                lengths[name] = len(item)
        return {**result, FULL_LENGTH: lengths} if lengths else result


def truncate(text: str) -> str:
    """Truncate a text to ``MAX_TEXT`` bytes of UTF-8 and make lone surrogates visible."""
    if len(text) <= MAX_TEXT and text.isascii():  # the common case
        return text
    return truncate_text(escape_surrogates(text[: MAX_TEXT + 1]), MAX_TEXT)


def is_too_long(text: str) -> bool:
    if text.isascii():
        return len(text) > MAX_TEXT
    return len(text) > MAX_TEXT or len(escape_surrogates(text).encode()) > MAX_TEXT


def span_items(at: datetime, episode_id: str, first_seq: int, spans: Sequence[Span]) -> tuple[bytes, ...]:
    """Return one item for each closed span, numbered consecutively."""
    return tuple(
        _ENCODER.encode(SpanClosed(at=at, episode_id=episode_id, seq=first_seq + n, span=span))
        for n, span in enumerate(spans)
    )


def token_item(event: TokensStreamed) -> bytes:
    delta = event.delta
    item = TokenText(
        at=event.at,
        episode_id=event.episode_id,
        seq=event.seq,
        step=event.step,
        text=truncate(delta.text),
        part=delta.part,
        call=delta.call,
        tool=truncate(delta.tool),
        n=delta.n,
        ttft_s=delta.ttft_s,
        endpoint=_truncate_or_none(delta.endpoint),
        model=_truncate_or_none(delta.model),
        failure=_truncate_or_none(delta.failure),
        restart=delta.restart,
    )
    return _ENCODER.encode(item)


def started_item(at: datetime, seq: int, header: EpisodeHeader) -> EpisodeStarted:
    known = shared_fields(header, EpisodeStarted)
    if (worker := header.worker) is not None:
        known["worker"] = WorkerInfo(host=truncate(worker.host), id=truncate(worker.id), kind=worker.kind)
    return EpisodeStarted(at=at, seq=seq, **known)


def ended_item(seq: int, record: EpisodeRecord) -> EpisodeEnded:
    error = record.error
    return EpisodeEnded(
        at=record.ended_at,
        episode_id=record.episode_id,
        seq=seq,
        outcome=record.outcome,
        success=record.success,
        reward=finite(record.reward or 0.0),
        rounds=record.rounds,
        duration_s=record.duration_s,
        error=None if error is None else {"type": truncate(error.type), "message": truncate(error.message)},
        unscored=record.unscored,
    )


def worker_item(state: WorkerState) -> WorkerState:
    return msgspec.structs.replace(state, id=truncate(state.id), host=truncate(state.host))


def timestep_item(item: TimestepPlayed) -> msgspec.Raw:
    step, action, budget = item.step, item.step.action, SizeBudget(MAX_ITEM)
    live = Timestep(
        at=item.at,
        episode_id=item.episode_id,
        seq=item.seq,
        index=step.index,
        actor=step.actor,
        action=_action(action, budget),
        valid=step.valid,
        refused=action.refused,
        observation=budget.newest(step.observation),
        reward=finite(step.reward),
        done=step.done,
        model_s=step.model_s,
        env_s=step.env_s,
        endpoint=_truncate_or_none(step.endpoint),
        model=_truncate_or_none(step.model),
        ttft_s=step.ttft_s,
        tokens_per_s=step.tokens_per_s,
        tokens=step.tokens,
        cost=step.cost,
        warnings=[truncate(warning) for warning in step.warnings],
        shape=step.shape,
        phases=step.phases,
        reset_observation=None if item.reset_observation is None else budget.newest(item.reset_observation),
        world=step.world,
        reset_world=item.reset_world,
        chats=[budget.newest(chat) for chat in reversed(step.chats)][::-1],
    )
    live.left_out = budget.left_out
    return as_json(live)


def _action(action: Action, budget: SizeBudget) -> LiveAction:
    lengths: dict[str, int] = {}

    def bounded(name: str, text: str) -> str:
        if is_too_long(text):
            lengths[name] = len(text)
        return truncate(text)

    text = None if action.text is None else bounded("text", action.text)
    budget.reserve(as_json(text))
    calls = [
        ToolCall(truncate(call.id), truncate(call.name), bounded(f"tool_calls/{number}/arguments", call.arguments))
        for number, call in enumerate(action.tool_calls)
    ]
    return LiveAction(text, [call for call in calls if budget.reserve(as_json(call))], lengths)


def _truncate_or_none(text: str | None) -> str | None:
    return None if text is None else truncate(text)
