"""The free slots of a batch, and its lost episodes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

import msgspec

from runner.batch.spec import BatchSpec, PlannedEpisode
from runner.pool.protocol import Slot, WorkerChange, WorkerLost, WorkerPool
from runner.util.resources import describe_shortage

logger = logging.getLogger(__name__)

MAX_REPLAYS = 2
"""Maximum number of times that a planned episode is played again after its worker was lost."""


class SlotReady(msgspec.Struct, frozen=True):
    """Message from a pool to its batch: a slot has become usable."""

    slot: Slot


class SlotTable:
    """Keeps as many slots as the batch needs, at most its concurrency; only the thread of the batch calls its methods.

    Args:
        pool: starts the slots.
        batch_id: id of the batch, for the log.
        concurrency: maximum number of slots.
        on_change: receives the slots that become usable later, for ``add_late``, and the states of worker processes,
            on any thread.
    """

    def __init__(
        self,
        pool: WorkerPool,
        batch_id: str,
        concurrency: int,
        on_change: Callable[[SlotReady | WorkerChange], object],
    ) -> None:
        """Open the pool."""
        self._pool = pool
        self._batch_id = batch_id
        self._limit = concurrency
        self._idle: list[Slot] = []
        self._n_late = 0
        self._was_filled = False
        pool.open(lambda slot: on_change(SlotReady(slot)), on_change)

    def fill(self, n_episodes: int, n_playing: int) -> str | None:
        """Start slots, so that there are as many as episodes that are playing or waiting.

        Args:
            n_episodes: number of episodes that are playing or waiting.
            n_playing: number of slots that are playing.

        Returns:
            Why the batch cannot continue: no slot could be started, or a lost one could not be replaced; else None.
        """
        self._idle = [slot for slot in self._idle if slot.usable]
        n_missing = min(self._limit, n_episodes) - len(self._idle) - n_playing - self._n_late
        if n_missing <= 0:
            return self._pool.failure
        started, shortage = self._pool.start_slots(n_missing)
        self._idle += started
        at_least, self._was_filled = n_missing if self._was_filled else 1, True
        if shortage is None:
            self._n_late += n_missing - len(started)
            return self._pool.failure
        text = f"concurrency lowered from {n_missing} to {len(started)}: {describe_shortage(shortage)}"
        logger.warning("batch %s: %s", self._batch_id, text)
        self._limit = len(self._idle) + n_playing + self._n_late
        return text if len(started) < at_least else None

    def add(self, slot: Slot) -> None:
        """Add a slot whose episode has ended."""
        if slot.usable:
            self._idle.append(slot)

    def add_late(self, slot: Slot) -> None:
        """Add a slot that has become usable."""
        self._n_late -= 1
        self.add(slot)

    def take(self) -> Slot | None:
        """Remove and return a free slot; None if there is none."""
        while self._idle:
            if (slot := self._idle.pop()).usable:
                return slot
        return None

    def close(self) -> None:
        """End all slots, and their workers."""
        for slot in self._idle:
            slot.close()
        self._pool.close()


class LostEpisodes:
    """Counts the episodes whose workers were lost, and decides which of them are played again."""

    def __init__(self, spec: BatchSpec) -> None:
        """Start without losses."""
        self._replays = spec.lost_episodes == "replay"
        self._n_losses: Counter[PlannedEpisode] = Counter()
        self._n_left = 0
        self._last = ""

    def starts_again(self, planned: PlannedEpisode, lost: WorkerLost) -> bool:
        """Count a loss; return whether the episode is played again."""
        self._n_losses[planned] += 1
        starts_again = self._replays and self._n_losses[planned] <= MAX_REPLAYS
        if not starts_again:
            self._n_left += 1
            self._last = str(lost)
        return starts_again

    @property
    def interruption(self) -> str | None:
        """Why the batch is not complete: episodes stay interrupted; None if there are none."""
        if not self._n_left:
            return None
        episodes = "1 episode was" if self._n_left == 1 else f"{self._n_left} episodes were"
        return f"{episodes} interrupted with a lost worker; the last one: {self._last}"
