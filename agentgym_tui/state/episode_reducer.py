"""One episode as live items tell it: what each of them changes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final, Protocol

import msgspec

from agentgym_tui.state.episode_content import decode_messages
from agentgym_tui.state.item_batches import (
    CHUNK_TYPES,
    AnswerChunk,
    EpisodeUpdate,
    FinishedAnswers,
    InferenceStarted,
    SpanChunk,
    StepChunk,
    is_ascending,
)
from agentgym_tui.state.limits import (
    MAX_COUNT,
    MAX_ERROR_CHARS,
    clamp_count,
    clamp_finite,
    clip_name,
    clip_optional,
    json_size,
)
from agentgym_tui.state.models import Episode, StepState
from agentgym_tui.state.steps import add_totals, count_missing_steps, step_size
from agentgym_tui.state.streaming_answer import update_answer
from runner.events.live import (
    EpisodeEnded,
    EpisodePaused,
    EpisodeResumed,
    EpisodeStarted,
    TokenText,
)

BASE_BYTES: Final = 1_000
"""Bytes an episode without steps takes, about."""

MAX_AWAITED_PER_EPISODE: Final = 10_000
"""Numbers of items per episode that may still come; of more than these only the count is kept."""

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
)
HEADER_FIELDS: Final = ("batch_id", "battery_id", *_SETUP_FIELDS)
"""What an episode's start says of it."""


class EpisodeResult(Protocol):
    """How an episode ended, whoever says so."""

    @property
    def outcome(self) -> str | None: ...  # noqa: D102 - as in ``Episode``, all of these
    @property
    def success(self) -> bool: ...  # noqa: D102
    @property
    def reward(self) -> float: ...  # noqa: D102
    @property
    def rounds(self) -> int: ...  # noqa: D102
    @property
    def duration_s(self) -> float | None: ...  # noqa: D102


class SequenceTracker(msgspec.Struct):
    """What is known of the telling of an episode: by which process, how far, and how much of it is kept.

    Attributes:
        headed: its start is known.
        filled: a file was read, which counts more than what comes live.
        awaited: items left out so far: each kind travels on a subject of its own, so the end may come before steps.
        n_lost: items left out that are not awaited any more.
        most: how many may be awaited.
    """

    boot: str = ""
    next_seq: int = 0
    size: int = BASE_BYTES
    has_header: bool = False
    has_file: bool = False
    awaited: set[int] = msgspec.field(default_factory=set)
    n_lost: int = 0
    max_awaited: int = MAX_AWAITED_PER_EPISODE

    def accept_new(self, seqs: Sequence[int], gaps: Iterable[int] | None) -> Sequence[int]:
        """The places of the items that were not there before, by their numbers, of which is taken note.

        ``gaps``: numbers in between that are not there, None where that is not known, or the numbers do not rise.
        """
        first, end = seqs[0], seqs[-1] + 1
        if gaps is not None and first >= self.next_seq and end - self.next_seq <= self.max_awaited - len(self.awaited):
            self.awaited.update(range(self.next_seq, first), gaps)
            self.next_seq = end
            return range(len(seqs))
        if gaps is not None and end <= self.next_seq and self.awaited.issuperset(seqs):
            self.awaited.difference_update(seqs)
            return range(len(seqs))
        return [place for place, seq in enumerate(seqs) if self._accept(seq)]

    def _accept(self, seq: int) -> bool:
        """Take note of an item's number; False when it was there before."""
        if seq < self.next_seq:
            known = seq not in self.awaited
            self.awaited.discard(seq)
            return not known
        first_kept = max(self.next_seq, seq - (self.max_awaited - len(self.awaited)))
        self.n_lost += first_kept - self.next_seq
        self.awaited.update(range(first_kept, seq))
        self.next_seq = seq + 1
        return True

    @property
    def n_missing(self) -> int:
        """Items that are not there."""
        return min(len(self.awaited) + self.n_lost, MAX_COUNT)


