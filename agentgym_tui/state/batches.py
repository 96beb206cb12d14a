"""Batches, whatever told of them: live progress, the node's list, the event at their end."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from agentgym_tui.state.limits import MAX_ID, count, name, optional
from agentgym_tui.state.models import BatchRun, Episode
from runner.events.control import BatchState
from runner.events.durable import BatchCompleted
from runner.events.live import BatchProgress, EpisodeStarted

MAX_BATCHES: Final = 400
_PLAYED: Final = frozenset({"running", "paused"})
_NOT_YET: Final = frozenset({"queued", "interrupted"})
_OVER: Final = frozenset({"completed", "cancelled"})


class BatchBook:
    """The newest batches, the newest last."""

    def __init__(self) -> None:
        """Start empty."""
        self.batches: dict[str, BatchRun] = {}
        self._told: dict[str, tuple[str, int]] = {}

    def active(self) -> BatchRun | None:
        """The newest that is played, paused ones included."""
        return next((batch for batch in reversed(self.batches.values()) if batch.status in _PLAYED), None)

    def started(self, item: EpisodeStarted) -> None:
        """An episode of it begins."""
        if (batch := self._get(item.batch_id)) is not None:
            batch.env, batch.agent, batch.model = name(item.env), name(item.agent), optional(item.model)
            batch.battery_id = optional(item.battery_id)
            batch.status = "running" if batch.status in _NOT_YET else batch.status

    def progressed(self, item: BatchProgress, boot: str) -> None:
        """It is that far; what is older than what is known is left out."""
        if (batch := self._get(item.batch_id)) is None:
            return
        known_boot, seq = self._told.get(item.batch_id, ("", -1))
        if known_boot == boot and item.seq <= seq:
            return
        self._told[item.batch_id] = (boot, item.seq)
        batch.status = "running" if batch.status in _NOT_YET else batch.status
        batch.n_done, batch.n_planned = count(item.n_done), count(item.n_planned)
        batch.n_success, batch.mean_reward, batch.eta_s = count(item.n_success), item.mean_reward, item.eta_s
        batch.tokens, batch.cost = item.tokens, item.cost

    def completed(self, event: BatchCompleted, at: datetime | None = None) -> None:
        """It is over."""
        if (batch := self._get(event.batch_id)) is None:
            return
        if batch.n_planned == 0 and event.success_rate is not None:
            batch.n_success = count(round(max(0.0, min(event.success_rate, 1.0)) * count(event.n_episodes)))
        batch.env, batch.agent, batch.model = name(event.env), name(event.agent), optional(event.model)
        batch.battery_id, batch.status, batch.ended_at = optional(event.battery_id), event.status, at
        batch.n_done, batch.mean_reward, batch.eta_s = count(event.n_episodes), event.mean_reward, None
        batch.n_planned = max(batch.n_planned, batch.n_done)
        batch.tokens, batch.cost = event.tokens, event.cost

    def listed(self, states: Iterable[BatchState]) -> None:
        """What their node says, the newest first: their order counts."""
        for state in reversed(list(states)[:MAX_BATCHES]):
            if (batch := self._get(state.batch_id)) is None:
                continue
            self.batches[state.batch_id] = self.batches.pop(state.batch_id)
            batch.env, batch.agent, batch.model = name(state.env), name(state.agent), optional(state.model)
            batch.battery_id, batch.status = optional(state.battery_id), state.status
            batch.n_done, batch.n_planned = count(state.n_done), count(state.n_planned)

    def paused(self, batch_id: str, episodes: Iterable[Episode]) -> None:
        """It is paused when all of its episodes that run are."""
        batch = self.batches.get(batch_id)
        if batch is None or batch.status not in _PLAYED:
            return
        own = [episode.paused for episode in episodes if episode.batch_id == batch_id]
        batch.status = "paused" if own and all(own) else "running"

    def ended(self, episode: Episode) -> None:
        """One of its episodes is over; one that was interrupted has taken its batch with it."""
        batch = self.batches.get(episode.batch_id)
        if batch is not None and episode.outcome == "interrupted" and batch.status in _PLAYED:
            batch.status = "interrupted"

    def _get(self, batch_id: str) -> BatchRun | None:
        if not batch_id or len(batch_id) > MAX_ID:
            return None
        if (batch := self.batches.get(batch_id)) is None:
            batch = self.batches[batch_id] = BatchRun(batch_id)
            self._trim()
        return batch

    def _trim(self) -> None:
        while len(self.batches) > MAX_BATCHES:
            over = (known for known, batch in self.batches.items() if batch.status in _OVER)
            oldest = next(over, next(iter(self.batches)))
            del self.batches[oldest]
            self._told.pop(oldest, None)
