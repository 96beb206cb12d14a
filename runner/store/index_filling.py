"""Rows of earlier versions lack flags and failures: they are added from the files, a hundred at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from runner.errors import StoreError
from runner.store.episode_store import EpisodeStore
from runner.store.failures import row_findings
from runner.store.index import EpisodeIndex
from runner.store.index_opening import open_index_to_read

logger = logging.getLogger(__name__)

FILES_AT_A_TIME: Final = 100
"""Number of files that are read for one transaction."""

_UNKNOWN = "SELECT batch_id, episode_id FROM episodes WHERE flags IS NULL LIMIT ?"
_SET = "UPDATE episodes SET flags = ?, failure = ?, failed_step = ? WHERE batch_id = ? AND episode_id = ?"


def open_filled_index(store: EpisodeStore) -> EpisodeIndex:
    """Open the index of a store that is only read, like ``open_index_to_read``, and fill it as far as possible."""
    index = open_index_to_read(store)
    try:
        fill_findings(store, index)
    except StoreError as exc:
        logger.warning("some flags and failures are not known yet: %s", exc)
    return index


def fill_findings(store: EpisodeStore, index: EpisodeIndex, should_stop: Callable[[], bool] = lambda: False) -> int:
    """Add the findings to rows of earlier versions, which lack them; return the number of these rows.

    Args:
        store: the episode files, which are read.
        index: the index with the rows.
        should_stop: checked between two transactions; rows that are left over are found by the next call.

    Raises:
        StoreError: the index cannot be read or written.
    """
    n_rows = 0
    while not should_stop() and (keys := index.select(_UNKNOWN, (FILES_AT_A_TIME,))):
        changes = list(_changes(store, keys))
        with index.transaction() as connection:
            connection.executemany(_SET, changes)
        n_rows += len(keys)
    return n_rows


def _changes(store: EpisodeStore, keys: Iterable[tuple[str, str]]) -> Iterable[tuple[object, ...]]:
    for batch_id, episode_id in keys:
        flags, failure, step = None, None, None
        with suppress(StoreError):  # the next comparison with the files removes or replaces the row
            record = store.load(store.path(batch_id, episode_id))
            flags, failure, step = row_findings(record, record.timesteps).values()
        yield flags or "", failure, step, batch_id, episode_id
