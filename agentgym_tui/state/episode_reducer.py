"""Applies updates to an episode; each item is applied once, in whatever order the items arrive.

``SequenceTracker`` recognizes repeated and missing items by their sequence numbers. ``apply_update`` changes the
episode.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final, Protocol

import msgspec

from agentgym_tui.state.data_model import Episode, StepState
from agentgym_tui.state.episode_content import decode_messages
from agentgym_tui.state.merged_items import (
    CHUNK_TYPES,
    AnswerChunk,
    EpisodeUpdate,
    FinishedAnswers,
    InferenceStarted,
    SpanChunk,
    StepChunk,
    is_ascending,
)
from agentgym_tui.state.normalize import (
    MAX_COUNT,
    MAX_ERROR_CHARS,
    clamp_count,
    clamp_finite,
    clip_name,
    clip_optional,
    clip_worker,
    json_size,
)
from agentgym_tui.state.steps import add_totals, count_missing_steps, step_size, steps_size, strip_messages
from agentgym_tui.state.streaming_answer import update_answer
from runner.events.live import EpisodeEnded, EpisodeStarted, TokenText
from runner.types import EpisodePaused, EpisodeResumed, WorkerInfo

BASE_BYTES: Final = 1_000
"""Approximate memory of an episode without steps, in bytes."""

MAX_AWAITED_PER_EPISODE: Final = 10_000
"""Largest number of missing sequence numbers listed per episode; further missing numbers are only counted."""

_SETUP_FIELDS: Final = (
    "env",
    "transport",
    "data_label",
    "mode",
    "task_index",
    "seed",
    "attempt",
    "agent",
    "model",
    "profile",
    "worker",
)
HEADER_FIELDS: Final = ("batch_id", "battery_id", *_SETUP_FIELDS)
"""Fields of ``Episode`` that are copied from the start item of the episode."""


class EpisodeResult(Protocol):
    """Result of an episode, as carried by a live item, a durable event, an index row or an episode file."""

    @property
    def outcome(self) -> str | None: ...  # noqa: D102 - fields of ``Episode``, all of these
    @property
    def success(self) -> bool: ...  # noqa: D102
    @property
    def reward(self) -> float: ...  # noqa: D102
    @property
    def rounds(self) -> int: ...  # noqa: D102
    @property
    def duration_s(self) -> float | None: ...  # noqa: D102
    @property
    def unscored(self) -> bool: ...  # noqa: D102


class SequenceTracker(msgspec.Struct):
    """Tracks which live items of an episode have arrived.

    Each kind of item has its own bus subject, so the end item of an episode may arrive before the last step items.

    Attributes:
        boot: id of the node process that runs the episode; "" where it is not known.
        next_seq: smallest sequence number after all numbers seen.
        size: approximate memory of the episode in bytes.
        has_header: whether the start item or the file of the episode was applied.
        has_file: whether the file or journal of the episode was applied; a file takes precedence over live items.
        awaited: sequence numbers of missing items that may still arrive.
        n_lost: number of missing items that are not listed in ``awaited``.
        max_awaited: largest size of ``awaited``.
        n_stripped: number of the first steps whose messages were dropped to free memory.
    """

    boot: str = ""
    next_seq: int = 0
    size: int = BASE_BYTES
    has_header: bool = False
    has_file: bool = False
    awaited: set[int] = msgspec.field(default_factory=set)
    n_lost: int = 0
    max_awaited: int = MAX_AWAITED_PER_EPISODE
    n_stripped: int = 0

    def accept_new(self, seqs: Sequence[int], gaps: Iterable[int] | None) -> Sequence[int]:
        """Record the sequence numbers of arrived items.

        Args:
            seqs: sequence numbers of the items.
            gaps: numbers missing between the first and the last of ``seqs``; None if the missing numbers are not
                known or ``seqs`` does not ascend.

        Returns:
            The positions in ``seqs`` of the items that arrived for the first time.
        """
        first, end = seqs[0], seqs[-1] + 1
        if gaps is not None and first >= self.next_seq and end - self.next_seq <= self.max_awaited - len(self.awaited):
            if gaps or first > self.next_seq:
                self.awaited.update(range(self.next_seq, first), gaps)
            self.next_seq = end
            return range(len(seqs))
        if gaps is not None and end <= self.next_seq and self.awaited.issuperset(seqs):
            self.awaited.difference_update(seqs)
            return range(len(seqs))
        return [position for position, seq in enumerate(seqs) if self._accept(seq)]

    def _accept(self, seq: int) -> bool:
        """Record the sequence number of one item; return whether the item arrived for the first time."""
        if seq < self.next_seq:
            is_new = seq in self.awaited
            self.awaited.discard(seq)
            return is_new
        first_kept = max(self.next_seq, seq - (self.max_awaited - len(self.awaited)))
        self.n_lost += first_kept - self.next_seq
        self.awaited.update(range(first_kept, seq))
        self.next_seq = seq + 1
        return True

    @property
    def n_missing(self) -> int:
        """Number of items that were sent and have not arrived."""
        return min(len(self.awaited) + self.n_lost, MAX_COUNT)


def apply_update(episode: Episode, tracker: SequenceTracker, update: EpisodeUpdate) -> None:
    """Apply those items of an update that arrived for the first time, and count the missing items of the episode."""
    if isinstance(update, EpisodeStarted) and not tracker.has_header:
        _apply_started(episode, tracker, update)
    expected = tracker.next_seq
    if isinstance(update, CHUNK_TYPES):
        positions = tracker.accept_new(update.seqs, update.gaps)
        if positions and len(positions) < len(update.seqs):
            update = update.select(positions)
    else:
        positions = tracker.accept_new((update.seq,), ())
    if not positions:
        return
    if not tracker.has_file and (tracker.awaited or tracker.n_lost or episode.n_missing):
        episode.n_missing = tracker.n_missing
    match update:
        case AnswerChunk() | TokenText():
            _apply_answer(episode, update)
        case FinishedAnswers(started=[*_, newest]):
            _apply_answer(episode, newest)
        case SpanChunk():
            _add_spans(episode, tracker, update)
        case StepChunk():
            _add_steps(episode, tracker, update)
        case EpisodePaused() | EpisodeResumed() if update.seq >= expected:
            episode.paused = episode.running and isinstance(update, EpisodePaused)
        case EpisodeEnded():
            _apply_ended(episode, update)


def set_field(episode: Episode, field_name: str, value: object) -> None:
    """Set a field of an episode to an untrusted value; a text is cut to the length of a name."""
    if isinstance(value, WorkerInfo):
        value = clip_worker(value)
    setattr(episode, field_name, clip_name(value) if isinstance(value, str) else value)


def record_result(episode: Episode, result: EpisodeResult) -> None:
    """Copy the result to an episode and mark the episode as ended."""
    episode.success, episode.reward = result.success, clamp_finite(result.reward)
    episode.rounds = clamp_count(result.rounds)
    episode.duration_s, episode.unscored = result.duration_s, result.unscored
    episode.n_missing = max(episode.n_missing, count_missing_steps(episode))
    mark_ended(episode, str(result.outcome))


def mark_ended(episode: Episode, outcome: str) -> None:
    """Set the outcome of an episode and clear the fields that only a running episode has."""
    episode.outcome, episode.streaming, episode.paused, episode.node_lost = outcome, None, False, False


def _apply_started(episode: Episode, tracker: SequenceTracker, item: EpisodeStarted) -> None:
    tracker.has_header = True
    episode.started_at = item.at
    for header_field in HEADER_FIELDS:
        set_field(episode, header_field, getattr(item, header_field))


def _apply_ended(episode: Episode, item: EpisodeEnded) -> None:
    if item.error is not None:
        episode.error_type = clip_optional(item.error.get("type"))
        episode.error_message = clip_optional(item.error.get("message"), MAX_ERROR_CHARS)
    record_result(episode, item)


def _add_steps(episode: Episode, tracker: SequenceTracker, chunk: StepChunk) -> None:
    if chunk.resets and not episode.reset_observation:
        episode.reset_observation = reset = decode_messages(next(iter(chunk.resets.values())))
        tracker.size += json_size(reset)
    indices = [step.index for step in chunk.steps]
    if episode.streaming is not None and max(indices) >= episode.streaming.step:
        episode.streaming = None
    if indices[0] > episode.last_step_index and is_ascending(indices):
        _insert(episode, tracker, len(episode.steps), chunk.steps, chunk.size)
        return
    for step in chunk.steps:
        position = bisect_left(episode.steps, step.index, key=attrgetter("index"))
        if position == len(episode.steps) or episode.steps[position].index != step.index:
            _insert(episode, tracker, position, [step], step_size(step))


def _insert(
    episode: Episode, tracker: SequenceTracker, position: int, steps: Sequence[StepState], n_bytes: int
) -> None:
    if position < tracker.n_stripped:  # a step that arrives late, before steps without messages
        steps = [strip_messages(step) for step in steps]
        n_bytes = steps_size(steps)
        tracker.n_stripped += len(steps)
    episode.steps[position:position] = steps
    tracker.size += n_bytes
    if tracker.has_file:
        episode.n_missing = count_missing_steps(episode)
    if episode.running:
        add_totals(episode, steps)


def _apply_answer(episode: Episode, update: InferenceStarted | AnswerChunk | TokenText) -> None:
    if episode.outcome is None and update.step > episode.last_step_index:
        episode.streaming = update_answer(episode.streaming, update)


def _add_spans(episode: Episode, tracker: SequenceTracker, chunk: SpanChunk) -> None:
    if not tracker.has_file or episode.outcome is None:  # the file of an ended episode has all spans
        episode.spans.append_raw(chunk.spans, chunk.size)
        tracker.size += chunk.size
