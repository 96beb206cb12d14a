"""Opening the index of a state directory: to write it, or, where its file cannot be written, in memory.

Rows of earlier versions lack flags and failures; they are added from the files afterwards, a hundred at a time.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from runner.errors import StoreError
from runner.store.episode_store import EpisodeStore
from runner.store.failures import row_findings
from runner.store.index import FILE_NAME, EpisodeIndex, file_id
from runner.store.index_schema import SCHEMA
from runner.store.old_outbox import take_over
from runner.util.files import file_lock
from runner.util.safe_values import escape_surrogates
from runner.util.sqlite import BUSY_TIMEOUT_S, open_database

logger = logging.getLogger(__name__)

FILES_AT_A_TIME: Final = 100
"""Number of files that are read for one transaction."""

_UNKNOWN = "SELECT batch_id, episode_id FROM episodes WHERE flags IS NULL LIMIT ?"
_SET = "UPDATE episodes SET flags = ?, failure = ?, failed_step = ?, currency = ? WHERE batch_id = ? AND episode_id = ?"


def open_index(store: EpisodeStore, *, is_owner: bool = False, busy_timeout_s: float = BUSY_TIMEOUT_S) -> EpisodeIndex:
    """Open the index of a store and synchronize it with the files.

    A missing or corrupt index is rebuilt; one of another version since 5 keeps its events and marks.

    Args:
        store: the episode files.
        is_owner: whether no node of another process uses the state directory; only then, the outbox of an earlier
            version is taken over, because a node of that version may be using it.
        busy_timeout_s: seconds to wait for another process that has locked the database.

    Raises:
        StoreError: the files or the database cannot be read or written.
    """
    # Without the lock, two processes could find a corrupt database and one delete the other's new one.
    with file_lock(store.runs, wait=True):
        connection = open_database(store.data_dir / FILE_NAME, SCHEMA, busy_timeout_s=busy_timeout_s)
        try:
            if is_owner:
                take_over(store.data_dir / "outbox.sqlite", connection)
        except StoreError:
            connection.close()
            raise
        index = EpisodeIndex(store, connection, busy_timeout_s, file_id(store.data_dir / FILE_NAME))
    return _reconciled(index)


def open_index_to_read(store: EpisodeStore) -> EpisodeIndex:
    """Open the index of a store that is only read; where its file cannot be written, build the index in memory.

    Raises:
        StoreError: the episode files cannot be read.
    """
    try:
        return open_index(store)
    except StoreError as exc:
        logger.warning("%s. Every episode file is read instead", exc)
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.executescript(SCHEMA.tables)
    return _reconciled(EpisodeIndex(store, connection))


def open_filled_index(store: EpisodeStore) -> EpisodeIndex:
    """Open the index of a store that is only read, like ``open_index_to_read``, and fill it as far as possible."""
    index = open_index_to_read(store)
    try:
        fill_findings(store, index)
    except StoreError as exc:
        logger.warning("some flags and failures are not known yet: %s", exc)
    return index


def fill_findings(store: EpisodeStore, index: EpisodeIndex, should_stop: Callable[[], bool] = lambda: False) -> int:
    """Add the findings and the currency to rows of earlier versions, which lack them; return the number of these rows.

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
        flags, failure, step, currency = None, None, None, None
        with suppress(StoreError):  # the next comparison with the files removes or replaces the row
            record = store.load(store.path(batch_id, episode_id))
            flags, failure, step = row_findings(record, record.timesteps).values()
            currency = record.currency and escape_surrogates(record.currency)
        yield flags or "", failure, step, currency, batch_id, episode_id


def _reconciled(index: EpisodeIndex) -> EpisodeIndex:
    try:
        index.reconcile()
    except StoreError:
        index.close()
        raise
    return index
