"""Functions on the steps of an episode: build them from live items, measure, shrink, sum and count them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from sys import intern

from msgspec import Raw
from msgspec.structs import replace

from agentgym_tui.state.data_model import Episode, StepState
from agentgym_tui.state.episode_content import FIELD_BYTES, DecodedMessages, RawMessages, Spans
from agentgym_tui.state.normalize import MAX_CAUSE_CHARS, clamp_count, clamp_finite, clip_name, clip_optional, json_size
from runner.events.live import LazyTimestep, LiveAction
from runner.types import Phases, Tokens, join_shapes
from runner.types.cells import MAX_CELLS_BYTES

MAX_WARNINGS = 20
_STEP_BYTES = 900
_PHASES_BYTES = 250
MAX_PHASE_S = 1e9
"""Largest seconds of a part of a step that are shown."""
_NONE = b"null"
_NO_MESSAGES = DecodedMessages([], [])


def step_from_item(item: LazyTimestep) -> StepState:
    """Return the step that a live item describes."""
    return StepState(
        index=clamp_count(item.index),
        actor=item.actor,
        content=RawMessages(bytes(item.chats), bytes(item.observation)),
        action=item.action,
        valid=item.valid,
        refused=item.refused is True,
        reward=item.reward,
        done=item.done,
        model_s=item.model_s,
        env_s=item.env_s,
        endpoint=_shared(item.endpoint),
        model=_shared(item.model),
        ttft_s=item.ttft_s,
        tokens_per_s=item.tokens_per_s,
        tokens=item.tokens,
        cost=item.cost,
        warnings=tuple([warning[:MAX_CAUSE_CHARS] for warning in item.warnings[:MAX_WARNINGS]]),
        shape=join_shapes([item.shape]),
        left_out=clamp_count(item.left_out),
        phases=None if item.phases is None else clamp_phases(item.phases),
        world=world_from_item(item.world),
    )


def clamp_phases(phases: Phases) -> Phases:
    """Return the split of a step with numbers that can be added and shown, whatever they were."""
    known = {name: value for name in ("queue", "prefill", "decode") if (value := getattr(phases, name)) is not None}
    known |= {"model": phases.model, "env": phases.env, "own": phases.own}
    return replace(phases, **{name: min(max(value, 0.0), MAX_PHASE_S) for name, value in known.items()})


def world_from_item(world: Raw) -> bytes:
    """Return the picture of a live item; empty if there is none or it is too large."""
    packed = bytes(world)
    return packed if packed != _NONE and len(packed) <= MAX_CELLS_BYTES else b""


def _shared(name: str | None) -> str | None:
    """Return a name as one object for all steps that have it, clipped."""
    return None if name is None else intern(clip_name(name))


def step_size(step: StepState) -> int:
    """Return the approximate memory of a step in bytes."""
    calls = sum([FIELD_BYTES + len(call.id) + len(call.name) + len(call.arguments) for call in step.action.tool_calls])
    n_chars = step.content.size + len(step.action.text or "") + calls + len(step.world)
    n_chars += _PHASES_BYTES if step.phases is not None else 0
    return _STEP_BYTES + n_chars + (json_size(list(step.warnings)) if step.warnings else 0)


def steps_size(steps: Iterable[StepState]) -> int:
    """Return the approximate memory of steps in bytes."""
    return sum(map(step_size, steps))


def episode_size(episode: Episode) -> int:
    """Return the approximate memory of the steps, spans and reset observation of an episode in bytes."""
    return steps_size(episode.steps) + _other_size(episode)


def drop_spans(episode: Episode) -> int:
    """Drop the spans and the reset of an episode; return the approximate memory that is free, in bytes."""
    n_bytes, episode.spans, episode.reset_observation = _other_size(episode), Spans(), []
    episode.reset_world = b""
    return n_bytes


def _other_size(episode: Episode) -> int:
    reset_bytes = json_size(episode.reset_observation) if episode.reset_observation else 0
    return episode.spans.size + reset_bytes + len(episode.reset_world)


def strip_messages(step: StepState) -> StepState:
    """Return a copy of a step with its numbers and the start of its action text, without messages and picture."""
    action = LiveAction(clip_optional(step.action.text))
    left_out = clamp_count(step.left_out + step.content.n_messages)
    return replace(step, content=_NO_MESSAGES, action=action, left_out=left_out, world=b"")


def recompute_totals(episode: Episode) -> None:
    """Recompute the rounds, reward, tokens and cost of a running episode from its steps."""
    episode.reward, episode.tokens, episode.cost = 0.0, Tokens(), None
    add_totals(episode, episode.steps)


def add_totals(episode: Episode, steps: Sequence[StepState]) -> None:
    """Add new steps, already in the episode, to the reward, tokens and cost of a running episode; update its rounds."""
    episode.rounds = len(episode.steps)
    episode.reward = clamp_finite(sum([step.reward for step in steps], episode.reward or 0.0))
    episode.tokens = sum([step.tokens for step in steps if step.tokens], episode.tokens)
    if costs := [step.cost for step in steps if step.cost is not None]:
        episode.cost = clamp_finite(sum(costs, episode.cost or 0.0))


def count_missing_steps(episode: Episode) -> int:
    """Return the number of missing steps: gaps between step indices, and rounds without a step after the last step."""
    return max(episode.steps[-1].index + 1, episode.rounds) - len(episode.steps) if episode.steps else 0
