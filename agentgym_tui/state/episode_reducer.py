"""Applies live items to an episode; each item is applied once, in whatever order the items arrive.

``SequenceTracker`` recognizes repeated and missing items by their sequence numbers. ``apply_items`` changes the
episode.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice
from operator import attrgetter, lt
from typing import Final, Protocol, TypeAlias, cast

import msgspec

from agentgym_tui.state.data_model import Episode, StepState
from agentgym_tui.state.endpoints import EndpointRegistry
from agentgym_tui.state.episode_content import decode_messages, raw_spans_size
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
from agentgym_tui.state.steps import (
    add_totals,
    count_missing_steps,
    step_from_item,
    steps_size,
    strip_messages,
    world_from_item,
)
from agentgym_tui.state.streaming_answer import answer_parts, update_answer
from runner.events.live import EpisodeEnded, EpisodeStarted, LazySpan, LazyTimestep, TokenText
from runner.types import UNKNOWN_OUTCOME, EpisodePaused, EpisodeResumed, WorkerInfo

BASE_BYTES: Final = 1_000
"""Approximate memory of an episode without steps, in bytes."""

MAX_AWAITED_PER_EPISODE: Final = 10_000
"""Largest number of missing sequence numbers listed per episode; further missing numbers are only counted."""

_SETUP_FIELDS: Final = (
    "env",
    "transport",
    "data_label",
    "mode",
    "limits",
    "task_index",
    "seed",
    "attempt",
    "agent",
    "model",
    "profile",
    "worker",
)
_OUTCOMES: Final = {True: "success", False: "failure", None: UNKNOWN_OUTCOME}
"""Outcome by success, where nothing else is known."""
_EMPTY_RESETS: Final = (b"null", b"[]")
EpisodeItem: TypeAlias = (
    EpisodeStarted | EpisodePaused | EpisodeResumed | EpisodeEnded | TokenText | LazySpan | LazyTimestep
)
HEADER_FIELDS: Final = ("batch_id", "battery_id", *_SETUP_FIELDS)
"""Fields of ``Episode`` that are copied from the start item of the episode."""


class EpisodeResult(Protocol):
    """Result of an episode, as carried by a live item, a durable event, an index row or an episode file."""

    @property
    def outcome(self) -> str | None: ...
    @property
    def success(self) -> bool | None: ...
    @property
    def reward(self) -> float | None: ...
    @property
    def rounds(self) -> int: ...
    @property
    def duration_s(self) -> float | None: ...
    @property
    def unscored(self) -> bool: ...


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

    def accept_new(self, seqs: Sequence[int]) -> Sequence[int]:
        """Record the sequence numbers of arrived items.

        Returns:
            The positions in ``seqs`` of the items that arrived for the first time.
        """
        first, end = seqs[0], seqs[-1] + 1
        if len(seqs) == 1 or all(map(lt, seqs, islice(seqs, 1, None))):
            if first >= self.next_seq and end - self.next_seq <= self.max_awaited - len(self.awaited):
                if end - self.next_seq > len(seqs):
                    self.awaited.update(range(self.next_seq, end))
                    self.awaited.difference_update(seqs)
                self.next_seq = end
                return range(len(seqs))
            if end <= self.next_seq and self.awaited.issuperset(seqs):
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


def apply_items(
    episode: Episode, tracker: SequenceTracker, items: Sequence[EpisodeItem], endpoints: EndpointRegistry
) -> None:
    """Apply those items that arrived for the first time, and count the missing items of the episode.

    Args:
        episode: the episode.
        tracker: its tracker.
        items: items of the episode and of one kind, at least one.
        endpoints: updated by answers and steps of the episode.
    """
    first = items[0]
    if isinstance(first, EpisodeStarted) and not tracker.has_header:
        _apply_started(episode, tracker, first)
    positions = tracker.accept_new([item.seq for item in items])
    if not positions:
        return
    if len(positions) < len(items):
        items = [items[position] for position in positions]
    if not tracker.has_file and (tracker.awaited or tracker.n_lost or episode.n_missing):
        episode.n_missing = tracker.n_missing
    match first:
        case TokenText():
            _apply_tokens(episode, cast("Sequence[TokenText]", items), endpoints)
        case LazySpan():
            _add_spans(episode, tracker, cast("Sequence[LazySpan]", items))
        case LazyTimestep():
            last_index = episode.last_step_index
            _add_steps(episode, tracker, cast("Sequence[LazyTimestep]", items))
            endpoints.apply_steps(episode.steps_after(last_index), episode, items[-1].at)
        case EpisodePaused() | EpisodeResumed() if first.seq + 1 == tracker.next_seq:
            episode.paused = episode.running and isinstance(first, EpisodePaused)
        case EpisodeEnded():
            _apply_ended(episode, first)


def set_field(episode: Episode, field_name: str, value: object) -> None:
    """Set a field of an episode to an untrusted value; a text is cut to the length of a name."""
    if isinstance(value, WorkerInfo):
        value = clip_worker(value)
    setattr(episode, field_name, clip_name(value) if isinstance(value, str) else value)


def record_result(episode: Episode, result: EpisodeResult) -> None:
    """Copy the result to an episode and mark the episode as ended."""
    episode.success = result.success
    episode.reward = None if result.reward is None else clamp_finite(result.reward)
    episode.rounds = clamp_count(result.rounds)
    episode.duration_s, episode.unscored = result.duration_s, result.unscored
    episode.n_missing = max(episode.n_missing, count_missing_steps(episode))
    mark_ended(episode, str(result.outcome or _OUTCOMES[result.success]))


def mark_ended(episode: Episode, outcome: str) -> None:
    """Set the outcome of an episode and clear the fields that only a running episode has."""
    episode.outcome, episode.streaming, episode.paused, episode.node_lost = outcome, None, False, False


def _apply_started(episode: Episode, tracker: SequenceTracker, item: EpisodeStarted) -> None:
    tracker.has_header = True
    episode.started_at = item.at
    for header_field in HEADER_FIELDS:
        set_field(episode, header_field, getattr(item, header_field))
    episode.currency = clip_name(item.currency) if item.currency else episode.currency


def _apply_ended(episode: Episode, item: EpisodeEnded) -> None:
    if item.error is not None:
        episode.error_type = clip_optional(item.error.get("type"))
        episode.error_message = clip_optional(item.error.get("message"), MAX_ERROR_CHARS)
    record_result(episode, item)


def _add_steps(episode: Episode, tracker: SequenceTracker, items: Sequence[LazyTimestep]) -> None:
    if not episode.reset_observation:
        resets = (raw for item in items if (raw := bytes(item.reset_observation)) not in _EMPTY_RESETS)
        if (raw_reset := next(resets, None)) is not None:
            episode.reset_observation = reset = decode_messages(raw_reset)
            tracker.size += json_size(reset) if reset else 0
    if not episode.reset_world:
        episode.reset_world = next(filter(None, (world_from_item(item.reset_world) for item in items)), b"")
        tracker.size += len(episode.reset_world)
    steps = [step_from_item(item) for item in items]
    indices = [step.index for step in steps]
    if episode.streaming is not None and max(indices) >= episode.streaming.step:
        episode.streaming = None
    if indices[0] > episode.last_step_index and all(map(lt, indices, islice(indices, 1, None))):
        _insert(episode, tracker, len(episode.steps), steps)
        return
    for step in steps:
        position = bisect_left(episode.steps, step.index, key=attrgetter("index"))
        if position == len(episode.steps) or episode.steps[position].index != step.index:
            _insert(episode, tracker, position, [step])


def _insert(episode: Episode, tracker: SequenceTracker, position: int, steps: Sequence[StepState]) -> None:
    if position < tracker.n_stripped:  # a step that arrives late, before steps without messages
        steps = [strip_messages(step) for step in steps]
        tracker.n_stripped += len(steps)
    episode.steps[position:position] = steps
    tracker.size += steps_size(steps)
    if tracker.has_file:
        episode.n_missing = count_missing_steps(episode)
    if episode.running:
        add_totals(episode, steps)


def _apply_tokens(episode: Episode, items: Sequence[TokenText], endpoints: EndpointRegistry) -> None:
    for part in answer_parts(items):
        first, before = part[0], episode.streaming
        if first.failure is not None or first.endpoint is not None:
            endpoints.apply_request(first, episode)
        if episode.outcome is None and first.step > episode.last_step_index:
            answered = before and before.answered
            episode.streaming = answer = update_answer(before, part)
            if answer.endpoint is not None and answer.answered not in (None, answered):
                endpoints.mark_answered(answer.endpoint)


def _add_spans(episode: Episode, tracker: SequenceTracker, items: Sequence[LazySpan]) -> None:
    if not tracker.has_file or episode.outcome is None:  # the file of an ended episode has all spans
        spans = [bytes(item.span) for item in items]
        n_bytes = raw_spans_size(spans)
        episode.spans.append_raw(spans, n_bytes)
        tracker.size += n_bytes