def apply_update(episode: Episode, track: SequenceTracker, run: EpisodeUpdate) -> None:
    """Change an episode by a run of items, by each once; what is missing so far is counted."""
    if isinstance(run, EpisodeStarted) and not track.has_header:
        _apply_started(episode, track, run)
    expected = track.next_seq
    if isinstance(run, CHUNK_TYPES):
        places = track.accept_new(run.seqs, run.gaps)
        if places and len(places) < len(run.seqs):
            run = run.select(places)
    else:
        places = track.accept_new((run.seq,), ())
    if not places:
        return
    if not track.has_file and (track.awaited or track.n_lost or episode.n_missing):
        episode.n_missing = track.n_missing
    match run:
        case AnswerChunk() | TokenText():
            _apply_answer(episode, run)
        case FinishedAnswers(started=[*_, newest]):
            _apply_answer(episode, newest)
        case SpanChunk():
            _add_spans(episode, track, run)
        case StepChunk():
            _add_steps(episode, track, run)
        case EpisodePaused() | EpisodeResumed() if run.seq >= expected:
            episode.paused = episode.running and isinstance(run, EpisodePaused)
        case EpisodeEnded():
            _apply_ended(episode, run)


def set_field(episode: Episode, field_name: str, value: object) -> None:
    """Set a field to a value from outside; names are cut."""
    setattr(episode, field_name, clip_name(value) if isinstance(value, str) else value)


def record_result(episode: Episode, told: EpisodeResult) -> None:
    """An episode is over."""
    episode.success, episode.reward, episode.rounds = told.success, clamp_finite(told.reward), clamp_count(told.rounds)
    episode.duration_s = told.duration_s
    episode.n_missing = max(episode.n_missing, count_missing_steps(episode))
    mark_ended(episode, str(told.outcome))


def mark_ended(episode: Episode, outcome: str) -> None:
    """An episode does not run any more."""
    episode.outcome, episode.streaming, episode.paused, episode.node_lost = outcome, None, False, False


def _apply_started(episode: Episode, track: SequenceTracker, item: EpisodeStarted) -> None:
    track.has_header = True
    episode.started_at = item.at
    for header_field in HEADER_FIELDS:
        set_field(episode, header_field, getattr(item, header_field))


def _apply_ended(episode: Episode, item: EpisodeEnded) -> None:
    if item.error is not None:
        episode.error_type = clip_optional(item.error.get("type"))
        episode.error_message = clip_optional(item.error.get("message"), MAX_ERROR_CHARS)
    record_result(episode, item)


def _add_steps(episode: Episode, track: SequenceTracker, run: StepChunk) -> None:
    if run.resets and not episode.reset_observation:
        episode.reset_observation = said = decode_messages(next(iter(run.resets.values())))
        track.size += json_size(said)
    indices = [step.index for step in run.steps]
    if episode.streaming is not None and max(indices) >= episode.streaming.step:
        episode.streaming = None
    if indices[0] > episode.last_step_index and is_ascending(indices):
        _insert(episode, track, len(episode.steps), run.steps, run.size)
        return
    for step in run.steps:
        place = bisect_left(episode.steps, step.index, key=attrgetter("index"))
        if place == len(episode.steps) or episode.steps[place].index != step.index:
            _insert(episode, track, place, [step], step_size(step))


def _insert(episode: Episode, track: SequenceTracker, place: int, steps: Sequence[StepState], n_bytes: int) -> None:
    episode.steps[place:place] = steps
    track.size += n_bytes
    if track.has_file:
        episode.n_missing = count_missing_steps(episode)
    if episode.running:
        add_totals(episode, steps)


def _apply_answer(episode: Episode, told: InferenceStarted | AnswerChunk | TokenText) -> None:
    """Add to the answer for the step that is not over."""
    if episode.outcome is None and told.step > episode.last_step_index:
        episode.streaming = update_answer(episode.streaming, told)


def _add_spans(episode: Episode, track: SequenceTracker, run: SpanChunk) -> None:
    """A file that was read at the end has all spans already."""
    if not track.has_file or episode.outcome is None:
        episode.spans.append_raw(run.spans, run.size)
        track.size += run.size
