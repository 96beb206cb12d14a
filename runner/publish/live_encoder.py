"""Encode runner events as live items: without tool schemas, and with texts and messages of bounded size.

Most timesteps are short enough to be encoded unchanged; in the others each message is truncated.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, assert_never

import msgspec

from runner.events.live import (
    MAX_ITEM,
    EpisodeEnded,
    EpisodeStarted,
    LiveAction,
    SpanClosed,
    Timestep,
    TokenText,
)
from runner.publish.truncate import SizeBudget, as_json, is_too_long, short_json, truncate
from runner.store.episode_file import shared_fields
from runner.store.safe_json import finite
from runner.types import (
    Action,
    BatchProgress,
    EpisodePaused,
    EpisodeResumed,
    ErrorInfo,
    EvaluatedTrajectory,
    Item,
    SpansClosed,
    TimestepPlayed,
    TokensStreamed,
    ToolCall,
    WorkerInfo,
    WorkerState,
    episode_events,
    is_unscored,
)

_DICT = frozenset((dict,))


def live_items(item: Item) -> list[msgspec.Raw]:
    """Return the live items of a runner event as JSON: one item, or one for each closed span."""
    match item:
        case TimestepPlayed():
            return [_timestep(item)]
        case SpansClosed():
            return _spans(item)
        case TokensStreamed():
            return [_tokens(item)]
        case episode_events.EpisodeStarted():
            return [as_json(_started(item))]
        case episode_events.EpisodeEnded():
            return [as_json(_ended(item))]
        case EpisodePaused() | EpisodeResumed() | BatchProgress():
            return [as_json(item)]
        case WorkerState():
            return [as_json(msgspec.structs.replace(item, id=truncate(item.id), host=truncate(item.host)))]
        case _:
            assert_never(item)


def _spans(item: SpansClosed) -> list[msgspec.Raw]:
    at, episode_id, first = item.at, item.episode_id, item.seq
    return [
        as_json(SpanClosed(at=at, episode_id=episode_id, seq=first + n, span=span)) for n, span in enumerate(item.spans)
    ]


def _tokens(item: TokensStreamed) -> msgspec.Raw:
    delta = item.delta
    live = TokenText(
        at=item.at,
        episode_id=item.episode_id,
        seq=item.seq,
        step=item.step,
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
    return as_json(live)


def _started(item: episode_events.EpisodeStarted) -> EpisodeStarted:
    known = shared_fields(item.header, EpisodeStarted)
    if (worker := item.header.worker) is not None:
        known["worker"] = WorkerInfo(host=truncate(worker.host), id=truncate(worker.id), kind=worker.kind)
    return EpisodeStarted(at=item.at, seq=item.seq, **known)


def _ended(item: episode_events.EpisodeEnded) -> EpisodeEnded:
    trajectory = item.trajectory
    return EpisodeEnded(
        at=item.at,
        episode_id=item.episode_id,
        seq=item.seq,
        outcome=trajectory.outcome,
        success=trajectory.success,
        reward=finite(trajectory.reward),
        rounds=len(trajectory.timesteps),
        duration_s=trajectory.duration_s,
        error=_error(trajectory.error_info),
        unscored=isinstance(trajectory, EvaluatedTrajectory) and is_unscored(trajectory.evaluation),
    )


def _error(error: ErrorInfo | None) -> dict[str, str] | None:
    if error is None:
        return None
    return {"type": truncate(error.type), "message": truncate(error.message)}


def _timestep(item: TimestepPlayed) -> msgspec.Raw:
    step, action = item.step, item.step.action
    # The chats of an agent are not validated, so they may contain anything.
    chats: list[Any] = step.chats
    observation: list[Any] = step.observation
    reset_observation: list[Any] | None = item.reset_observation
    live = Timestep(
        at=item.at,
        episode_id=item.episode_id,
        seq=item.seq,
        index=step.index,
        actor=step.actor,
        chats=chats,
        action=LiveAction(action.text, action.tool_calls),
        valid=step.valid,
        refused=action.refused,
        observation=observation,
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
        reset_observation=reset_observation,
        world=step.world,
        reset_world=item.reset_world,
    )
    messages = list(chain(*chats, observation, reset_observation or ()))
    if _DICT.issuperset(map(type, messages)):
        texts = chain(chain.from_iterable(messages), chain.from_iterable(map(dict.values, messages)), _texts(action))
        if (short := short_json(texts, live)) is not None:
            return short
    return as_json(_truncated(live))


def _truncated(live: Timestep) -> Timestep:
    budget = SizeBudget(MAX_ITEM)
    live.action = _action(live.action, budget)
    live.observation = budget.newest(live.observation)
    if live.reset_observation is not None:
        live.reset_observation = budget.newest(live.reset_observation)
    live.chats = [budget.newest(chat) for chat in reversed(live.chats)][::-1]
    live.left_out = budget.left_out
    return live


def _action(action: LiveAction, budget: SizeBudget) -> LiveAction:
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


def _texts(action: Action) -> list[object]:
    calls = ((call.id, call.name, call.arguments) for call in action.tool_calls)
    return [action.text, *chain.from_iterable(calls)]


def _truncate_or_none(text: str | None) -> str | None:
    return None if text is None else truncate(text)
