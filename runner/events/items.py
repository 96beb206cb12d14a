"""What an episode tells its observers, as live items: without schemas, its texts and its messages bounded."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from itertools import islice
from typing import Any, assert_never

import msgspec

from runner.events.live_items import (
    MAX_ITEM,
    MAX_TEXT,
    BatchProgress,
    EpisodeEnded,
    EpisodePaused,
    EpisodeResumed,
    EpisodeStarted,
    LiveAction,
    LiveItem,
    Timestep,
)
from runner.tracing.values import cut_text, encodable, shown
from runner.types import Action, ErrorInfo, Item, TimestepPlayed, ToolCall
from runner.types import items as played

MAX_NESTING = 32
"""Levels of arrays and objects that a message keeps; a whole payload may have 64."""

MAX_VALUES = 20_000
"""Values that a message keeps."""

FULL_LENGTH = "full_length"


def live_item(item: Item) -> LiveItem:
    """The live item that tells of ``item``."""
    match item:
        case played.EpisodeStarted():
            return _started(item)
        case TimestepPlayed():
            return _timestep(item)
        case played.EpisodePaused():
            return EpisodePaused(at=item.at, episode_id=item.episode_id, seq=item.seq)
        case played.EpisodeResumed():
            return EpisodeResumed(at=item.at, episode_id=item.episode_id, seq=item.seq)
        case played.EpisodeEnded():
            return _ended(item)
        case played.BatchProgress():
            return BatchProgress(**msgspec.structs.asdict(item))
        case _:
            assert_never(item)


def _started(item: played.EpisodeStarted) -> EpisodeStarted:
    shared = EpisodeStarted.__struct_fields__
    known = {name: value for name, value in msgspec.structs.asdict(item.header).items() if name in shared}
    return EpisodeStarted(at=item.at, seq=item.seq, **known)


def _ended(item: played.EpisodeEnded) -> EpisodeEnded:
    trajectory = item.trajectory
    return EpisodeEnded(
        at=item.at,
        episode_id=item.episode_id,
        seq=item.seq,
        outcome=trajectory.outcome,
        success=trajectory.success,
        reward=_finite(trajectory.reward),
        rounds=len(trajectory.timesteps),
        duration_s=trajectory.duration_s,
        error=_error(trajectory.error_info),
    )


def _error(error: ErrorInfo | None) -> dict[str, str] | None:
    if error is None:
        return None
    return {"type": _cut(error.type), "message": _cut(error.message)}


def _timestep(item: TimestepPlayed) -> Timestep:
    step = item.step
    room = _Room(MAX_ITEM)
    action = _action(step.action, room)
    observation = room.newest(step.observation)
    reset_observation = None if item.reset_observation is None else room.newest(item.reset_observation)
    chats = [room.newest(chat) for chat in reversed(step.chats)][::-1]
    return Timestep(
        at=item.at,
        episode_id=item.episode_id,
        seq=item.seq,
        index=step.index,
        actor=step.actor,
        chats=chats,
        action=action,
        valid=step.valid,
        observation=observation,
        reward=_finite(step.reward),
        done=step.done,
        model_s=step.model_s,
        env_s=step.env_s,
        endpoint=_cut_or_none(step.endpoint),
        model=_cut_or_none(step.model),
        ttft_s=step.ttft_s,
        tokens=step.tokens,
        cost=step.cost,
        reset_observation=reset_observation,
        left_out=room.left_out,
    )


def _action(action: Action, room: _Room) -> LiveAction:
    lengths: dict[str, int] = {}

    def bounded(name: str, text: str) -> str:
        if _too_long(text):
            lengths[name] = len(text)
        return _cut(text)

    text = None if action.text is None else bounded("text", action.text)
    room.take(text)
    calls = [
        ToolCall(_cut(call.id), _cut(call.name), bounded(f"tool_calls/{number}/arguments", call.arguments))
        for number, call in enumerate(action.tool_calls)
    ]
    return LiveAction(text, [call for call in calls if room.take(call)], lengths)


class _Room:
    """How much of a timestep's messages still fits."""

    def __init__(self, size: int) -> None:
        self._left = size
        self.left_out = 0

    def take(self, value: object) -> bool:
        """Whether the value fits; if so its room is gone."""
        size = len(msgspec.json.encode(value))
        if size > self._left:
            return False
        self._left -= size
        return True

    def newest(self, messages: Iterable[object]) -> list[dict[str, Any]]:
        """The last messages that fit, in their order."""
        kept: list[dict[str, Any]] = []
        waiting = list(messages)
        while waiting:
            message = _message(waiting[-1])
            if not self.take(message):
                break
            kept.append(message)
            waiting.pop()
        self.left_out += len(waiting)
        return kept[::-1]


def _message(message: object) -> dict[str, Any]:
    if type(message) is dict and all(type(key) is str and _as_is(value) for key, value in message.items()):
        return message
    plain = _Copy().of(message, MAX_NESTING)
    return plain if isinstance(plain, dict) else {"role": "unknown", "content": plain}


def _as_is(value: object) -> bool:
    return value is None or (type(value) is str and len(value) <= MAX_TEXT and value.isascii())


class _Copy:
    """Foreign data as JSON with bounded texts; NaN and infinity are null, what JSON does not know becomes text."""

    def __init__(self) -> None:
        self._left = MAX_VALUES  # a list that holds itself twice would never end by its depth

    def of(self, value: object, depth: int) -> Any:  # noqa: ANN401 - any JSON value
        self._left -= 1
        if depth == 0 or self._left < 0:
            return "…"
        match value:
            case None | bool():
                return value
            case str():
                return _cut(value)
            case float():
                return float(value) if math.isfinite(value) else None
            case int():
                return int(value) if -(2**63) <= value < 2**63 else hex(value)
            case dict():
                return self._object(value, depth)
            case list() | tuple():
                return [self.of(item, depth - 1) for item in islice(value, MAX_VALUES)]
        return _cut(shown(value, f"<{type(value).__name__}>"))

    def _object(self, value: dict[Any, object], depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        lengths: dict[str, int] = {}
        for key, item in islice(value.items(), MAX_VALUES):
            name = _cut(key if isinstance(key, str) else shown(key, "?"))
            result[name] = self.of(item, depth - 1)
            if isinstance(item, str) and _too_long(item):
                lengths[name] = len(item)
        return {**result, FULL_LENGTH: lengths} if lengths else result


def _cut(text: str) -> str:
    """The text, or its beginning where it is long; lone surrogates become visible."""
    if len(text) <= MAX_TEXT and text.isascii():  # nearly all are
        return text
    return cut_text(encodable(text[: MAX_TEXT + 1]), MAX_TEXT)


def _too_long(text: str) -> bool:
    if text.isascii():
        return len(text) > MAX_TEXT
    return len(text) > MAX_TEXT or len(encodable(text).encode()) > MAX_TEXT


def _cut_or_none(text: str | None) -> str | None:
    return None if text is None else _cut(text)


def _finite(value: float) -> float:
    """A sum of rewards may leave the range of numbers."""
    return max(min(value, sys.float_info.max), -sys.float_info.max)
