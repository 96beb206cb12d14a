"""What an episode or batch tells its observers while it runs: a closed union, told apart by ``kind``."""

from __future__ import annotations

from datetime import datetime
from typing import TypeAlias

import msgspec

from runner.types.data import Chat, Mode, Span, StreamDelta, TimeStep, Tokens, Trajectory


class EpisodeHeader(msgspec.Struct, kw_only=True):
    """All that is known of an episode before its reset; the journal's first line and the file's first fields."""

    schema: int = 1
    episode_id: str
    batch_id: str
    battery_id: str | None = None
    node: str = "local"
    boot: str = ""
    profile: str = ""
    env: str
    transport: str = "embedded"
    data_label: str = ""
    mode: Mode = "strict"
    task_index: int = 0
    seed: int | None = None
    attempt: int = 0
    agent: str = ""
    model: str | None = None
    started_at: datetime
    parent: dict[str, str | int] | None = None
    versions: dict[str, str] = {}
    n_planned: int | None = None


class _EpisodeItem(msgspec.Struct, kw_only=True, tag_field="kind"):
    at: datetime
    episode_id: str
    seq: int


class EpisodeStarted(_EpisodeItem, kw_only=True, tag="episode.started"):
    """An episode is about to reset its environment."""

    header: EpisodeHeader


class EpisodePaused(_EpisodeItem, kw_only=True, tag="episode.paused"):
    """An episode waits at a step boundary."""


class EpisodeResumed(_EpisodeItem, kw_only=True, tag="episode.resumed"):
    """A paused episode goes on."""


class TimestepPlayed(_EpisodeItem, kw_only=True, tag="timestep"):
    """A round is over; the first one also brings what the reset gave."""

    step: TimeStep
    reset_observation: Chat | None = None


class TokensStreamed(_EpisodeItem, kw_only=True, tag="token"):
    """There is something to tell of the answer for round ``step``, which is not over yet."""

    step: int
    piece: StreamDelta


class SpansClosed(_EpisodeItem, kw_only=True, tag="span"):
    """Spans of the trace that are over; each counts as an item, ``seq`` is the first one's number."""

    spans: list[Span]


class EpisodeEnded(_EpisodeItem, kw_only=True, tag="episode.ended"):
    """An episode is over, cleaned up, and will not change any more."""

    trajectory: Trajectory


class BatchProgress(msgspec.Struct, kw_only=True, tag_field="kind", tag="batch.progress"):
    """How far a batch is.

    Attributes:
        eta_s: seconds to go, None until one episode has ended.
        tokens: of all episodes that ended; ``cost`` is their sum, None where nothing is priced.
    """

    at: datetime
    batch_id: str
    seq: int
    n_done: int
    n_planned: int
    n_success: int
    mean_reward: float | None
    eta_s: float | None
    tokens: Tokens | None = None
    cost: float | None = None


EpisodeEvent: TypeAlias = (
    EpisodeStarted | EpisodePaused | EpisodeResumed | TokensStreamed | TimestepPlayed | SpansClosed | EpisodeEnded
)
Item: TypeAlias = EpisodeEvent | BatchProgress


def detach(item: Item) -> Item:
    """A copy whose lists and messages are its own: whoever gets it can spoil neither the record nor the episode."""
    match item:
        case EpisodeStarted():
            header = msgspec.structs.replace(item.header, versions=item.header.versions.copy())
            return msgspec.structs.replace(item, header=header)
        case TimestepPlayed():
            reset = None if item.reset_observation is None else _detached_chat(item.reset_observation)
            return msgspec.structs.replace(item, step=_detached_step(item.step), reset_observation=reset)
        case EpisodeEnded():
            played = item.trajectory
            steps, reset = list(map(_detached_step, played.timesteps)), _detached_chat(played.reset_observation)
            return msgspec.structs.replace(
                item, trajectory=msgspec.structs.replace(played, timesteps=steps, reset_observation=reset)
            )
    return item


def _detached_step(step: TimeStep) -> TimeStep:
    return msgspec.structs.replace(
        step,
        chats=[_detached_chat(chat) for chat in step.chats],
        observation=_detached_chat(step.observation),
        available_tool_schemas=step.available_tool_schemas.copy(),
    )


def _detached_chat(chat: Chat) -> Chat:
    # What an agent says it held is not checked to be messages.
    return [message.copy() if isinstance(message, dict) else message for message in chat]
