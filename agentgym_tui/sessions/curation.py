"""Clean-up of a state directory: episodes are archived or deleted, and brought back until the console ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from runner.node.curation import CurationAction, CurationPlan, CurationReport, Curator
    from runner.store import EpisodeIndex, EpisodeStore

_T = TypeVar("_T")


class Curation:
    """Archives and deletes stored episodes outside the event loop; see ``runner.node.curation``.

    Args:
        open_store: returns the opened episode files and their index; called at the first use, in another thread.
    """

    def __init__(self, open_store: Callable[[], tuple[EpisodeStore, EpisodeIndex]]) -> None:
        self._open_store = open_store
        self._lock = threading.Lock()
        self._curator: Curator | None = None

    async def plan(self, action: CurationAction, episode_ids: Collection[str]) -> CurationPlan:
        """Return what an action would do; raises ``StoreError``."""
        return await self._call(lambda curator: curator.plan(action, episode_ids))

    async def apply(self, plan: CurationPlan) -> CurationReport:
        """Archive or delete what was planned, as far as it is still possible; raises ``StoreError``."""
        return await self._call(lambda curator: curator.apply(plan))

    async def undo(self) -> CurationReport | None:
        """Bring back the episodes of the last action; None if there is none. Raises ``StoreError``."""
        return await self._call(lambda curator: curator.undo())

    def close(self) -> None:
        """Delete what was deleted for good."""
        with self._lock:
            if self._curator is not None:
                self._curator.close()
                self._curator = None

    async def _call(self, function: Callable[[Curator], _T]) -> _T:
        def run() -> _T:
            from runner.node.curation import Curator

            with self._lock:
                if self._curator is None:
                    self._curator = Curator(*self._open_store())
                return function(self._curator)

        return await asyncio.to_thread(run)
