"""What a person is told when a batch is over: above the screen, and by the terminal where that is wanted."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agentgym_tui.presenters.model_answer import failover_text
from agentgym_tui.presenters.number_format import format_count
from agentgym_tui.safe_text import SafeText, join, sanitize_line, trusted
from agentgym_tui.services.toast import toast
from agentgym_tui.state.endpoints import Failover
from agentgym_tui.state.timestamps import as_aware

if TYPE_CHECKING:
    from textual.app import App

    from agentgym_tui.config.settings import Notify
    from agentgym_tui.state.models import BatchRun
    from agentgym_tui.state.run_store import RunStore

NEWS: Final = timedelta(minutes=1)
"""How long the end of a batch is worth a word, by the clocks of stream and console."""


PLAYED: Final = frozenset({"running", "paused"})


_WAITING: Final = frozenset({"queued", *PLAYED})


class EndedBatch(NamedTuple):
    """A batch that was played and is over; ``is_last`` unless others of its battery are still to be played."""

    batch: BatchRun
    is_last: bool


class BatchEndDetector:
    """Finds batches that were seen being played, and are over now."""

    def __init__(self) -> None:
        """Nothing was seen yet."""
        self._played: set[str] = set()

    def look(self, store: RunStore, now: datetime) -> Iterator[EndedBatch]:
        """Those that ended since the last look; what was over long before is the history of a bus."""
        batches = store.batches
        playing = {known for known, batch in batches.items() if batch.status in PLAYED}
        ended = [batches[known] for known in self._played - playing if known in batches]
        self._played = playing
        for batch in ended:
            if batch.status != "queued" and not _is_history(batch, now):
                yield EndedBatch(batch, not any(_is_before(other, batch) for other in batches.values()))


def ended_text(batch: BatchRun) -> SafeText:
    """How it ended, in a line."""
    done = trusted(f", success {format_count(batch.n_success)} of {format_count(batch.n_done)}" if batch.n_done else "")
    return join([sanitize_line(batch.env or "?", 60), trusted(" "), sanitize_line(batch.status, 20), done])


def _is_history(batch: BatchRun, now: datetime) -> bool:
    return batch.ended_at is not None and now - as_aware(batch.ended_at) > NEWS


def _is_before(other: BatchRun, batch: BatchRun) -> bool:
    """Whether it is of the same battery, and not over."""
    return bool(batch.battery_id) and other.battery_id == batch.battery_id and other.status in _WAITING


OSC_9: Final = "\x1b]9;AgentGym: a batch has ended\x07"
OSC_777: Final = "\x1b]777;notify;AgentGym;a batch has ended\x07"
"""Messages on the desktop, in our own words alone: nothing that came from outside is part of them."""


def desktop_sequence(environ: Mapping[str, str]) -> str:
    """The one of the two that the terminal knows; one that knows neither shows nothing."""
    knows_777 = environ.get("TERM", "").startswith("rxvt") or "VTE_VERSION" in environ
    return OSC_777 if knows_777 else OSC_9


class FailoverDetector:
    """Finds what a store has noted of endpoints since the last look."""

    def __init__(self) -> None:
        """Nothing was seen yet."""
        self._n_seen = 0

    def look(self, store: RunStore, now: datetime) -> Failover | None:
        """The newest that was not seen; what was long before is the history of a bus."""
        is_new, self._n_seen = store.n_failovers > self._n_seen, store.n_failovers
        newest = store.failovers[-1] if is_new and store.failovers else None
        return newest if newest is not None and now - newest.at < NEWS else None


def tell_fall(app: App[Any], fall: Failover | None, notify: Notify) -> None:
    """That another endpoint has to answer."""
    if fall is not None and notify.toast:
        toast(app, failover_text(fall), failed=bool(fall.failed))


def tell_ends(app: App[Any], ended: Iterable[EndedBatch], notify: Notify) -> None:
    """Of a battery, bell and desktop tell only the end."""
    for each in ended:
        if notify.toast:
            toast(app, ended_text(each.batch))
        if notify.bell and each.is_last:
            app.bell()
        if notify.desktop and each.is_last and app._driver is not None:  # public only for the clipboard
            app._driver.write(desktop_sequence(os.environ))
