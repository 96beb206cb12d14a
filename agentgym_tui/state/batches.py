"""Batches, whatever told of them: live progress, the node's list, the event at their end."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from agentgym_tui.state.limits import MAX_ID_CHARS, clamp_count, clip_name, clip_optional
from agentgym_tui.state.models import BatchRun, Episode
from runner.events.control import BatchState
from runner.events.durable import BatchCompleted
from runner.events.live import BatchProgress, EpisodeStarted

MAX_BATCHES: Final = 400
_ACTIVE: Final = frozenset({"running", "paused"})
_PENDING: Final = frozenset({"queued", "interrupted"})
_FINISHED: Final = frozenset({"completed", "cancelled"})


class BatchRegistry:
    """The newest batches, the newest last."""

    def __init__(self) -> None:
        """Start empty."""
        self.batches: dict[str, BatchRun] = {}
        self._latest_progress: dict[str, tuple[str, int]] = {}

    def active(self) -> BatchRun | None:
        """The newest that is played, paused ones included."""
        return next((batch for batch in reversed(self.batches.values()) if batch.status in _ACTIVE), None)

    def apply_episode_started(self, item: EpisodeStarted) -> None:
        """An episode of it begins."""
        if (batch := self._get(item.batch_id)) is not None:
            batch.env, batch.agent, batch.model = clip_name(item.env), clip_name(item.agent), clip_optional(item.model)
            batch.battery_id = clip_optional(item.battery_id)
            batch.status = "running" if batch.status in _PENDING else batch.status

    def apply_progress(self, item: BatchProgress, boot: str) -> None:
        """It is that far; what is older than what is known is left out."""
        if (batch := self._get(item.batch_id)) is None:
            return
        known_boot, seq = self._latest_progress.get(item.batch_id, ("", -1))
        if known_boot == boot and item.seq <= seq:
            return
        self._latest_progress[item.batch_id] = (boot, item.seq)
        batch.status = "running" if batch.status in _PENDING else batch.status
        batch.n_done, batch.n_planned = clamp_count(item.n_done), clamp_count(item.n_planned)
        batch.n_success, batch.mean_reward, batch.eta_s = clamp_count(item.n_success), item.mean_reward, item.eta_s
        batch.tokens, batch.cost = item.tokens, item.cost

    def apply_completed(self, event: BatchCompleted, at: datetime | None = None) -> None:
        """It is over."""
        if (batch := self._get(event.batch_id)) is None:
            return
        if batch.n_planned == 0 and event.success_rate is not None:
            batch.n_success = clamp_count(round(max(0.0, min(event.success_rate, 1.0)) * clamp_count(event.n_episodes)))
        batch.env, batch.agent, batch.model = clip_name(event.env), clip_name(event.agent), clip_optional(event.model)
        batch.battery_id, batch.status, batch.ended_at = clip_optional(event.battery_id), event.status, at
        batch.n_done, batch.mean_reward, batch.eta_s = clamp_count(event.n_episodes), event.mean_reward, None
        batch.n_planned = max(batch.n_planned, batch.n_done)
        batch.tokens, batch.cost = event.tokens, event.cost

    def apply_list(self, states: Iterable[BatchState]) -> None:
        """What their node says, the newest first: their order counts."""
        for state in reversed(list(states)[:MAX_BATCHES]):
            if (batch := self._get(state.batch_id)) is None:
                continue
            self.batches[state.batch_id] = self.batches.pop(state.batch_id)
            batch.env, batch.agent, batch.model = (
                clip_name(state.env),
                clip_name(state.agent),
                clip_optional(state.model),
            )
            batch.battery_id, batch.status = clip_optional(state.battery_id), state.status
            batch.n_done, batch.n_planned = clamp_count(state.n_done), clamp_count(state.n_planned)

    def update_paused(self, batch_id: str, episodes: Iterable[Episode]) -> None:
        """It is paused when all of its episodes that run are."""
        batch = self.batches.get(batch_id)
        if batch is None or batch.status not in _ACTIVE:
            return
        own = [episode.paused for episode in episodes if episode.batch_id == batch_id]
        batch.status = "paused" if own and all(own) else "running"

    def apply_episode_ended(self, episode: Episode) -> None:
        """One of its episodes is over; one that was interrupted has taken its batch with it."""
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
            over = (known for known, batch in self.batches.items() if batch.status in _FINISHED)
            oldest = next(over, next(iter(self.batches)))
            del self.batches[oldest]
            self._latest_progress.pop(oldest, None)
