"""Registry of episodes, merged from live items, events, index rows and files that arrive in any order.

Each live item is applied once: each kind of item has its own bus subject, so the end of an episode may arrive before
its last steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, takewhile
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import msgspec
from msgspec.structs import replace

from agentgym_tui.state.episode import (
    EPISODE_BYTES,
    Episode,
    Spans,
    StreamingAnswer,
    StreamingToolCall,
    decode_messages,
    picture_of,
    step_of,
)
from agentgym_tui.state.normalize import MAX_COUNT, MAX_ID_CHARS, as_aware
from agentgym_tui.state.servers import MAX_FAILURES, EndpointRegistry
from runner.events.live import EpisodeEnded, EpisodeStarted, LazySpan, LazyTimestep, TokenText
from runner.types import UNKNOWN_OUTCOME, EpisodePaused, EpisodeResumed, Tokens, join_models

if TYPE_CHECKING:
    from datetime import datetime

    from runner.events.durable import EpisodeCompleted
    from runner.store.index_schema import EpisodeRow

    _Result: TypeAlias = EpisodeEnded | EpisodeCompleted | EpisodeRow | Episode

EPISODE_SLACK: Final = 100  # episodes by which one message may exceed the limit before the oldest are evicted
MAX_AWAITED: Final = 100_000  # missing sequence numbers that are listed for all episodes together
MAX_AWAITED_PER_EPISODE: Final = 10_000  # further missing numbers are only counted
FREED_SHARE: Final = 1 / 64  # of the memory limit, freed beyond it, so that this is rare under a high load
MAX_EVICTED_IDS: Final = 20_000  # remembered, so that later items of these episodes are not shown
MAX_STREAMED_CHARS: Final = 64 * 1024  # kept at the end of an answer's text, and of its reasoning
MAX_ARGUMENT_CHARS: Final = 8 * 1024  # kept at the end of the arguments of each tool call
MAX_CALLS: Final = 16
_CHARS_PER_TOKEN: Final = 4  # assumed for items without a token count
_HEADER_FIELDS: Final = (  # copied from the start item of an episode
    *("batch_id", "battery_id", "env", "transport", "data_label", "mode", "limits", "task_index", "seed", "attempt"),
    *("agent", "model", "profile", "worker"),
)
_OUTCOMES: Final = {True: "success", False: "failure", None: UNKNOWN_OUTCOME}  # by success, where nothing else is known
EpisodeItem: TypeAlias = (
    EpisodeStarted | EpisodePaused | EpisodeResumed | EpisodeEnded | TokenText | LazySpan | LazyTimestep
)


class SequenceTracker(msgspec.Struct):
    """Tracks which live items of an episode have arrived."""

    boot: str = ""  # of the node process that runs the episode; "" where it is not known
    next_seq: int = 0  # after all numbers seen
    size: int = EPISODE_BYTES
    has_header: bool = False
    has_file: bool = False  # the file or journal, which takes precedence over live items, was applied
    awaited: set[int] = msgspec.field(default_factory=set)  # missing items that may still arrive
    n_lost: int = 0  # missing items that are not in ``awaited``
    max_awaited: int = MAX_AWAITED_PER_EPISODE

    def accept(self, seq: int) -> bool:
        """Return whether a number has arrived for the first time."""
        if seq == self.next_seq:
            self.next_seq += 1
            return True
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
        return min(len(self.awaited) + self.n_lost, MAX_COUNT)


class EpisodeRegistry:
    """The newest episodes by id, the newest last, limited in number and in memory; ended ones are evicted first.

    ``ended`` are those that have ended since the caller last cleared this list; ``first_currency`` is that of the first
    episode that names one.
    """

    def __init__(self, *, max_episodes: int, max_bytes: int, currency: Callable[[], str] = str) -> None:
        self.episodes: dict[str, Episode] = {}
        self.running: dict[str, Episode] = {}
        self.ended: list[Episode] = []
        self._trackers: dict[str, SequenceTracker] = {}
        self._evicted: dict[str, bool] = {}
        self.first_currency = ""
        self._max_episodes, self._max_bytes, self._currency = max_episodes, max_bytes, currency
        self._n_missing_evicted = self._n_awaited = 0
        self._by_batch: tuple[int, dict[str, list[Episode]]] = -1, {}

    @property
    def n_bytes(self) -> int:
        return sum([tracker.size for tracker in self._trackers.values()])

    @property
    def n_missing(self) -> int:
        """Live items that did not arrive or were not kept; those that a file of the episode replaces do not count."""
        return self._n_missing_evicted + sum(each.n_missing for each in self._trackers.values() if not each.has_file)

    def of_batch(self, batch_id: str, version: int) -> Sequence[Episode]:
        grouped_at, by_batch = self._by_batch
        if grouped_at != version:
            by_batch = defaultdict(list)
            for episode in self.episodes.values():
                by_batch[episode.batch_id].append(episode)
            self._by_batch = version, by_batch
        return by_batch.get(batch_id, [])

    def apply(self, items: Sequence[EpisodeItem], node: str, boot: str, endpoints: EndpointRegistry) -> bool:
        """Apply items of one episode and of one kind, sent by the process ``boot``; return False for an invalid id.

        Those of an evicted episode are ignored, and count as missing if it was running.
        """
        episode_id = items[0].episode_id
        if (episode := self.episodes.get(episode_id)) is None:
            if not 0 < len(episode_id) <= MAX_ID_CHARS:
                return False
            if (was_running := self._evicted.get(episode_id)) is not None:
                self._n_missing_evicted += len(items) if was_running else 0
                return True
            episode = self._create(episode_id, items[0].at)
        tracker = self._trackers[episode_id]
        tracker.boot, episode.node = boot, node
        n_awaited, outcome = len(tracker.awaited), episode.outcome
        tracker.max_awaited = min(MAX_AWAITED_PER_EPISODE, n_awaited + MAX_AWAITED - self._n_awaited)
        _apply_items(episode, tracker, items, endpoints)
        self.first_currency = self.first_currency or episode.currency
        episode.version += 1
        self._n_awaited += len(tracker.awaited) - n_awaited
        if episode.outcome != outcome:
            self._on_ended(episode)
        if len(self.episodes) > self._max_episodes + EPISODE_SLACK:
            self.enforce_limits()
        return True

    def apply_completed(self, event: EpisodeCompleted, at: datetime) -> bool:
        """Return False for an invalid id; ``at`` stands for the start of an episode that is not known."""
        if not 0 < len(event.episode_id) <= MAX_ID_CHARS:
            return False
        if event.episode_id in self._evicted:
            return True
        known = self.episodes.get(event.episode_id)
        episode = known or self._create(event.episode_id, at)
        if known is None or event.task_index is not None:
            episode.task_index = event.task_index
        for field in ("batch_id", "env", "agent", "model", "node", "profile", "currency", "tokens"):
            setattr(episode, field, getattr(event, field) or getattr(episode, field))
        episode.cost = event.cost
        episode.agentgym_score = None if event.agentgym is None else event.agentgym.score
        self.first_currency = self.first_currency or episode.currency
        episode.reported_fallback = event.fallback
        episode.reported_models = join_models(event.model, event.models) if event.models else None
        _record_result(episode, event)
        self._on_ended(episode)
        return True

    def apply_stored(self, row: EpisodeRow) -> None:
        """An index row exists only for an ended episode."""
        if (episode := self.running.get(row.episode_id)) is not None:
            episode.error_type, episode.reported_shape = row.error_type, row.shape
            episode.reported_fallback, episode.reported_models = row.fallback, row.models
            _record_result(episode, row)
            self._on_ended(episode)

    def merge_file(self, episode: Episode, boot: str) -> None:
        """Merge an episode from a journal or an episode file, which take precedence over live items.

        ``boot`` is the current process of its node, or "".
        """
        if not 0 < len(episode.episode_id) <= MAX_ID_CHARS:
            return
        known = self.episodes.get(episode.episode_id) or self._create(episode.episode_id, episode.started_at)
        tracker = self._trackers[known.episode_id]
        tracker.boot, tracker.has_file, tracker.has_header = tracker.boot or boot, True, True
        for field in (*_HEADER_FIELDS, "node", "currency", "reset_observation", "reset_world"):
            setattr(known, field, getattr(episode, field) or getattr(known, field))
        known.started_at = as_aware(episode.started_at)
        known.spans = Spans(episode.spans.all) if episode.spans else known.spans
        by_index = {step.index: step for step in (*known.steps, *episode.steps)}
        known.steps = [by_index[index] for index in sorted(by_index)]
        tracker.size = known.size
        known.n_missing = known.n_missing_steps
        known.version += 1
        if known.running:
            known.reward, known.tokens, known.cost = 0.0, Tokens(), None
            known.add_totals(known.steps)
        if episode.outcome is not None:
            for field in ("tokens", "cost", "error_type", "error_message", "error_traceback"):
                setattr(known, field, getattr(episode, field))
            _record_result(known, episode)
            self._on_ended(known)

    def mark_lost(self, lost: set[str]) -> None:
        for episode in self.running.values():
            if episode.node_lost != (is_lost := episode.node in lost):
                episode.node_lost, episode.version = is_lost, episode.version + 1

    def mark_interrupted(self, node: str, boot: str) -> bool:
        """Mark the running episodes of other processes of a node than ``boot``; return whether there was any."""
        interrupted = [
            e for e in self.running.values() if e.node == node and self._trackers[e.episode_id].boot not in ("", boot)
        ]
        for episode in interrupted:
            _mark_ended(episode, "interrupted")
            episode.reward = None  # its last steps may not have arrived; its event has the sum
            self._on_ended(episode)
        return bool(interrupted)

    def assign_boot(self, node: str, boot: str) -> None:
        """Assign a process to the running episodes of a node that have none, because they were read from files."""
        for episode in self.running.values():
            tracker = self._trackers[episode.episode_id]
            if episode.node == node and not tracker.boot:
                tracker.boot = boot

    def enforce_limits(self) -> None:
        """Sort the episodes by start time and evict the oldest above the limits."""
        ordered = sorted(self.episodes.values(), key=attrgetter("started_at"))
        self.episodes.clear()
        self.episodes.update((episode.episode_id, episode) for episode in ordered)
        if (n := len(self.episodes) - self._max_episodes) > 0:
            for episode in sorted(ordered, key=attrgetter("running"))[:n]:
                self._evict(episode)
        if (n_bytes := self.n_bytes) > self._max_bytes:
            self._free_memory(n_bytes)

    def _create(self, episode_id: str, at: datetime) -> Episode:
        episode = Episode(episode_id, "", "", as_aware(at), currency=self._currency())
        self.episodes[episode_id] = self.running[episode_id] = episode
        self._evicted.pop(episode_id, None)
        self._trackers[episode_id] = SequenceTracker()
        return episode

    def _on_ended(self, episode: Episode) -> None:
        episode.version += 1
        self.running.pop(episode.episode_id, None)
        self.ended.append(episode)

    def _free_memory(self, n_bytes: int) -> None:
        """First evict ended episodes except the newest, then drop the content of the others, then evict these."""
        target = int(self._max_bytes * (1 - FREED_SHARE))
        *older, newest = self.episodes.values()
        ended, kept = [each for each in older if not each.running], [*filter(attrgetter("running"), older), newest]
        for free, episodes in ((self._evict, ended), (self._drop_content, kept), (self._evict, kept)):
            for episode in episodes:
                if n_bytes <= target:
                    return
                n_bytes -= free(episode)

    def _drop_content(self, episode: Episode) -> int:
        tracker = self._trackers[episode.episode_id]
        before = tracker.size
        episode.drop_content()
        tracker.size = episode.size
        return before - tracker.size

    def _evict(self, episode: Episode) -> int:
        episode_id = episode.episode_id
        self.episodes.pop(episode_id)
        self.running.pop(episode_id, None)
        tracker = self._trackers.pop(episode_id)
        self._n_awaited -= len(tracker.awaited)
        self._n_missing_evicted += 0 if tracker.has_file else tracker.n_missing
        self._by_batch = -1, {}  # else it would keep the episode in memory
        self._evicted[episode_id] = episode.running
        if len(self._evicted) > MAX_EVICTED_IDS:
            del self._evicted[next(iter(self._evicted))]
        return tracker.size


def _apply_items(
    episode: Episode, tracker: SequenceTracker, items: Sequence[EpisodeItem], endpoints: EndpointRegistry
) -> None:
    first = items[0]
    if isinstance(first, EpisodeStarted) and not tracker.has_header:
        tracker.has_header, episode.started_at = True, first.at
        for field in _HEADER_FIELDS:
            setattr(episode, field, getattr(first, field))
        episode.currency = first.currency or episode.currency
    if not (items := [item for item in items if tracker.accept(item.seq)]):
        return
    if not tracker.has_file and (tracker.awaited or tracker.n_lost or episode.n_missing):
        episode.n_missing = tracker.n_missing
    match first:
        case TokenText():
            _apply_tokens(episode, cast("Sequence[TokenText]", items), endpoints)
        case LazySpan():
            if not tracker.has_file or episode.outcome is None:  # the file of an ended episode has all spans
                before = episode.spans.size
                episode.spans.append_raw([bytes(item.span) for item in cast("Sequence[LazySpan]", items)])
                tracker.size += episode.spans.size - before
        case LazyTimestep():
            last_index = episode.last_step_index
            _add_steps(episode, tracker, cast("Sequence[LazyTimestep]", items))
            newer = takewhile(lambda step: step.index > last_index, reversed(episode.steps))
            endpoints.apply_steps([*newer][::-1], episode, items[-1].at)
        case EpisodePaused() | EpisodeResumed() if first.seq + 1 == tracker.next_seq:
            episode.paused = episode.running and isinstance(first, EpisodePaused)
        case EpisodeEnded():
            if first.error is not None:
                episode.error_type, episode.error_message = first.error.get("type"), first.error.get("message")
            _record_result(episode, first)


def _record_result(episode: Episode, result: _Result) -> None:
    episode.success, episode.reward, episode.rounds = result.success, result.reward, result.rounds
    episode.duration_s, episode.unscored = result.duration_s, result.unscored
    episode.n_missing = max(episode.n_missing, episode.n_missing_steps)
    _mark_ended(episode, str(result.outcome or _OUTCOMES[result.success]))


def _mark_ended(episode: Episode, outcome: str) -> None:
    episode.outcome, episode.streaming, episode.paused, episode.node_lost = outcome, None, False, False


def _add_steps(episode: Episode, tracker: SequenceTracker, items: Sequence[LazyTimestep]) -> None:
    for item in items:
        if not episode.reset_observation:
            episode.reset_observation = decode_messages(raw := bytes(item.reset_observation))
            tracker.size += len(raw) if episode.reset_observation else 0
        if not episode.reset_world:
            episode.reset_world = picture_of(item.reset_world)
            tracker.size += len(episode.reset_world)
    if episode.streaming is not None and max([item.index for item in items]) >= episode.streaming.step:
        episode.streaming = None
    for step in map(step_of, items):
        position = bisect_left(episode.steps, step.index, key=attrgetter("index"))
        if position == len(episode.steps) or episode.steps[position].index != step.index:
            episode.steps.insert(position, step)
            tracker.size += step.size
            if episode.running:
                episode.add_totals([step])
    if tracker.has_file:
        episode.n_missing = episode.n_missing_steps


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


def answer_parts(items: Sequence[TokenText]) -> Iterator[Sequence[TokenText]]:
    """Make groups of items that ``update_answer`` can apply, without texts of answers that the newest one replaces."""
    newest = max([item.step for item in items])
    current = (item for item in items if item.step == newest or _part_of(item) is None)
    for part, alike in groupby(current, _part_of):
        if part is None:
            yield from ([item] for item in alike)
        else:
            yield [*alike]


def _part_of(item: TokenText) -> tuple[str, int] | None:
    """Return the part of the answer to which an item only adds text."""
    is_text = item.endpoint is None and item.failure is None and not item.restart and bool(item.text or item.tool)
    return (item.part, item.call) if is_text else None


def update_answer(before: StreamingAnswer | None, items: Sequence[TokenText]) -> StreamingAnswer:
    """A later step starts a new answer, else ``before`` grows in place; ``items`` are one, or texts of one part."""
    first = items[0]
    if before is not None and before.step > first.step:
        return before
    answer = before if before is not None and before.step == first.step else StreamingAnswer(step=first.step)
    if first.restart:
        answer = StreamingAnswer(step=first.step, failures=answer.failures)
    if first.failure is not None:
        answer.failures = (*answer.failures, first.failure)[-MAX_FAILURES:]
        answer.endpoint = answer.requested_at = answer.model = None
    if first.endpoint is not None:
        answer.endpoint, answer.model, answer.requested_at = first.endpoint, first.model, first.at
    if first.text or first.tool:
        _append(answer, items)
    return answer


def _append(answer: StreamingAnswer, items: Sequence[TokenText]) -> None:
    first, text = items[0], "".join([item.text for item in items])
    match first.part:
        case "text":
            kept = _keep_newest(answer.text + text, MAX_STREAMED_CHARS, answer.n_text_dropped)
            answer.text, answer.n_text_dropped = kept
        case "reasoning":
            kept = _keep_newest(answer.reasoning + text, MAX_STREAMED_CHARS, answer.n_reasoning_dropped)
            answer.reasoning, answer.n_reasoning_dropped = kept
        case "call":
            calls = {call.number: call for call in answer.calls}
            known = calls.get(first.call, StreamingToolCall(first.call))
            if first.call in calls or len(calls) < MAX_CALLS:
                tool = known.tool or next((item.tool for item in items if item.tool), "")
                arguments, n_dropped = _keep_newest(known.arguments + text, MAX_ARGUMENT_CHARS, known.n_dropped)
                calls[first.call] = replace(known, tool=tool, arguments=arguments, n_dropped=n_dropped)
                answer.calls = tuple(calls.values())
    answer.n_tokens += _count_tokens(items)
    answer.newest_at = items[-1].at
    if answer.first_at is None:
        answer.first_at, answer.ttft_s = first.at, first.ttft_s
        answer.n_first_tokens = _count_tokens(items[:1])


def _count_tokens(items: Sequence[TokenText]) -> int:
    return sum([item.n or 1 + len(item.text) // _CHARS_PER_TOKEN for item in items])


def _keep_newest(text: str, limit: int, n_dropped: int) -> tuple[str, int]:
    return text[-limit:], n_dropped + max(len(text) - limit, 0)
