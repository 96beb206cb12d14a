"""Registry of episodes, merged from live items, events, index rows and files in any order."""

from __future__ import annotations

from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from agentgym_tui.state.data_model import Episode
from agentgym_tui.state.episode_content import Spans
from agentgym_tui.state.episode_reducer import (
    BASE_BYTES,
    HEADER_FIELDS,
    MAX_AWAITED_PER_EPISODE,
    EpisodeResult,
    SequenceTracker,
    apply_update,
    mark_ended,
    record_result,
    set_field,
)
from agentgym_tui.state.normalize import (
    MAX_ERROR_CHARS,
    MAX_ID_CHARS,
    as_aware,
    clamp_count,
    clamp_finite,
    clip_name,
    clip_optional,
)
from agentgym_tui.state.steps import count_missing_steps, episode_size, recompute_totals, step_size, strip_messages

if TYPE_CHECKING:
    from datetime import datetime

    from agentgym_tui.state.merged_items import EpisodeUpdate
    from runner.events.durable import EpisodeCompleted, ForeignEpisode
    from runner.store.index_schema import EpisodeRow

EPISODE_SLACK: Final = 100
"""Episodes beyond the limit that one message may add before the oldest are evicted."""

MAX_AWAITED: Final = 200_000
"""Missing sequence numbers tracked for all episodes together."""

MAX_EVICTED_IDS: Final = 20_000
"""Ids of evicted episodes; later items of these are ignored."""


