"""Episodes put together from live items, events, stored rows and files, in any order, each thing once."""

from __future__ import annotations

from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from agentgym_tui.state.episode_content import Spans
from agentgym_tui.state.episode_reducer import BASE_SIZE, HEADER, MAX_GAPS, Ending, Track, apply, close, end, set_field
from agentgym_tui.state.limits import MAX_ERROR, MAX_ID, count, finite, name, optional
from agentgym_tui.state.models import Episode
from agentgym_tui.state.steps import aware, episode_size, n_missing_steps, step_size, sum_up, without_messages

if TYPE_CHECKING:
    from datetime import datetime

    from agentgym_tui.state.item_batches import EpisodeRun
    from runner.events.durable import EpisodeCompleted, ForeignEpisode
    from runner.store.index_schema import EpisodeRow

SLACK: Final = 100
"""Episodes beyond the bound that one message may bring before the oldest make room."""

MAX_AWAITED: Final = 200_000
"""Numbers of items that may still come, of all episodes together."""

MAX_FORGOTTEN: Final = 20_000
"""Ids of episodes that had to make room; nothing more is taken of these."""


class EpisodeBook:
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
        self._tracks: dict[str, Track] = {}
        self._forgotten: dict[str, None] = {}
        self._max_episodes, self._max_bytes = max_episodes, max_bytes
        self._bytes = self._n_missed = self._n_awaited = 0
        self._in_order = True

    @property
    def n_missing(self) -> int:
        """Live items that did not come, also of episodes that had to make room."""
        return self._n_missed + sum(track.n_missing for track in self._tracks.values())

    def take(self, run: EpisodeRun, node: str, boot: str) -> bool:
        """Take a run of live items of an episode; False when they cannot be any."""
        if (episode := self.episodes.get(run.episode_id)) is None:
            if not 0 < len(run.episode_id) <= MAX_ID:
                return False
            if run.episode_id in self._forgotten:
                return True
            episode = self._open(run.episode_id, run.at)
        track = self._tracks[run.episode_id]
        if episode.node is not node or track.boot is not boot:
            track.boot, episode.node = boot, name(node)
        before, n_awaited, started_at, outcome = track.size, len(track.awaited), episode.started_at, episode.outcome
        track.most = min(MAX_GAPS, n_awaited + MAX_AWAITED - self._n_awaited)
        apply(episode, track, run)
        self._n_awaited += len(track.awaited) - n_awaited
        if track.size != before:
            self._bytes += track.size - before
        if episode.started_at is not started_at:
            self._in_order = self._in_order and episode.started_at == started_at
        if episode.outcome != outcome:
            self._closed(episode)
        if len(self.episodes) > self._max_episodes + SLACK:
            self.settle()
        return True

    def completed(self, event: EpisodeCompleted, at: datetime) -> bool:
        """Take the event of a finished episode; False when it cannot be one."""
        if not 0 < len(event.episode_id) <= MAX_ID:
            return False
        if event.episode_id in self._forgotten:
            return True
        episode = self.episodes.get(event.episode_id) or self._open(event.episode_id, at)
        for field in ("batch_id", "env", "agent", "node", "profile"):
            setattr(episode, field, name(getattr(event, field)))
        episode.model, episode.task_index = optional(event.model), event.task_index
        episode.tokens, episode.cost = event.tokens, event.cost
        self._end(episode, event)
        return True

    def foreign(self, episode_id: str, event: ForeignEpisode, at: datetime) -> None:
        """Take an episode of another field runner, once."""
        if episode_id in self._forgotten or episode_id in self.episodes:
            return
        episode = self._open(episode_id, at)
        episode.env, episode.model, episode.success = name(event.env), optional(event.model), event.success
        episode.reward, episode.rounds = finite(event.score), count(event.rounds)
        episode.duration_s = event.duration_sec
        close(episode, "success" if event.success else "failure")
        self._closed(episode)

    def stored(self, row: EpisodeRow) -> None:
        """An episode that runs here is stored already: it is over."""
        if (episode := self.running.get(row.episode_id)) is not None:
            episode.error_type = optional(row.error_type)
            self._end(episode, row)

    def fill(self, episode: Episode, boot: str) -> bool:
        """Take the steps of a journal or a file, which count more than what came live; False for what has no id."""
        if not 0 < len(episode.episode_id) <= MAX_ID:
            return False
        known = self.episodes.get(episode.episode_id) or self._open(episode.episode_id, episode.started_at)
        track = self._tracks[known.episode_id]
        track.boot, track.filled, track.headed = track.boot or boot, True, True
        for field in ("node", *HEADER):
            set_field(known, field, getattr(episode, field) or getattr(known, field))
        known.started_at, self._in_order = aware(episode.started_at), False
        known.reset_observation = episode.reset_observation or known.reset_observation
        known.spans = Spans(episode.spans.all) if episode.spans else known.spans
        by_index = {step.index: step for step in (*known.steps, *episode.steps)}
        known.steps = [by_index[index] for index in sorted(by_index)]
        self._grow(track, BASE_SIZE + episode_size(known) - track.size)
        known.n_missing = n_missing_steps(known)
        if known.running:
            sum_up(known)
        if episode.outcome is not None:
            known.tokens, known.cost = episode.tokens, episode.cost
            known.error_type, known.error_message = episode.error_type, optional(episode.error_message, MAX_ERROR)
            known.error_traceback = optional(episode.error_traceback, MAX_ERROR)
            self._end(known, episode)
        return True

    def conclude(self, node: str, boot: str) -> bool:
        """The episodes that an earlier process of ``node`` played have been interrupted; whether there were any."""
        dead = [
            e for e in self.running.values() if e.node == node and self._tracks[e.episode_id].boot not in ("", boot)
        ]
        for episode in dead:
            close(episode, "interrupted")
            self._closed(episode)
        return bool(dead)

    def adopt(self, node: str, boot: str) -> None:
        """Episodes of ``node`` that were read from files are played by this process of it."""
        for episode in self.running.values():
            track = self._tracks[episode.episode_id]
            if episode.node == node and not track.boot:
                track.boot = boot

    def settle(self) -> None:
        """Bring what was taken in order and within bounds."""
        if not self._in_order:
            ordered = sorted(self.episodes.values(), key=attrgetter("started_at"))
            self.episodes = {episode.episode_id: episode for episode in ordered}
            self._in_order = True
        for episode in self._first_to_go(len(self.episodes) - self._max_episodes):
            self._forget(episode)
        if self._bytes > self._max_bytes:
            self._make_room()

    def _open(self, episode_id: str, at: datetime) -> Episode:
        at = aware(at)
        newest = next(reversed(self.episodes.values()), None)
        self._in_order = self._in_order and (newest is None or newest.started_at <= at)
        episode = self.episodes[episode_id] = self.running[episode_id] = Episode(episode_id, "", "", at)
        self._forgotten.pop(episode_id, None)
        self._tracks[episode_id] = Track()
        self._bytes += BASE_SIZE
        return episode

    def _end(self, episode: Episode, told: Ending) -> None:
        end(episode, told)
        self._closed(episode)

    def _closed(self, episode: Episode) -> None:
        self.running.pop(episode.episode_id, None)
        self.ended.append(episode)

    def _grow(self, track: Track, by: int) -> None:
        track.size += by
        self._bytes += by

    def _first_to_go(self, n: int) -> list[Episode]:
        """The oldest of those that are over, then the oldest of all."""
        if n <= 0:
            return []
        over = list(islice((episode for episode in self.episodes.values() if not episode.running), n))
        running = (episode for episode in self.episodes.values() if episode.running)
        return [*over, *islice(running, n - len(over))]

    def _make_room(self) -> None:
        """Forget what is over, but the newest; leave out messages; forget what runs."""
        newest = next(reversed(self.episodes.values()), None)
        while self._bytes > self._max_bytes:
            over = (each for each in self.episodes.values() if not each.running and each is not newest)
            if (episode := next(over, None)) is None:
                break
            self._forget(episode)
        for episode in self.episodes.values():
            if self._bytes <= self._max_bytes:
                return
            self._shed(episode)
        while self._bytes > self._max_bytes and self.episodes:
            self._forget(next(iter(self.episodes.values())))

    def _shed(self, episode: Episode) -> None:
        """Leave out messages, the oldest first, until there is room."""
        track = self._tracks[episode.episode_id]
        for place, step in enumerate(episode.steps):
            if self._bytes <= self._max_bytes:
                return
            episode.steps[place] = smaller = without_messages(step)
            self._grow(track, step_size(smaller) - step_size(step))
        episode.spans, episode.reset_observation = Spans(), []
        self._grow(track, BASE_SIZE + episode_size(episode) - track.size)

    def _forget(self, episode: Episode) -> None:
        known = episode.episode_id
        self.episodes.pop(known)
        self.running.pop(known, None)
        track = self._tracks.pop(known)
        self._bytes -= track.size
        self._n_awaited -= len(track.awaited)
        self._n_missed += track.n_missing
        self._forgotten[known] = None
        if len(self._forgotten) > MAX_FORGOTTEN:
            del self._forgotten[next(iter(self._forgotten))]
