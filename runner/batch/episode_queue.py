"""The episodes of a batch that wait for a worker: planned ones, and those that were put back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from operator import attrgetter

from runner.batch.result import is_left
from runner.batch.running_episode import RunningEpisode
from runner.batch.spec import BatchSpec, PlannedEpisode
from runner.store import EpisodeRecord


class EpisodeQueue:
    """Planned episodes in the order of the plan; only the thread of the batch changes the queue.

    An episode whose reset did not complete because its server was gone is put back: it starts again, with the
    same id, when the server is back.
    """

    def __init__(self, planned: Iterable[PlannedEpisode]) -> None:
        self._planned = deque(planned)
        self._alone: deque[PlannedEpisode] = deque()
        self._put_back: dict[PlannedEpisode, RunningEpisode] = {}
        self._returned: set[PlannedEpisode] = set()

    def __len__(self) -> int:
        return len(self._planned) + len(self._alone) + len(self._put_back.keys() - self._returned)

    @property
    def n_alone(self) -> int:
        return len(self._alone)

    @property
    def put_back_ids(self) -> set[str]:
        """Ids of the episodes that were put back; may be read from any thread."""
        return {episode.header.episode_id for episode in list(self._put_back.values())}

    @property
    def can_start(self) -> bool:
        return bool(self._planned)

    def pop(self) -> tuple[PlannedEpisode, RunningEpisode | None]:
        planned = self._planned.popleft()
        self._returned.discard(planned)
        return planned, self._put_back.pop(planned, None)

    def pop_alone(self) -> PlannedEpisode:
        return self._alone.popleft()

    def add(self, planned: PlannedEpisode, *, alone: bool = False) -> None:
        """Add an episode that starts again, to the front, or for ``pop_alone``."""
        if alone:
            self._alone.append(planned)
        else:
            self._planned.appendleft(planned)

    def put_back(self, episode: RunningEpisode) -> None:
        self._put_back[episode.planned] = episode

    def return_all(self, starts_again: Callable[[RunningEpisode], bool]) -> list[RunningEpisode]:
        """Return to the front of the queue what was put back and starts again; remove and return the other episodes."""
        removed: list[RunningEpisode] = []
        waiting = self._put_back.keys() - self._returned
        for planned in sorted(waiting, key=attrgetter("task_index", "attempt"), reverse=True):
            if starts_again(self._put_back[planned]):
                self._planned.appendleft(planned)
                self._returned.add(planned)
            else:
                removed.append(self._put_back.pop(planned))
        return removed[::-1]

    def remove(self, episode_id: str) -> RunningEpisode | None:
        for planned, episode in self._put_back.items():
            if episode.header.episode_id == episode_id:
                del self._put_back[planned]
                if planned in self._returned:
                    self._returned.discard(planned)
                    self._planned.remove(planned)
                return episode
        return None

    def clear(self) -> list[RunningEpisode]:
        episodes = list(self._put_back.values())
        self._planned.clear()
        self._alone.clear()
        self._put_back.clear()
        self._returned.clear()
        return episodes


def split_plan(
    spec: BatchSpec, earlier_episodes: Iterable[EpisodeRecord]
) -> tuple[list[EpisodeRecord], list[PlannedEpisode]]:
    """Return the finished episodes among ``earlier_episodes``, and those of the plan that are yet to be played."""
    errors = ((record, record.error.type if record.error else None) for record in earlier_episodes)
    finished = [record for record, error_type in errors if not is_left(record.outcome, error_type)]
    done = {(record.task_index, record.attempt) for record in finished}
    return finished, [planned for planned in spec.plan() if (planned.task_index, planned.attempt) not in done]


def one_per_plan(episodes: Iterable[EpisodeRecord]) -> list[EpisodeRecord]:
    """Return one of the stored episodes for each task and attempt: the finished one, or else the latest start."""
    chosen: dict[tuple[int, int], EpisodeRecord] = {}
    for record in sorted(episodes, key=lambda record: record.episode_id):
        earlier = chosen.get((record.task_index, record.attempt))
        if earlier is None or is_left(earlier.outcome, earlier.error.type if earlier.error else None):
            chosen[record.task_index, record.attempt] = record
    return list(chosen.values())
