"""Checks a recorded history against the promises of ``docs/reference/promises.md``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from tests.history.history import History
from tests.history.promises.batches import check_accepted, check_resumed
from tests.history.promises.bounds import check_bounded, check_live, check_recovered
from tests.history.promises.episodes import check_finished
from tests.history.promises.events import check_shown, check_status_events, check_stored, check_told, check_viewer
from tests.history.records import AnyRecord
from tests.history.violation import Promise, Violation

CHECKS: Final[dict[Promise, tuple[Callable[[History], Iterator[Violation]], ...]]] = {
    "accepted": (check_accepted,),
    "finished": (check_finished,),
    "stored": (check_stored, check_status_events),
    "told": (check_told,),
    "shown": (check_shown, check_viewer),
    "resumed": (check_resumed,),
    "live": (check_live,),
    "bounded": (check_bounded,),
    "recovered": (check_recovered,),
}


def check(records: Sequence[AnyRecord]) -> list[Violation]:
    """Return all violations in a history.

    Raises:
        HistoryError: the history is incomplete, so that nothing can be concluded.
    """
    history = History(records)
    return [violation for checks in CHECKS.values() for run in checks for violation in run(history)]
