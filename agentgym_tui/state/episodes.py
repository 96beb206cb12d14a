"""Episodes put together from live items, events, stored rows and files, in any order, each thing once."""

from __future__ import annotations

from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final

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
from agentgym_tui.state.limits import MAX_ERROR_CHARS, MAX_ID_CHARS, clamp_count, clamp_finite, clip_name, clip_optional
from agentgym_tui.state.models import Episode
from agentgym_tui.state.steps import count_missing_steps, episode_size, recompute_totals, step_size, strip_messages
from agentgym_tui.state.timestamps import as_aware

if TYPE_CHECKING:
    from datetime import datetime

    from agentgym_tui.state.item_batches import EpisodeUpdate
    from runner.events.durable import EpisodeCompleted, ForeignEpisode
    from runner.store.index_schema import EpisodeRow

EPISODE_SLACK: Final = 100
"""Episodes beyond the bound that one message may bring before the oldest make room."""

MAX_AWAITED: Final = 200_000
"""Numbers of items that may still come, of all episodes together."""

MAX_EVICTED_IDS: Final = 20_000
"""Ids of episodes that had to make room; nothing more is taken of these."""


class EpisodeRegistry:
    """The newest episodes, the newest last, within bounds of number and memory.

    Args:
        max_episodes: the oldest that are over make room first.
        max_bytes: about what their texts may take.

    Attributes:
        ended: those that somebody said to be over, to be taken out by the reader.
    """

    def __init__(self, *, max_episodes: int, max_bytes: int) -> None:
        """Start empty."""
        self.episodes: dict[str, Episode] = {}
        self.running: dict[str, Episode] = {}
        self.ended: list[Episode] = []
        self._tracks: dict[str, SequenceTracker] = {}
        self._evicted: dict[str, None] = {}
        self._max_episodes, self._max_bytes = max_episodes, max_bytes
        self._bytes = self._n_missing_evicted = self._n_awaited = 0
        self._in_order = True

    @property
    def n_missing(self) -> int:
        """Live items that did not come, also of episodes that had to make room."""
        return self._n_missing_evicted + sum(track.n_missing for track in self._tracks.values())

    def apply(self, run: EpisodeUpdate, node: str, boot: str) -> bool:
        """Take a run of live items of an episode; False when they cannot be any."""
        if (episode := self.episodes.get(run.episode_id)) is None:
            if not 0 < len(run.episode_id) <= MAX_ID_CHARS:
                return False
            if run.episode_id in self._evicted:
                return True
            episode = self._create(run.episode_id, run.at)
        track = self._tracks[run.episode_id]
        if episode.node is not node or track.boot is not boot:
            track.boot, episode.node = boot, clip_name(node)
        before, n_awaited, started_at, outcome = track.size, len(track.awaited), episode.started_at, episode.outcome
        track.max_awaited = min(MAX_AWAITED_PER_EPISODE, n_awaited + MAX_AWAITED - self._n_awaited)
        apply_update(episode, track, run)
        self._n_awaited += len(track.awaited) - n_awaited
        if track.size != before:
            self._bytes += track.size - before
        if episode.started_at is not started_at:
            self._in_order = self._in_order and episode.started_at == started_at
        if episode.outcome != outcome:
            self._mark_ended(episode)
        if len(self.episodes) > self._max_episodes + EPISODE_SLACK:
            self.enforce_limits()
        return True

    def apply_completed(self, event: EpisodeCompleted, at: datetime) -> bool:
        """Take the event of a finished episode; False when it cannot be one."""
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
        """Take an episode of another field runner, once."""
        if episode_id in self._evicted or episode_id in self.episodes:
            return
        episode = self._create(episode_id, at)
        episode.env, episode.model, episode.success = clip_name(event.env), clip_optional(event.model), event.success
        episode.reward, episode.rounds = clamp_finite(event.score), clamp_count(event.rounds)
        episode.duration_s = event.duration_sec
        mark_ended(episode, "success" if event.success else "failure")
        self._mark_ended(episode)

    def apply_stored(self, row: EpisodeRow) -> None:
        """An episode that runs here is stored already: it is over."""
        if (episode := self.running.get(row.episode_id)) is not None:
            episode.error_type = clip_optional(row.error_type)
            self._record_result(episode, row)

    def merge_file(self, episode: Episode, boot: str) -> bool:
        """Take the steps of a journal or a file, which count more than what came live; False for what has no id."""
        if not 0 < len(episode.episode_id) <= MAX_ID_CHARS:
            return False
        known = self.episodes.get(episode.episode_id) or self._create(episode.episode_id, episode.started_at)
        track = self._tracks[known.episode_id]
        track.boot, track.has_file, track.has_header = track.boot or boot, True, True
        for field in ("node", *HEADER_FIELDS):
            set_field(known, field, getattr(episode, field) or getattr(known, field))
        known.started_at, self._in_order = as_aware(episode.started_at), False
        known.reset_observation = episode.reset_observation or known.reset_observation
        known.spans = Spans(episode.spans.all) if episode.spans else known.spans
        by_index = {step.index: step for step in (*known.steps, *episode.steps)}
        known.steps = [by_index[index] for index in sorted(by_index)]
        self._add_bytes(track, BASE_BYTES + episode_size(known) - track.size)
        known.n_missing = count_missing_steps(known)
        if known.running:
            recompute_totals(known)
        if episode.outcome is not None:
            known.tokens, known.cost = episode.tokens, episode.cost
            known.error_type, known.error_message = (
                episode.error_type,
                clip_optional(episode.error_message, MAX_ERROR_CHARS),
            )
            known.error_traceback = clip_optional(episode.error_traceback, MAX_ERROR_CHARS)
            self._record_result(known, episode)
        return True

    def mark_interrupted(self, node: str, boot: str) -> bool:
        """The episodes that an earlier process of ``node`` played have been interrupted; whether there were any."""
        dead = [
            e for e in self.running.values() if e.node == node and self._tracks[e.episode_id].boot not in ("", boot)
        ]
        for episode in dead:
            mark_ended(episode, "interrupted")
            self._mark_ended(episode)
        return bool(dead)

    def assign_boot(self, node: str, boot: str) -> None:
        """Episodes of ``node`` that were read from files are played by this process of it."""
        for episode in self.running.values():
            track = self._tracks[episode.episode_id]
            if episode.node == node and not track.boot:
                track.boot = boot

    def enforce_limits(self) -> None:
        """Bring what was taken in order and within bounds."""
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
        self._tracks[episode_id] = SequenceTracker()
        self._bytes += BASE_BYTES
        return episode

    def _record_result(self, episode: Episode, told: EpisodeResult) -> None:
        record_result(episode, told)
        self._mark_ended(episode)

    def _mark_ended(self, episode: Episode) -> None:
        self.running.pop(episode.episode_id, None)
        self.ended.append(episode)

    def _add_bytes(self, track: SequenceTracker, by: int) -> None:
        track.size += by
        self._bytes += by

    def _eviction_order(self, n: int) -> list[Episode]:
        """The oldest of those that are over, then the oldest of all."""
        if n <= 0:
            return []
        over = list(islice((episode for episode in self.episodes.values() if not episode.running), n))
        running = (episode for episode in self.episodes.values() if episode.running)
        return [*over, *islice(running, n - len(over))]

    def _free_memory(self) -> None:
        """Forget what is over, but the newest; leave out messages; forget what runs."""
        newest = next(reversed(self.episodes.values()), None)
        while self._bytes > self._max_bytes:
            over = (each for each in self.episodes.values() if not each.running and each is not newest)
            if (episode := next(over, None)) is None:
                break
            self._evict(episode)
        for episode in self.episodes.values():
            if self._bytes <= self._max_bytes:
                return
            self._drop_messages(episode)
        while self._bytes > self._max_bytes and self.episodes:
            self._evict(next(iter(self.episodes.values())))

    def _drop_messages(self, episode: Episode) -> None:
        """Leave out messages, the oldest first, until there is room."""
        track = self._tracks[episode.episode_id]
        for place, step in enumerate(episode.steps):
            if self._bytes <= self._max_bytes:
                return
            episode.steps[place] = smaller = strip_messages(step)
            self._add_bytes(track, step_size(smaller) - step_size(step))
        episode.spans, episode.reset_observation = Spans(), []
        self._add_bytes(track, BASE_BYTES + episode_size(episode) - track.size)

    def _evict(self, episode: Episode) -> None:
        known = episode.episode_id
        self.episodes.pop(known)
        self.running.pop(known, None)
        track = self._tracks.pop(known)
        self._bytes -= track.size
        self._n_awaited -= len(track.awaited)
        self._n_missing_evicted += track.n_missing
        self._evicted[known] = None
        if len(self._evicted) > MAX_EVICTED_IDS:
            del self._evicted[next(iter(self._evicted))]
