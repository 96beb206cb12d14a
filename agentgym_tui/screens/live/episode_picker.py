"""Selection of the episode on the live screen: by default the newest episode, or the episode that the user selects."""

from __future__ import annotations

from agentgym_tui.state.episode import Episode
from agentgym_tui.state.run_store import RunStore


class EpisodePicker:
    """Selects the episode that the live screen shows.

    Attributes:
        episode_id: the selected episode, "" if there is none.
    """

    def __init__(self) -> None:
        self.episode_id = ""
        self._awaited_id = ""

    def watch_batch(self, run_id: str) -> None:
        """Select an episode of the batch or battery ``run_id`` as soon as the first episode exists."""
        self._awaited_id = run_id

    def select_episode(self, store: RunStore, *, following: bool) -> Episode | None:
        """Return the episode to show; another episode replaces an ended episode only if ``following`` is True."""
        shown = store.episodes.get(self.episode_id)
        if (awaited := self._awaited_episode(store)) is not None:
            shown, self._awaited_id = awaited, ""
        elif shown is None or (following and not shown.is_active):
            shown = _next_episode(store, shown)
        self.episode_id = shown.episode_id if shown else ""
        return shown

    def select_neighbor(self, store: RunStore, by: int) -> Episode | None:
        """Select the running episode ``by`` positions after the selected episode, wrapping around.

        Returns:
            The newly selected episode; None if no other episode is running.
        """
        running = store.running_episodes()
        positions = [position for position, episode in enumerate(running) if episode.episode_id == self.episode_id]
        if not running or (positions and len(running) == 1):
            return None
        start = positions[0] if positions else (-1 if by > 0 else 0)
        episode = running[(start + by) % len(running)]
        self.episode_id, self._awaited_id = episode.episode_id, ""
        return episode

    def _awaited_episode(self, store: RunStore) -> Episode | None:
        if not self._awaited_id:
            return None
        return next(
            (e for e in reversed(store.episodes.values()) if self._awaited_id in (e.batch_id, e.battery_id)), None
        )


def _next_episode(store: RunStore, shown: Episode | None) -> Episode | None:
    """Return the newest active episode, preferably of the batch of ``shown``.

    Without an active episode, ``shown`` remains if it has no outcome; else this is the newest episode, as whole batches
    can start and end between two selections.
    """
    active = [episode for episode in store.running_episodes() if episode.is_active]
    same = [episode for episode in active if shown is not None and episode.batch_id == shown.batch_id]
    for choice in (same, active):
        if choice:
            return choice[-1]
    return shown if shown is not None and shown.running else next(reversed(store.episodes.values()), None)
