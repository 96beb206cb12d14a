"""Registry of batches, merged from live progress items, the batch list of a node and completion events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from agentgym_tui.state.episode import Episode
from agentgym_tui.state.normalize import MAX_ID_CHARS, as_aware
from runner.events.control import BatchState
from runner.events.durable import BatchCompleted
from runner.events.live import EpisodeStarted, QueueChanged, WaitingBatch
from runner.types import BatchProgress, Tokens, WorkerCounts, join_models
from runner.util.clock import EPOCH

if TYPE_CHECKING:
    from agentgym_tui.state.nodes import NodeInfo

MAX_BATCHES: Final = 400
ACTIVE: Final = frozenset({"running", "paused"})
UNFINISHED: Final = ACTIVE | {"queued"}
_PENDING: Final = frozenset({"queued", "interrupted"})
_FINISHED: Final = frozenset({"completed", "cancelled"})
ENDED: Final = _FINISHED | {"interrupted"}  # they do not play and do not wait
MAX_LISTED: Final = 200
"""Batches that have started which a node lists, the newest ones; it may know older ones."""
_PROGRESS_FIELDS: Final = (
    *("n_done", "n_planned", "n_success", "mean_reward", "eta_s", "tokens", "cost", "waiting_for", "waiting_s"),
    *("workers", "interruption"),
)


class BatchRun(msgspec.Struct):
    batch_id: str
    env: str = ""
    battery_id: str | None = None
    agent: str = ""
    model: str | None = None
    status: str = "running"
    n_done: int = 0
    n_planned: int = 0
    n_rated: int = 0  # ended episodes that count for the success rate
    n_success: int = 0
    n_errors: int = 0
    mean_reward: float | None = None
    eta_s: float | None = None
    eta_at_s: float | None = None  # when the estimate arrived, by the console's monotonic clock
    tokens: Tokens | None = None
    cost: float | None = None
    currency: str = ""
    waiting_for: str | None = None  # the server that it waits for, and its problem
    waiting_s: float | None = None  # left until it is interrupted because its server is gone
    interruption: str | None = None  # why it was interrupted, if not on request
    workers: WorkerCounts | None = None  # None if the node's own process plays
    ended_at: datetime | None = None  # None where no stream stored its event, as for ``published_at``
    published_at: datetime | None = None
    position: int | None = None  # number of batches that wait before it
    is_held: bool = False  # waits until it is resumed
    node_paused: bool = False  # the node reports all of its episodes as paused
    started_at: datetime | None = None  # of its first known episode
    has_totals: bool = False  # its stored episodes were summed
    node: str = ""
    has_end_event: bool = False  # so its values are final
    reported_models: str | None = None  # from its event or its stored episodes

    @property
    def models(self) -> str | None:
        return self.reported_models or self.model

    @property
    def duration_s(self) -> float | None:
        """From its first episode to its end."""
        if self.started_at is None or self.ended_at is None:
            return None
        return max((self.ended_at - self.started_at).total_seconds(), 0.0)


class BatchTotals(NamedTuple):
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


class BatchRegistry:
    """Batches by id, the newest last; finished ones are evicted first, then those that start last."""

    def __init__(self, now: Callable[[], float], nodes: Mapping[str, NodeInfo]) -> None:
        self._now, self._nodes = now, nodes
        self.batches: dict[str, BatchRun] = {}
        self._latest_progress: dict[str, tuple[str, int]] = {}
        self._listed: set[str] = set()
        self._oldest_listed = "~"  # after all ids, until the node has listed its batches

    def set_listed(self, states: Sequence[BatchState], *, is_all: bool = False) -> None:
        """Remember which batches are in the node's queue; ``is_all``: the node lists no other ones."""
        self._listed = (self._listed | {state.batch_id for state in states}) & self.batches.keys()
        if is_all:
            started = [state.batch_id for state in states if state.status != "queued"]
            self._oldest_listed = min(started) if len(started) >= MAX_LISTED else ""

    def is_listed(self, batch: BatchRun) -> bool:
        """Return whether the node may have a batch in its queue; not one that a command without a node plays."""
        return batch.batch_id in self._listed or batch.batch_id < self._oldest_listed

    @property
    def n_waiting(self) -> int:
        n_listed = sum(batch.status == "queued" for batch in self.batches.values())
        return max(n_listed, sum(node.n_waiting for node in self._nodes.values() if node.is_present))

    def active(self) -> BatchRun | None:
        return next((batch for batch in reversed(self.batches.values()) if batch.status in ACTIVE), None)

    def interrupted(self) -> BatchRun | None:
        """Return the newest batch if it was interrupted, for a known reason or by the end of its node."""
        newest = next(reversed(self.batches.values()), None)
        return newest if newest is not None and newest.status == "interrupted" else None

    def apply_episode_started(self, item: EpisodeStarted, node: str) -> None:
        if (batch := self._get(item.batch_id)) is not None:
            batch.node = node
            _describe(batch, item)
            batch.status = "running" if batch.status in _PENDING and not batch.has_end_event else batch.status
            batch.started_at = min(filter(None, (batch.started_at, item.at)))

    def apply_progress(self, item: BatchProgress, boot: str, node: str) -> None:
        """Ignore an item that is older than the last one of the process ``boot``, or than the end of the batch."""
        if (batch := self._get(item.batch_id)) is None or batch.has_end_event or batch.status in _FINISHED:
            return
        known_boot, seq = self._latest_progress.get(item.batch_id, ("", -1))
        if known_boot == boot and item.seq <= seq:
            return
        self._latest_progress[item.batch_id] = (boot, item.seq)
        for field in _PROGRESS_FIELDS:
            setattr(batch, field, getattr(item, field))
        batch.node, batch.eta_at_s, batch.n_errors = node, self._now(), item.errors
        batch.n_rated = item.n_done if item.n_rated is None else item.n_rated
        batch.node_paused = bool(item.paused)
        batch.status = "running" if batch.status in _PENDING else batch.status
        batch.status = "paused" if batch.node_paused and batch.status == "running" else batch.status
        if item.interrupted and batch.status in ACTIVE:
            batch.status, batch.eta_s = "interrupted", None

    def apply_completed(
        self, event: BatchCompleted, published_at: datetime | None = None, sent_at: datetime | None = None
    ) -> None:
        """A stream stored the event ``published_at``, maybe long after the end, ``sent_at`` by the node's own clock."""
        if (batch := self._get(event.batch_id)) is None:
            return
        batch.has_end_event = True
        if event.n_rated is not None or batch.n_planned == 0:
            n_scored = 0 if event.success_rate is None else event.n_episodes
            batch.n_rated = n_scored if event.n_rated is None else event.n_rated
            batch.n_success = round(min(event.success_rate or 0.0, 1.0) * batch.n_rated)
        batch.n_errors = batch.n_errors if event.n_errors is None else event.n_errors
        for field in ("agent", "node", "model", "battery_id"):
            setattr(batch, field, getattr(event, field) or getattr(batch, field))
        batch.env, batch.status, batch.published_at = event.env, event.status, published_at
        batch.ended_at = published_at and min(published_at, as_aware(sent_at or published_at))
        batch.n_done, batch.mean_reward, batch.eta_s = event.n_episodes, event.mean_reward, None
        batch.n_planned = max(batch.n_planned, batch.n_done, event.n_planned or 0)
        batch.tokens, batch.cost, batch.currency = event.tokens, event.cost, event.currency or ""
        batch.reported_models = join_models(event.model, event.models)
        batch.waiting_for = batch.waiting_s = batch.interruption = None

    def apply_list(self, states: Iterable[BatchState], *, is_new: bool = False) -> None:
        """Update batches from a reply, the newest first; new ones are not all of the front of the queue."""
        n_waiting = 0
        for state in reversed(list(states)[:MAX_BATCHES]):
            if (batch := self._get(state.batch_id)) is None:
                continue
            self.batches[state.batch_id] = self.batches.pop(state.batch_id)
            if batch.has_end_event:  # the reply may be older
                continue
            _describe(batch, state)
            for field in ("status", "n_done", "n_planned", "waiting_for", "waiting_s", "interruption"):
                setattr(batch, field, getattr(state, field))
            if state.status != "queued":
                batch.position = None
            elif not is_new:  # else an item of the queue may have set it before this reply
                batch.position = n_waiting
            batch.is_held, batch.node_paused = state.paused, state.status == "paused"
            n_waiting += state.status == "queued"

    def add_older(self, states: Sequence[BatchState]) -> None:
        """Add batches, the newest first, before those that are known; these stay as they are."""
        known = dict(self.batches)
        self.apply_list(state for state in states if state.batch_id not in known)
        for batch_id in filter(self.batches.__contains__, known):
            self.batches[batch_id] = self.batches.pop(batch_id)

    def apply_queue(self, item: QueueChanged, node: str) -> None:
        """Add the batches that wait, and set their positions; a batch that has started or ended stays."""
        for position, waiting in enumerate(item.batches):
            is_new = waiting.batch_id not in self.batches
            batch = self._get(waiting.batch_id)
            if batch is None or not (is_new or batch.status == "queued"):  # the item may be of the stream's history
                continue
            _describe(batch, waiting)
            batch.n_done, batch.n_planned = waiting.n_done, waiting.n_planned
            batch.status, batch.position, batch.is_held = "queued", position, waiting.paused
            batch.node = node

    def without_totals(self) -> list[str]:
        stopped = (each for each in self.batches.values() if each.status in ENDED)
        return [each.batch_id for each in stopped if each.n_done and each.mean_reward is None and not each.has_totals]

    def apply_totals(self, batch_ids: Iterable[str], totals: Iterable[BatchTotals]) -> None:
        """Complete batches that ended while the console did not follow them; those without episodes lack a sum."""
        for batch_id in batch_ids:
            if (summed := self.batches.get(batch_id)) is not None:
                summed.has_totals = True
        for total in totals:
            batch = self.batches.get(total.batch_id)
            if batch is None or batch.status in ACTIVE:
                continue
            batch.started_at = batch.started_at or (total.started_at and as_aware(total.started_at))
            if batch.status in _FINISHED:
                batch.ended_at = batch.ended_at or (total.ended_at and as_aware(total.ended_at))
            if batch.mean_reward is None:
                for field in ("n_rated", "n_success", "n_errors", "mean_reward", "tokens", "cost"):
                    setattr(batch, field, getattr(total, field))
                batch.reported_models = join_models(batch.model, total.models)

    def newest_ended(self) -> BatchRun | None:
        ended = [each for each in self.batches.values() if each.status in _FINISHED]
        return max(ended, key=lambda each: each.ended_at or EPOCH, default=None)

    def update_paused(self, batch_id: str, episodes: Iterable[Episode]) -> None:
        """An active batch is paused where it or all of its running episodes are."""
        batch = self.batches.get(batch_id)
        if batch is None or batch.status not in ACTIVE:
            return
        paused = [episode.paused for episode in episodes if episode.batch_id == batch_id]
        batch.status = "paused" if batch.node_paused or (paused and all(paused)) else "running"

    def apply_episode_ended(self, episode: Episode) -> None:
        """With an interrupted episode, its active batch is interrupted."""
        batch = self.batches.get(episode.batch_id)
        if batch is not None and episode.outcome == "interrupted" and batch.status in ACTIVE:
            batch.status = "interrupted"

    def _get(self, batch_id: str) -> BatchRun | None:
        if not batch_id or len(batch_id) > MAX_ID_CHARS:
            return None
        if (batch := self.batches.get(batch_id)) is None:
            batch = self.batches[batch_id] = BatchRun(batch_id)
            while len(self.batches) > MAX_BATCHES:
                finished = (id for id, each in self.batches.items() if each.status in _FINISHED)
                queued = (id for id, each in reversed(self.batches.items()) if each.status == "queued")
                evicted = next(finished, None) or next(queued, None) or next(iter(self.batches))
                del self.batches[evicted]
                self._latest_progress.pop(evicted, None)
        return batch


def _describe(batch: BatchRun, item: EpisodeStarted | BatchState | WaitingBatch) -> None:
    batch.env, batch.agent, batch.model, batch.battery_id = item.env, item.agent, item.model, item.battery_id


def sum_costs(costs: Iterable[float | None]) -> float | None:
    """Add the costs that are known; None if none is."""
    known = [cost for cost in costs if cost is not None]
    return sum(known) if known else None


def batch_currency(batches: Iterable[BatchRun], default: str) -> str:
    return next((batch.currency for batch in batches if batch.currency), default)
