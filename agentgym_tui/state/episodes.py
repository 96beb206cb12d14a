"""Registry of episodes, merged from live items, events, index rows and files that arrive in any order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
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
    apply_items,
    mark_ended,
    record_result,
    set_field,
)
from agentgym_tui.state.normalize import (
    MAX_ERROR_CHARS,
    MAX_ID_CHARS,
    as_aware,
    clip_name,
    clip_optional,
)
from agentgym_tui.state.steps import (
    count_missing_steps,
    drop_spans,
    episode_size,
    recompute_totals,
    step_size,
    strip_messages,
)
from runner.types import join_models

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from agentgym_tui.state.endpoints import EndpointRegistry
    from agentgym_tui.state.episode_reducer import EpisodeItem
    from runner.events.durable import EpisodeCompleted
    from runner.store.index_schema import EpisodeRow

EPISODE_SLACK: Final = 100
"""Number of episodes by which one message may exceed the limit before the oldest episodes are evicted."""

MAX_AWAITED: Final = 100_000
"""Largest number of missing sequence numbers listed for all episodes together."""

FREED_SHARE: Final = 1 / 64
"""Share of the memory limit that is freed beyond the limit, so that freeing memory is rare under a high load."""

MAX_CHECKED_NODES: Final = 1_000
"""Largest number of nodes of which the last check for interrupted episodes is remembered."""

MAX_EVICTED_IDS: Final = 20_000
"""Largest number of ids of evicted episodes that are remembered, so that their later items are not shown."""


class EpisodeRegistry:
    """The newest episodes, limited in number and in memory.

    Args:
        max_episodes: largest number of episodes; ended episodes are evicted before running episodes.
        max_bytes: approximate limit of the memory that all episodes take, in bytes.
        currency: returns the currency of their costs; "" where it is not known.

    Attributes:
        episodes: all kept episodes by id, the newest last.
        running: kept episodes without an outcome, by id.
        ended: episodes that have ended since the caller last cleared this list.
        first_currency: currency of the first episode that names one; "" until then.
        running_version: counter that grows with each change of which episodes run, in which environment, or are lost.
    """

    def __init__(self, *, max_episodes: int, max_bytes: int, currency: Callable[[], str] = str) -> None:
        self.episodes: dict[str, Episode] = {}
        self.running: dict[str, Episode] = {}
        self.ended: list[Episode] = []
        self._trackers: dict[str, SequenceTracker] = {}
        self._evicted: dict[str, bool] = {}
        self._checked_boots: dict[str, str] = {}
        self.first_currency, self._lost = "", set[str]()
        self._max_episodes, self._max_bytes, self._currency = max_episodes, max_bytes, currency
        self._bytes = self._n_missing_evicted = self._n_awaited = self.running_version = 0
        self._in_order = True
        self._by_batch: tuple[int, dict[str, list[Episode]]] = -1, {}

    @property
    def n_missing(self) -> int:
        """Number of live items that were sent and are not shown, because they did not arrive or were not kept.

        Items that a file of the episode replaces do not count.
        """
        return self._n_missing_evicted + sum(
            tracker.n_missing for tracker in self._trackers.values() if not tracker.has_file
        )

    def of_batch(self, batch_id: str, version: int) -> Sequence[Episode]:
        """Return the kept episodes of a batch, the newest last; ``version`` rises with each change of the episodes."""
        grouped_at, by_batch = self._by_batch
        if grouped_at != version:
            by_batch = defaultdict(list)
            for episode in self.episodes.values():
                by_batch[episode.batch_id].append(episode)
            self._by_batch = version, by_batch
        return by_batch.get(batch_id, [])

    def apply(self, items: Sequence[EpisodeItem], node: str, boot: str, endpoints: EndpointRegistry) -> bool:
        """Apply items to their episode, which is created where needed.

        Args:
            items: items of one episode and of one kind, at least one; those of an evicted episode are ignored, and
                count as missing if it was running.
            node: name of the node that sent the items.
            boot: id of the node process that sent the items.
            endpoints: updated by answers and steps of the episode.

        Returns:
            False if the episode id of the items is not valid.
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
        if episode.node is not node or tracker.boot is not boot:
            tracker.boot, episode.node = boot, clip_name(node)
            if self._checked_boots.get(node) != boot:
                self._checked_boots.pop(node, None)
        size, n_awaited = tracker.size, len(tracker.awaited)
        started_at, outcome, env = episode.started_at, episode.outcome, episode.env
        tracker.max_awaited = min(MAX_AWAITED_PER_EPISODE, n_awaited + MAX_AWAITED - self._n_awaited)
        apply_items(episode, tracker, items, endpoints)
        self.first_currency = self.first_currency or episode.currency
        episode.version += 1
        self._n_awaited += len(tracker.awaited) - n_awaited
        self._bytes += tracker.size - size
        if episode.started_at is not started_at:
            self._in_order = self._in_order and episode.started_at == started_at
        self.running_version += episode.env is not env
        if episode.outcome != outcome:
            self._on_ended(episode)
        if len(self.episodes) > self._max_episodes + EPISODE_SLACK:
            self.enforce_limits()
        return True

    def apply_completed(self, event: EpisodeCompleted, at: datetime) -> bool:
        """Record the result of an episode from its completion event.

        Args:
            event: the completion event.
            at: start time of the episode, used where the episode is not known.

        Returns:
            False if the episode id of the event is not valid.
        """
        if not 0 < len(event.episode_id) <= MAX_ID_CHARS:
            return False
        if event.episode_id in self._evicted:
            return True
        known = self.episodes.get(event.episode_id)
        episode = known or self._create(event.episode_id, at)
        if known is None or event.task_index is not None:
            episode.task_index = event.task_index
        for field in ("batch_id", "env", "agent", "model", "node", "profile"):
            set_field(episode, field, getattr(event, field) or getattr(episode, field))
        episode.tokens, episode.cost = event.tokens or episode.tokens, event.cost
        episode.currency = clip_name(event.currency or "") or episode.currency
        episode.agentgym_score = None if event.agentgym is None else event.agentgym.score
        self.first_currency = self.first_currency or episode.currency
        episode.reported_fallback = clip_optional(event.fallback)
        episode.reported_models = clip_optional(join_models(event.model, event.models)) if event.models else None
        self._record_result(episode, event)
        return True

    def apply_stored(self, row: EpisodeRow) -> None:
        """Record the result of a running episode from its index row; an index row exists only for an ended episode."""
        if (episode := self.running.get(row.episode_id)) is not None:
            episode.error_type = clip_optional(row.error_type)
            episode.reported_fallback = clip_optional(row.fallback)
            episode.reported_models = clip_optional(row.models)
            episode.reported_shape = clip_name(row.shape)
            self._record_result(episode, row)

    def merge_file(self, episode: Episode, boot: str) -> bool:
        """Merge an episode that was read from a journal or an episode file; the file takes precedence over live items.

        Args:
            episode: the episode that was read.
            boot: id of the current process of the episode's node; "" where it is not known.

        Returns:
            False if the episode id is not valid.
        """
        if not 0 < len(episode.episode_id) <= MAX_ID_CHARS:
            return False
        known = self.episodes.get(episode.episode_id) or self._create(episode.episode_id, episode.started_at)
        tracker = self._trackers[known.episode_id]
        tracker.boot, tracker.has_file, tracker.has_header = tracker.boot or boot, True, True
        for field in ("node", *HEADER_FIELDS):
            set_field(known, field, getattr(episode, field) or getattr(known, field))
        self._checked_boots.pop(known.node, None)
        known.currency = clip_name(episode.currency) or known.currency
        known.started_at, self._in_order = as_aware(episode.started_at), False
        self.running_version += 1
        known.reset_observation = episode.reset_observation or known.reset_observation
        known.reset_world = episode.reset_world or known.reset_world
        known.spans = Spans(episode.spans.all) if episode.spans else known.spans
        by_index = {step.index: step for step in (*known.steps, *episode.steps)}
        known.steps = [by_index[index] for index in sorted(by_index)]
        tracker.n_stripped = 0
        self._add_bytes(tracker, BASE_BYTES + episode_size(known) - tracker.size)
        known.n_missing = count_missing_steps(known)
        known.version += 1
        if known.running:
            recompute_totals(known)
        if episode.outcome is not None:
            known.tokens, known.cost = episode.tokens, episode.cost
            known.error_type = episode.error_type
            known.error_message = clip_optional(episode.error_message, MAX_ERROR_CHARS)
            known.error_traceback = clip_optional(episode.error_traceback, MAX_ERROR_CHARS)
            self._record_result(known, episode)
        return True

    def mark_lost(self, lost: set[str]) -> None:
        """Mark the running episodes whose nodes are ``lost``, and no others."""
        if lost or self._lost:  # else no episode has a lost node, and with many of them the walk is slow
            for episode in self.running.values():
                if episode.node_lost != (is_lost := episode.node in lost):
                    episode.node_lost, episode.version = is_lost, episode.version + 1
                    self.running_version += 1
        self._lost = lost

    def mark_interrupted(self, node: str, boot: str) -> bool:
        """Mark the running episodes of earlier processes of a node as interrupted.

        Args:
            node: name of the node.
            boot: id of the current process of the node.

        Returns:
            Whether any episode was marked.
        """
        if self._checked_boots.get(node) == boot:  # called for each message, for which a walk would be too slow
            return False
        if len(self._checked_boots) >= MAX_CHECKED_NODES:
            self._checked_boots.clear()
        self._checked_boots[node] = boot
        interrupted = [
            e for e in self.running.values() if e.node == node and self._trackers[e.episode_id].boot not in ("", boot)
        ]
        for episode in interrupted:
            mark_ended(episode, "interrupted")
            episode.reward = None  # its last steps may not have arrived; its event has the sum
            self._on_ended(episode)
        return bool(interrupted)

    def assign_boot(self, node: str, boot: str) -> None:
        """Assign a process id to those running episodes of a node that have none, because they were read from files."""
        for episode in self.running.values():
            tracker = self._trackers[episode.episode_id]
            if episode.node == node and not tracker.boot:
                tracker.boot = boot

    def enforce_limits(self) -> None:
        """Sort the episodes by start time and evict episodes that exceed the limits."""
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
        episode = self.episodes[episode_id] = self.running[episode_id] = Episode(
            episode_id, "", "", at, currency=self._currency()
        )
        self._evicted.pop(episode_id, None)
        self._trackers[episode_id] = SequenceTracker()
        self._bytes += BASE_BYTES
        self.running_version += 1
        return episode

    def _record_result(self, episode: Episode, result: EpisodeResult) -> None:
        record_result(episode, result)
        self._on_ended(episode)

    def _on_ended(self, episode: Episode) -> None:
        episode.version += 1
        self.running_version += 1
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
        """Free memory until a share of the limit is free.

        First evict ended episodes except the newest episode, then drop the messages of the remaining episodes, then
        evict the remaining episodes, the oldest first.
        """
        target = int(self._max_bytes * (1 - FREED_SHARE))
        newest = next(reversed(self.episodes.values()), None)
        for episode in [known for known in self.episodes.values() if not known.running and known is not newest]:
            if self._bytes <= target:
                return
            self._evict(episode)
        for episode in self.episodes.values():
            if self._bytes <= target:
                return
            self._drop_messages(episode, target)
        while self._bytes > target and self.episodes:
            self._evict(next(iter(self.episodes.values())))

    def _drop_messages(self, episode: Episode, target: int) -> None:
        """Drop messages of an episode, the oldest first, and finally its spans; stop when ``target`` bytes are left."""
        tracker = self._trackers[episode.episode_id]
        if tracker.n_stripped == len(episode.steps) and not (
            episode.spans or episode.reset_observation or episode.reset_world
        ):
            return  # as in most of the oldest episodes under a high load
        episode.version += 1
        while tracker.n_stripped < len(episode.steps):
            if self._bytes <= target:
                return
            step = episode.steps[tracker.n_stripped]
            episode.steps[tracker.n_stripped] = smaller = strip_messages(step)
            tracker.n_stripped += 1
            self._add_bytes(tracker, step_size(smaller) - step_size(step))
        self._add_bytes(tracker, -drop_spans(episode))

    def _evict(self, episode: Episode) -> None:
        episode_id = episode.episode_id
        self.episodes.pop(episode_id)
        self.running.pop(episode_id, None)
        tracker = self._trackers.pop(episode_id)
        self._bytes -= tracker.size
        self.running_version += 1
        self._n_awaited -= len(tracker.awaited)
        self._n_missing_evicted += 0 if tracker.has_file else tracker.n_missing
        self._by_batch = -1, {}  # else it would keep the episode in memory
        self._evicted[episode_id] = episode.running
        if len(self._evicted) > MAX_EVICTED_IDS:
            del self._evicted[next(iter(self._evicted))]
