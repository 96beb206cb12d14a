"""Registry of batches, merged from live progress items, the batch list of a node and completion events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from agentgym_tui.state.data_model import BatchRun, Episode
from agentgym_tui.state.normalize import (
    MAX_CAUSE_CHARS,
    MAX_ID_CHARS,
    as_aware,
    clamp_count,
    clamp_finite,
    clamp_workers,
    clip_name,
    clip_optional,
)
from runner.events.control import BatchState
from runner.events.durable import BatchCompleted
from runner.events.live import EpisodeStarted, QueueChanged
from runner.types import BatchProgress, Tokens, join_models


class BatchTotals(NamedTuple):
    """Sums over the stored episodes of a batch, and the times of the first start and the last end."""

    batch_id: str
    n_rated: int
    n_success: int
    n_errors: int
    mean_reward: float | None
    tokens: Tokens
    cost: float | None
    models: list[str]
    started_at: datetime | None
    ended_at: datetime | None


MAX_BATCHES: Final = 400
_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ACTIVE: Final = frozenset({"running", "paused"})
_PENDING: Final = frozenset({"queued", "interrupted"})
_FINISHED: Final = frozenset({"completed", "cancelled"})
ENDED: Final = _FINISHED | {"interrupted"}
"""Statuses of batches that do not play and do not wait."""


class BatchRegistry:
    """Up to ``MAX_BATCHES`` batches by id, the newest last.

    Finished batches are evicted first, then those that start last.

    Args:
        now: returns the time of the console's monotonic clock in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.batches: dict[str, BatchRun] = {}
        self._latest_progress: dict[str, tuple[str, int]] = {}
        self._n_waiting: dict[str, int] = {}

    @property
    def n_waiting(self) -> int:
        """Number of batches that wait, including those that are not listed because they are too many."""
        n_listed = sum(batch.status == "queued" for batch in self.batches.values())
        return max(n_listed, clamp_count(sum(self._n_waiting.values())))

    def active(self) -> BatchRun | None:
        """Return the newest batch that is running or paused."""
        return next((batch for batch in reversed(self.batches.values()) if batch.status in _ACTIVE), None)

    def interrupted(self) -> BatchRun | None:
        """Return the newest batch if it was interrupted for a known reason."""
        newest = next(reversed(self.batches.values()), None)
        return newest if newest is not None and newest.status == "interrupted" and newest.interruption else None

    def apply_episode_started(self, item: EpisodeStarted, node: str) -> None:
        """Copy environment, agent and model of a started episode to its batch, and mark a waiting batch as running."""
        if (batch := self._get(item.batch_id)) is not None:
            batch.node = node
            batch.env, batch.agent, batch.model = clip_name(item.env), clip_name(item.agent), clip_optional(item.model)
            batch.battery_id = clip_optional(item.battery_id)
            batch.status = "running" if batch.status in _PENDING and not batch.has_end_event else batch.status
            batch.started_at = min(filter(None, (batch.started_at, item.at)))

    def apply_progress(self, item: BatchProgress, boot: str, node: str) -> None:
        """Update a batch from a progress item; ignore one that is older than the last one or the end of the batch.

        Args:
            item: the progress item; items of one process are ordered by ``item.seq``.
            boot: id of the node process that sent the item.
            node: name of the node.
        """
        if (batch := self._get(item.batch_id)) is None or batch.has_end_event or batch.status in _FINISHED:
            return
        known_boot, seq = self._latest_progress.get(item.batch_id, ("", -1))
        if known_boot == boot and item.seq <= seq:
            return
        self._latest_progress[item.batch_id] = (boot, item.seq)
        batch.node = node
        batch.status = "running" if batch.status in _PENDING else batch.status
        batch.n_done, batch.n_planned = clamp_count(item.n_done), clamp_count(item.n_planned)
        batch.n_success, batch.mean_reward, batch.eta_s = clamp_count(item.n_success), item.mean_reward, item.eta_s
        batch.eta_at_s = self._now()
        batch.n_rated = clamp_count(item.n_done if item.n_rated is None else item.n_rated)
        batch.n_errors, batch.tokens, batch.cost = clamp_count(item.errors), item.tokens, item.cost
        batch.waiting_for, batch.waiting_s = clip_optional(item.waiting_for), item.waiting_s
        batch.node_paused = bool(item.paused)
        batch.status = "paused" if batch.node_paused and batch.status == "running" else batch.status
        batch.workers = clamp_workers(item.workers)
        batch.interruption = clip_optional(item.interruption, MAX_CAUSE_CHARS)
        if item.interrupted and batch.status in _ACTIVE:
            batch.status, batch.eta_s = "interrupted", None

    def apply_completed(
        self, event: BatchCompleted, published_at: datetime | None = None, sent_at: datetime | None = None
    ) -> None:
        """Set the final status and results of a batch from its completion event.

        Args:
            event: the completion event.
            published_at: when a stream stored the event, which may be long after the end; None if no stream did.
            sent_at: when the node recorded the end, by its own clock; None if the event does not have it.
        """
        if (batch := self._get(event.batch_id)) is None:
            return
        batch.has_end_event = True
        if event.n_rated is not None or batch.n_planned == 0:
            n_scored = 0 if event.success_rate is None else event.n_episodes
            batch.n_rated = clamp_count(n_scored if event.n_rated is None else event.n_rated)
            batch.n_success = round(max(0.0, min(event.success_rate or 0.0, 1.0)) * batch.n_rated)
        if event.n_errors is not None:
            batch.n_errors = clamp_count(event.n_errors)
        batch.env, batch.agent = clip_name(event.env), clip_name(event.agent or batch.agent)
        batch.node, batch.model = clip_name(event.node or batch.node), clip_optional(event.model or batch.model)
        batch.battery_id = clip_optional(event.battery_id or batch.battery_id)
        batch.status, batch.published_at = event.status, published_at
        batch.ended_at = published_at and min(as_aware(published_at), sent_at or as_aware(published_at))
        batch.n_done, batch.mean_reward, batch.eta_s = clamp_count(event.n_episodes), event.mean_reward, None
        batch.n_planned = max(batch.n_planned, batch.n_done, clamp_count(event.n_planned or 0))
        batch.tokens, batch.cost = event.tokens, event.cost
        batch.currency = clip_optional(event.currency) or ""
        batch.reported_models = clip_optional(join_models(event.model, event.models))
        batch.waiting_for = batch.waiting_s = batch.interruption = None

    def set_n_waiting(self, node: str, n_waiting: int | None) -> None:
        """Set the number of batches that wait on the only node; None if it did not report the number."""
        self._n_waiting = {} if n_waiting is None else {node: n_waiting}

    def apply_list(self, states: Iterable[BatchState], *, is_new: bool = False) -> None:
        """Update batches from a reply of a node.

        Args:
            states: the batches, the newest first.
            is_new: whether these are batches that were just added to the queue, instead of all of its front.
        """
        n_waiting = 0
        for state in reversed(list(states)[:MAX_BATCHES]):
            if (batch := self._get(state.batch_id)) is None:
                continue
            self.batches[state.batch_id] = self.batches.pop(state.batch_id)
            if batch.has_end_event:  # the reply may be older
                continue
            batch.env, batch.agent, batch.model = (
                clip_name(state.env),
                clip_name(state.agent),
                clip_optional(state.model),
            )
            batch.battery_id, batch.status = clip_optional(state.battery_id), state.status
            batch.n_done, batch.n_planned = clamp_count(state.n_done), clamp_count(state.n_planned)
            batch.waiting_for, batch.waiting_s = clip_optional(state.waiting_for), state.waiting_s
            batch.interruption = clip_optional(state.interruption, MAX_CAUSE_CHARS)
            if state.status != "queued":
                batch.position = None
            elif not is_new:  # else an item of the queue may have set it before this reply
                batch.position = n_waiting
            batch.is_held, batch.node_paused = state.paused, state.status == "paused"
            n_waiting += state.status == "queued"

    def add_older(self, states: Sequence[BatchState]) -> None:
        """Add batches, the newest first, before those that are known; a known one stays as it is."""
        known = dict(self.batches)
        self.apply_list(state for state in states if state.batch_id not in known)
        for batch_id in known:
            if batch_id in self.batches:
                self.batches[batch_id] = self.batches.pop(batch_id)

    def apply_queue(self, item: QueueChanged, node: str) -> None:
        """Add the batches that wait on a node, and set their positions; a batch that has started or ended stays."""
        self._n_waiting[node] = item.n_waiting
        for position, waiting in enumerate(item.batches[:MAX_BATCHES]):
            is_new = waiting.batch_id not in self.batches
            batch = self._get(waiting.batch_id)
            if batch is None or not (is_new or batch.status == "queued"):  # the item may be of the stream's history
                continue
            batch.env, batch.agent = clip_name(waiting.env), clip_name(waiting.agent)
            batch.model, batch.battery_id = clip_optional(waiting.model), clip_optional(waiting.battery_id)
            batch.n_done, batch.n_planned = clamp_count(waiting.n_done), clamp_count(waiting.n_planned)
            batch.status, batch.position, batch.is_held = "queued", position, waiting.paused
            batch.node = node

    def without_totals(self) -> list[str]:
        """Return the ids of the batches that have ended while the console did not follow them."""
        stopped = (each for each in self.batches.values() if each.status in ENDED)
        return [each.batch_id for each in stopped if each.n_done and each.mean_reward is None and not each.has_totals]

    def apply_totals(self, batch_ids: Iterable[str], totals: Iterable[BatchTotals]) -> None:
        """Complete batches that have ended while the console did not follow them.

        Args:
            batch_ids: the batches whose episodes were summed.
            totals: the sums; without those of batches that have no stored episode.
        """
        for batch_id in batch_ids:
            if (summed := self.batches.get(batch_id)) is not None:
                summed.has_totals = True
        for total in totals:
            batch = self.batches.get(total.batch_id)
            if batch is None or batch.status in _ACTIVE:
                continue
            batch.started_at = batch.started_at or total.started_at
            batch.ended_at = batch.ended_at or (total.ended_at if batch.status in _FINISHED else None)
            if batch.mean_reward is None:
                batch.n_rated, batch.n_success, batch.n_errors = total.n_rated, total.n_success, total.n_errors
                batch.mean_reward = total.mean_reward
                batch.tokens, batch.cost = total.tokens, total.cost
                batch.reported_models = clip_optional(join_models(batch.model, total.models))

    def newest_ended(self) -> BatchRun | None:
        """Return the batch that ended last, as far as the times are known; None if none has ended."""
        ended = [each for each in self.batches.values() if each.status in _FINISHED]
        return max(ended, key=lambda each: as_aware(each.ended_at or _LONG_AGO), default=None)

    def update_paused(self, batch_id: str, episodes: Iterable[Episode]) -> None:
        """Mark an active batch as paused where it or all of its running episodes are paused, else as running."""
        batch = self.batches.get(batch_id)
        if batch is None or batch.status not in _ACTIVE:
            return
        paused = [episode.paused for episode in episodes if episode.batch_id == batch_id]
        batch.status = "paused" if batch.node_paused or (paused and all(paused)) else "running"

    def apply_episode_ended(self, episode: Episode) -> None:
        """Mark the active batch of an ended episode as interrupted where the episode was interrupted."""
        batch = self.batches.get(episode.batch_id)
        if batch is not None and episode.outcome == "interrupted" and batch.status in _ACTIVE:
            batch.status = "interrupted"

    def _get(self, batch_id: str) -> BatchRun | None:
        if not batch_id or len(batch_id) > MAX_ID_CHARS:
            return None
        if (batch := self.batches.get(batch_id)) is None:
            batch = self.batches[batch_id] = BatchRun(batch_id)
            self._trim()
        return batch

    def _trim(self) -> None:
        while len(self.batches) > MAX_BATCHES:
            finished = (batch_id for batch_id, batch in self.batches.items() if batch.status in _FINISHED)
            queued = (batch_id for batch_id, batch in reversed(self.batches.items()) if batch.status == "queued")
            evicted = next(finished, None) or next(queued, None) or next(iter(self.batches))
            del self.batches[evicted]
            self._latest_progress.pop(evicted, None)


def batch_currency(batches: Iterable[BatchRun], default: str) -> str:
    """Return the currency of the costs of batches: the first that one of them names, else ``default``."""
    return next((batch.currency for batch in batches if batch.currency), default)


def usage_with(batch: BatchRun, episodes: Sequence[Episode]) -> tuple[Tokens, float | None]:
    """Return the tokens and the cost of a batch, including its running episodes.

    The node reports totals of the ended episodes; the known steps of running episodes are added. The cost is None
    where no cost is known.

    Args:
        batch: the batch.
        episodes: its known episodes.
    """
    counted = [each for each in episodes if each.running or batch.tokens is None]
    costs = [cost for cost in (batch.cost, *(each.cost for each in counted)) if cost is not None]
    tokens = sum((each.tokens for each in counted), batch.tokens or Tokens())
    return tokens, clamp_finite(sum(costs)) if costs else None
