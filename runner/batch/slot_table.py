"""The free slots of a batch, and its lost episodes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator

import msgspec

from runner.batch.episode_queue import EpisodeQueue
from runner.batch.running_episode import RunningEpisode
from runner.batch.spec import BatchSpec, PlannedEpisode
from runner.pool.protocol import Slot, WorkerChange, WorkerLost, WorkerPool
from runner.util.resources import describe_shortage

logger = logging.getLogger(__name__)

MAX_REPLAYS = 2
"""Maximum number of times that a planned episode is played again after a worker was lost that played it alone."""
MAX_SHARED_LOSSES = 2
"""Number of lost workers that an episode shared with others, any of which may have ended them; then it plays alone."""


class SlotReady(msgspec.Struct, frozen=True):
    slot: Slot


class SlotTable:
    """Keeps as many slots as the batch needs, at most its concurrency; only the thread of the batch calls its methods.

    ``on_change`` receives, on any thread, the slots that become usable later, for ``add_late``, and the states of
    worker processes.
    """

    def __init__(
        self,
        pool: WorkerPool,
        batch_id: str,
        concurrency: int,
        on_change: Callable[[SlotReady | WorkerChange], object],
    ) -> None:
        self._pool = pool
        self._batch_id = batch_id
        self._limit = concurrency
        self._idle: list[Slot] = []
        self._idle_alone: list[Slot] = []
        self._alone: set[Slot] = set()
        self._n_late = 0
        self._was_filled = False
        pool.open(lambda slot: on_change(SlotReady(slot)), on_change)

    def fill(self, waiting: EpisodeQueue, n_playing: int) -> str | None:
        """Start slots, so that there are as many as episodes that are playing or waiting.

        Return why the batch cannot continue: no slot could be started, or a lost one could not be replaced; else None.
        """
        self._idle = [slot for slot in self._idle if slot.usable]
        n_episodes = len(waiting) - waiting.n_alone + n_playing
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
        if slot.usable:
            (self._idle_alone if slot in self._alone else self._idle).append(slot)
        else:
            self._alone.discard(slot)

    def add_late(self, slot: Slot) -> None:
        self._n_late -= 1
        self.add(slot)

    def assign(
        self, waiting: EpisodeQueue, n_playing: int
    ) -> Iterator[tuple[Slot, PlannedEpisode, RunningEpisode | None]]:
        """Yield free slots with the episodes to start on them, as ``EpisodeQueue.pop`` returns them."""
        n_free = self._limit - n_playing
        while n_free > 0 and waiting.n_alone and (slot := self._take_alone()) is not None:
            yield slot, waiting.pop_alone(), None
            n_free -= 1
        while n_free > 0 and waiting.can_start and (slot := _take_usable(self._idle)) is not None:
            yield slot, *waiting.pop()
            n_free -= 1

    def _take_alone(self) -> Slot | None:
        """Remove and return a free slot whose worker has no other one, or any if the pool starts none of this kind."""
        self._alone = {slot for slot in self._alone if slot.usable}
        if (slot := _take_usable(self._idle_alone) or self._pool.start_alone()) is None:
            return None if self._alone else _take_usable(self._idle)
        self._alone.add(slot)
        return slot

    def close(self) -> None:
        for slot in (*self._idle, *self._idle_alone):
            slot.close()
        self._pool.close()


def _take_usable(slots: list[Slot]) -> Slot | None:
    while slots:
        if (slot := slots.pop()).usable:
            return slot
    return None


class LostEpisodes:
    """Counts the episodes whose workers were lost, and decides which of them are played again, and which alone.

    Which of its episodes ended a worker is unknown. After ``MAX_SHARED_LOSSES`` an episode plays alone, where a loss is
    its own; so an episode that ends its worker every time stays interrupted, and not those that played beside it.
    """

    def __init__(self, spec: BatchSpec) -> None:
        self._replays = spec.lost_episodes == "replay"
        self._n_alone: Counter[PlannedEpisode] = Counter()
        self._n_shared: Counter[PlannedEpisode] = Counter()
        self._n_left = 0
        self._last = ""

    def starts_again(self, planned: PlannedEpisode, lost: WorkerLost) -> bool:
        """Count a loss; return whether the episode is played again."""
        self._n_alone[planned] += lost.n_suspects == 1
        self._n_shared[planned] += lost.n_suspects > 1
        n_losses = max(self._n_alone[planned], self._n_shared[planned] - MAX_SHARED_LOSSES)
        starts_again = self._replays and n_losses <= MAX_REPLAYS
        if not starts_again:
            self._n_left += 1
            self._last = str(lost)
        return starts_again

    def plays_alone(self, planned: PlannedEpisode) -> bool:
        return self._n_shared[planned] >= MAX_SHARED_LOSSES

    @property
    def interruption(self) -> str | None:
        if not self._n_left:
            return None
        episodes = "1 episode was" if self._n_left == 1 else f"{self._n_left} episodes were"
        return f"{episodes} interrupted with a lost worker; the last one: {self._last}"
