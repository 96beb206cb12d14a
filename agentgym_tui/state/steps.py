"""Steps of an episode: made of live items, measured, and made smaller."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from msgspec.structs import replace

from agentgym_tui.state.episode_content import PART, Heard, Told
from agentgym_tui.state.limits import MAX_CAUSE, count, finite, optional, size
from agentgym_tui.state.models import Episode, Step
from runner.events.live import HeardTimestep, LiveAction
from runner.types import Tokens

MAX_WARNINGS = 20
_STEP = 1_500


def step_of(item: HeardTimestep) -> Step:
    """What a live item says of a round."""
    return Step(
        index=count(item.index),
        actor=item.actor,
        told=Heard(bytes(item.chats), bytes(item.observation)),
        action=item.action,
        valid=item.valid,
        reward=item.reward,
        done=item.done,
        model_s=item.model_s,
        env_s=item.env_s,
        endpoint=optional(item.endpoint),
        model=optional(item.model),
        ttft_s=item.ttft_s,
        tokens_per_s=item.tokens_per_s,
        tokens=item.tokens,
        cost=item.cost,
        warnings=tuple([warning[:MAX_CAUSE] for warning in item.warnings[:MAX_WARNINGS]]),
        left_out=count(item.left_out),
    )


def step_size(step: Step) -> int:
    """Bytes a step takes, about."""
    calls = sum([PART + len(call.id) + len(call.name) + len(call.arguments) for call in step.action.tool_calls])
    told = step.told.size + len(step.action.text or "") + calls
    return _STEP + told + (size(list(step.warnings)) if step.warnings else 0)


def steps_size(steps: Iterable[Step]) -> int:
    """The same of some."""
    return sum(map(step_size, steps))


def episode_size(episode: Episode) -> int:
    """Bytes that the steps and spans of an episode take, about."""
    return steps_size(episode.steps) + episode.spans.size + size(episode.reset_observation)


def without_messages(step: Step) -> Step:
    """A step of which only numbers, and the beginning of its action, are kept."""
    n_messages = sum(map(len, step.chats)) + len(step.observation)
    action = LiveAction(optional(step.action.text))
    return replace(step, told=Told([], []), action=action, left_out=count(step.left_out + n_messages))


def sum_up(episode: Episode) -> None:
    """Set what follows from the steps of an episode that is not over."""
    episode.reward, episode.tokens, episode.cost = 0.0, Tokens(), None
    add_up(episode, episode.steps)


def add_up(episode: Episode, steps: Sequence[Step]) -> None:
    """The same for some more of its steps."""
    episode.rounds = len(episode.steps)
    episode.reward = finite(sum([step.reward for step in steps], episode.reward))
    episode.tokens = sum([step.tokens for step in steps if step.tokens], episode.tokens)
    if costs := [step.cost for step in steps if step.cost is not None]:
        episode.cost = finite(sum(costs, episode.cost or 0.0))


def n_missing_steps(episode: Episode) -> int:
    """Steps that are not there, of an episode of which some are: gaps, and rounds after the last one."""
    return max(episode.steps[-1].index + 1, episode.rounds) - len(episode.steps) if episode.steps else 0


def aware(time: datetime) -> datetime:
    """A time that can be compared: without a zone it counts as UTC."""
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
