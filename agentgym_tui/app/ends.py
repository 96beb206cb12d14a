"""Batches that ended while somebody looked, for a word about each."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from agentgym_tui.presenters.number_format import quantity
from agentgym_tui.safe_text import Safe, join, line, own
from agentgym_tui.state.models import BatchRun
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.state.steps import aware

NEWS: Final = timedelta(minutes=1)
"""How long the end of a batch is worth a word, by the clocks of stream and console."""

PLAYED: Final = frozenset({"running", "paused"})
_WAITING: Final = frozenset({"queued", *PLAYED})


class Ended(NamedTuple):
    """A batch that was played and is over; ``is_last`` unless others of its battery are still to be played."""

    batch: BatchRun
    is_last: bool


class Ends:
    """Finds batches that were seen being played, and are over now."""

    def __init__(self) -> None:
        """Nothing was seen yet."""
        self._played: set[str] = set()

    def look(self, store: RunStore, now: datetime) -> Iterator[Ended]:
        """Those that ended since the last look; what was over long before is the history of a bus."""
        batches = store.batches
        playing = {known for known, batch in batches.items() if batch.status in PLAYED}
        ended = [batches[known] for known in self._played - playing if known in batches]
        self._played = playing
        for batch in ended:
            if batch.status != "queued" and not _is_history(batch, now):
                yield Ended(batch, not any(_is_before(other, batch) for other in batches.values()))


def ended_text(batch: BatchRun) -> Safe:
    """How it ended, in a line."""
    done = own(f", success {quantity(batch.n_success)} of {quantity(batch.n_done)}" if batch.n_done else "")
    return join([line(batch.env or "?", 60), own(" "), line(batch.status, 20), done])


def _is_history(batch: BatchRun, now: datetime) -> bool:
    return batch.ended_at is not None and now - aware(batch.ended_at) > NEWS


def _is_before(other: BatchRun, batch: BatchRun) -> bool:
    """Whether it is of the same battery, and not over."""
    return bool(batch.battery_id) and other.battery_id == batch.battery_id and other.status in _WAITING
