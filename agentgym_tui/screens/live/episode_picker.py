"""Which episode the live screen shows: the newest one, as long as nobody looks at something else."""

from __future__ import annotations

from agentgym_tui.state.models import Episode
from agentgym_tui.state.run_store import RunStore


class EpisodePicker:
    """Chooses an episode.

    Attributes:
        episode_id: the one that is shown, "" for none.
    """

    def __init__(self) -> None:
        """Nothing was chosen yet."""
        self.episode_id = ""
        self._wanted = ""

    def want(self, run_id: str) -> None:
        """Show the first episode of this batch or battery as soon as there is one."""
        self._wanted = run_id

    def pick(self, store: RunStore, *, following: bool) -> Episode | None:
        """The episode to show; one that runs stays, one that is over makes room for the next when ``following``."""
        shown = store.episodes.get(self.episode_id)
        if (wanted := self._found(store)) is not None:
            shown, self._wanted = wanted, ""
        elif shown is None or (following and not shown.is_active):
            shown = _next(store, shown)
        self.episode_id = shown.episode_id if shown else ""
        return shown

    def beside(self, store: RunStore, by: int) -> Episode | None:
        """Change to the running episode ``by`` places on, around the end; None when there is no other one."""
        running = store.running_episodes()
        places = [place for place, episode in enumerate(running) if episode.episode_id == self.episode_id]
        if not running or (places and len(running) == 1):
            return None
        start = places[0] if places else (-1 if by > 0 else 0)
        episode = running[(start + by) % len(running)]
        self.episode_id, self._wanted = episode.episode_id, ""
        return episode

    def _found(self, store: RunStore) -> Episode | None:
        if not self._wanted:
            return None
        return next((e for e in reversed(store.episodes.values()) if self._wanted in (e.batch_id, e.battery_id)), None)


def _next(store: RunStore, shown: Episode | None) -> Episode | None:
    """The newest that is played, of the same batch if there is one; else the last of that batch, or of all."""
    playing = [episode for episode in store.running_episodes() if episode.is_active]
    same = [episode for episode in playing if shown is not None and episode.batch_id == shown.batch_id]
    for choice in (same, playing):
        if choice:
            return choice[-1]
    ended = reversed(store.episodes.values())
    return next((episode for episode in ended if shown is None or episode.batch_id == shown.batch_id), shown)