class EpisodeRegistry:
    """The newest episodes by id, the newest last, within limits of number and memory.

    Args:
        max_episodes: largest number of episodes; ended ones are evicted first.
        max_bytes: approximate limit for the memory of their texts.

    Attributes:
        episodes: all episodes by id.
        running: episodes without an outcome, by id.
        ended: episodes that have ended since the caller last cleared the list.
    """

    def __init__(self, *, max_episodes: int, max_bytes: int) -> None:
        self.episodes: dict[str, Episode] = {}
        self.running: dict[str, Episode] = {}
        self.ended: list[Episode] = []
        self._trackers: dict[str, SequenceTracker] = {}
        self._evicted: dict[str, None] = {}
        self._max_episodes, self._max_bytes = max_episodes, max_bytes
        self._bytes = self._n_missing_evicted = self._n_awaited = 0
        self._in_order = True

    @property
    def n_missing(self) -> int:
        """Live items that have not arrived, including those of evicted episodes."""
        return self._n_missing_evicted + sum(tracker.n_missing for tracker in self._trackers.values())

    def apply(self, update: EpisodeUpdate, node: str, boot: str) -> bool:
        """Apply an update of an episode; return False where it has no valid episode id."""
        if (episode := self.episodes.get(update.episode_id)) is None:
            if not 0 < len(update.episode_id) <= MAX_ID_CHARS:
                return False
            if update.episode_id in self._evicted:
                return True
            episode = self._create(update.episode_id, update.at)
        tracker = self._trackers[update.episode_id]
        if episode.node is not node or tracker.boot is not boot:
            tracker.boot, episode.node = boot, clip_name(node)
        size, n_awaited, started_at, outcome = tracker.size, len(tracker.awaited), episode.started_at, episode.outcome
        tracker.max_awaited = min(MAX_AWAITED_PER_EPISODE, n_awaited + MAX_AWAITED - self._n_awaited)
        apply_update(episode, tracker, update)
        self._n_awaited += len(tracker.awaited) - n_awaited
        if tracker.size != size:
            self._bytes += tracker.size - size
        if episode.started_at is not started_at:
            self._in_order = self._in_order and episode.started_at == started_at
        if episode.outcome != outcome:
            self._on_ended(episode)
        if len(self.episodes) > self._max_episodes + EPISODE_SLACK:
            self.enforce_limits()
        return True

    def apply_completed(self, event: EpisodeCompleted, at: datetime) -> bool:
        """Apply the completion event of an episode; return False where it has no valid episode id."""
        if not 0 < len(event.episode_id) <= MAX_ID_CHARS:
            return False
        if event.episode_id in self._evicted:
            return True
        episode = self.episodes.get(event.episode_id) or self._create(event.episode_id, at)
        for field in ("batch_id", "env", "agent", "node", "profile"):
            setattr(episode, field, clip_name(getattr(event, field)))
        episode.model, episode.task_index = clip_optional(event.model), event.task_index
        episode.tokens, episode.cost = event.tokens, event.cost
        self._record_result(episode, event)
        return True

    def apply_foreign(self, episode_id: str, event: ForeignEpisode, at: datetime) -> None:
        """Add an episode of another field runner, once."""
        if episode_id in self._evicted or episode_id in self.episodes:
            return
        episode = self._create(episode_id, at)
        episode.env, episode.model, episode.success = clip_name(event.env), clip_optional(event.model), event.success
        episode.reward, episode.rounds = clamp_finite(event.score), clamp_count(event.rounds)
        episode.duration_s = event.duration_sec
        mark_ended(episode, "success" if event.success else "failure")
        self._on_ended(episode)

    def apply_stored(self, row: EpisodeRow) -> None:
        """End a running episode whose index row exists."""
        if (episode := self.running.get(row.episode_id)) is not None:
            episode.error_type = clip_optional(row.error_type)
            self._record_result(episode, row)

    def merge_file(self, episode: Episode, boot: str) -> bool:
        """Merge an episode read from a journal or an episode file, which takes precedence over live items.

        Args:
            episode: the episode read.
            boot: process of its node.

        Returns:
            False where it has no valid episode id.
        """
        if not 0 < len(episode.episode_id) <= MAX_ID_CHARS:
            return False
        known = self.episodes.get(episode.episode_id) or self._create(episode.episode_id, episode.started_at)
        tracker = self._trackers[known.episode_id]
        tracker.boot, tracker.has_file, tracker.has_header = tracker.boot or boot, True, True
        for field in ("node", *HEADER_FIELDS):
            set_field(known, field, getattr(episode, field) or getattr(known, field))
        known.started_at, self._in_order = as_aware(episode.started_at), False
        known.reset_observation = episode.reset_observation or known.reset_observation
        known.spans = Spans(episode.spans.all) if episode.spans else known.spans
        by_index = {step.index: step for step in (*known.steps, *episode.steps)}
        known.steps = [by_index[index] for index in sorted(by_index)]
        self._add_bytes(tracker, BASE_BYTES + episode_size(known) - tracker.size)
        known.n_missing = count_missing_steps(known)
        if known.running:
            recompute_totals(known)
        if episode.outcome is not None:
            known.tokens, known.cost = episode.tokens, episode.cost
            known.error_type = episode.error_type
            known.error_message = clip_optional(episode.error_message, MAX_ERROR_CHARS)
            known.error_traceback = clip_optional(episode.error_traceback, MAX_ERROR_CHARS)
            self._record_result(known, episode)
        return True

    def mark_interrupted(self, node: str, boot: str) -> bool:
        """Mark running episodes of earlier processes of a node as interrupted; return whether there were any.

        Args:
            node: the node.
            boot: its current process.
        """
        interrupted = [
            e for e in self.running.values() if e.node == node and self._trackers[e.episode_id].boot not in ("", boot)
        ]
        for episode in interrupted:
            mark_ended(episode, "interrupted")
            self._on_ended(episode)
        return bool(interrupted)

    def assign_boot(self, node: str, boot: str) -> None:
        """Assign episodes that were read from files of a node to its current process."""
        for episode in self.running.values():
            tracker = self._trackers[episode.episode_id]
            if episode.node == node and not tracker.boot:
                tracker.boot = boot

    def enforce_limits(self) -> None:
        """Restore the order by start time and evict what exceeds the limits."""
        if not self._in_order:
            ordered = sorted(self.episodes.values(), key=attrgetter("started_at"))
            self.episodes = {episode.episode_id: episode for episode in ordered}
            self._in_order = True
        for episode in self._eviction_order(len(self.episodes) - self._max_episodes):
            self._evict(episode)
        if self._bytes > self._max_bytes:
            self._free_memory()

    def _create(self, episode_id: str, at: datetime) -> Episode:
        at = as_aware(at)
        newest = next(reversed(self.episodes.values()), None)
        self._in_order = self._in_order and (newest is None or newest.started_at <= at)
        episode = self.episodes[episode_id] = self.running[episode_id] = Episode(episode_id, "", "", at)
        self._evicted.pop(episode_id, None)
        self._trackers[episode_id] = SequenceTracker()
        self._bytes += BASE_BYTES
        return episode

    def _record_result(self, episode: Episode, result: EpisodeResult) -> None:
        record_result(episode, result)
        self._on_ended(episode)

    def _on_ended(self, episode: Episode) -> None:
        self.running.pop(episode.episode_id, None)
        self.ended.append(episode)

    def _add_bytes(self, tracker: SequenceTracker, by: int) -> None:
        tracker.size += by
        self._bytes += by

    def _eviction_order(self, n: int) -> list[Episode]:
        if n <= 0:
            return []
        ended = list(islice((episode for episode in self.episodes.values() if not episode.running), n))
        running = (episode for episode in self.episodes.values() if episode.running)
        return [*ended, *islice(running, n - len(ended))]

    def _free_memory(self) -> None:
        """Evict ended episodes but the newest, then drop messages, then evict running episodes."""
        newest = next(reversed(self.episodes.values()), None)
        while self._bytes > self._max_bytes:
            ended = (known for known in self.episodes.values() if not known.running and known is not newest)
            if (episode := next(ended, None)) is None:
                break
            self._evict(episode)
        for episode in self.episodes.values():
            if self._bytes <= self._max_bytes:
                return
            self._drop_messages(episode)
        while self._bytes > self._max_bytes and self.episodes:
            self._evict(next(iter(self.episodes.values())))

    def _drop_messages(self, episode: Episode) -> None:
        """Drop messages of an episode, the oldest first, until the memory limit holds."""
        tracker = self._trackers[episode.episode_id]
        for index, step in enumerate(episode.steps):
            if self._bytes <= self._max_bytes:
                return
            episode.steps[index] = smaller = strip_messages(step)
            self._add_bytes(tracker, step_size(smaller) - step_size(step))
        episode.spans, episode.reset_observation = Spans(), []
        self._add_bytes(tracker, BASE_BYTES + episode_size(episode) - tracker.size)

    def _evict(self, episode: Episode) -> None:
        episode_id = episode.episode_id
        self.episodes.pop(episode_id)
        self.running.pop(episode_id, None)
        tracker = self._trackers.pop(episode_id)
        self._bytes -= tracker.size
        self._n_awaited -= len(tracker.awaited)
        self._n_missing_evicted += tracker.n_missing
        self._evicted[episode_id] = None
        if len(self._evicted) > MAX_EVICTED_IDS:
            del self._evicted[next(iter(self._evicted))]
